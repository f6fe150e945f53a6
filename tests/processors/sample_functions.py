"""Processor functions that behave well and badly, for the workers to import by name."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

from holdfast.processors.protocol import ProcessorMessage

not_a_function = 3


def upper(message: ProcessorMessage) -> bytes:
    return message.value.upper()


def text(message: ProcessorMessage) -> str:
    return (
        f"{message.topic}/{message.partition}@{message.offset} {message.key!r} {dict(message.headers)!r} {message.id}"
    )


def drop_odd(message: ProcessorMessage) -> bytes | None:
    return message.value if int(message.value) % 2 == 0 else None


def sleep_ms(message: ProcessorMessage) -> bytes:
    """Takes as long as the message says."""
    time.sleep(int(message.value.split(b" ")[-1]) / 1000)
    return message.value


def moody(message: ProcessorMessage) -> bytes | None:
    """Does what the message says, once or always."""
    verb, _, rest = message.value.decode().partition(" ")
    if verb.startswith("once-"):
        marker = Path(rest)
        if marker.exists():
            return b"recovered"
        marker.touch()
        verb = verb.removeprefix("once-")
    if verb == "raise":
        raise ValueError(f"cannot handle {rest}")
    if verb == "sys-exit":
        sys.exit("leaving")
    if verb == "exit":
        os._exit(7)
    if verb == "segfault":
        ctypes.string_at(0)
    if verb == "hang":
        threading.Event().wait()
    if verb == "return-int":
        return 5  # type: ignore[return-value]
    if verb == "surrogate":
        return "\ud800"  # type: ignore[return-value]
    if verb == "large":
        return b"x" * int(rest)
    return message.value


def noisy(message: ProcessorMessage) -> bytes:
    """Writes where the protocol would be, and reads from where requests come."""
    print("printed", message.offset)
    sys.stdout.write("written\n" * 100)
    os.write(1, b"straight to descriptor 1\n")
    os.system("echo from a child process")
    assert sys.stdin.read() == ""
    return message.value


def whoami(message: ProcessorMessage) -> str:
    return f"{os.getpid()} {os.nice(0)}"


def two_arguments(message: ProcessorMessage, more: int) -> bytes:
    return message.value


async def asynchronous(message: ProcessorMessage) -> bytes:
    return message.value


def counted(message: ProcessorMessage) -> bytes:
    """Writes down each call, in one write, where all workers of all nodes do; takes the milliseconds of its key.

    A value that begins with `raise` is written down and fails.
    """
    line = f"{message.partition} {message.offset} {os.getpid()}\n"
    calls = os.open(os.environ["CALLS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(calls, line.encode())
    finally:
        os.close(calls)
    time.sleep(int(message.key or b"0") / 1000)
    if message.value.startswith(b"raise"):
        raise ValueError("as it was told")
    return message.value.upper()


class SubclassOfBytes(bytes):
    pass


class Unprintable(Exception):
    """An error for which every attempt to describe it fails."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise ValueError("no notes")


def awkward(message: ProcessorMessage) -> bytes:
    """Fails, or succeeds, in a way that is hard to report."""
    verb = message.value.decode()
    if verb == "half-a-pair":
        raise ValueError("no customer \ud800")
    if verb == "unprintable":
        raise Unprintable
    if verb == "subclass":
        return SubclassOfBytes(b"made")
    return message.value
