"""Where the messages of `holdfast publish` come from: an argument, lines of an input, or 1, 2, 3, …

Everything is handed on in lists, so that a million lines cost a few hundred steps. An input is read by a
thread of its own while the broker works on what came before; a line that was written a moment ago is not
held back until a block is full.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from holdfast.model.errors import CallerError, TooLarge
from holdfast.model.limits import KIB, MIB

# What a pipe gives in one read, and how many of those may wait.
_READ_BYTES: Final = 64 * KIB
_READS_AHEAD: Final = 64
# About what one request to the broker carries.
_BLOCK_BYTES: Final = 1 * MIB
# Messages that cost nothing to make are made in lists of this many.
_MADE_AT_ONCE: Final = 1000
# A line is held in memory whole; a broker that takes larger messages than this is not to be had.
LINE_BYTES_MAX: Final = 16 * MIB


class BadInput(CallerError):
    """Standard input or a file cannot be read."""


def repeated(value: bytes) -> Iterator[list[bytes]]:
    """The same message again and again."""
    return itertools.repeat([value] * _MADE_AT_ONCE)


def sequence() -> Iterator[list[bytes]]:
    """1, 2, 3, … as text."""
    firsts = itertools.count(1, _MADE_AT_ONCE)
    return ([b"%d" % number for number in range(first, first + _MADE_AT_ONCE)] for first in firsts)


def whole(fd: int) -> Iterator[list[bytes]]:
    """All of an input as one message."""
    blocks = []
    size = 0
    for block in _blocks(fd):
        blocks.append(block)
        size += len(block)
        if size > LINE_BYTES_MAX:
            raise TooLarge(f"the input has more than {LINE_BYTES_MAX} bytes; publish it as lines, or in parts")
    yield [b"".join(blocks)]


def lines(
    fd: int, ends: float | None = None, monotonic_s: Callable[[], float] = time.monotonic
) -> Iterator[list[bytes]]:
    """An input's lines without their ends, bytes unchanged; a last line without an end counts.

    At `ends`, in seconds of the monotonic clock, reading is over and a line that was only begun is left out.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    for block in _blocks(fd, ends, monotonic_s):
        if not block:
            break
        head, newline, rest = block.partition(b"\n")
        if not newline:
            begun.append(block)
            begun_bytes += len(block)
            if begun_bytes > LINE_BYTES_MAX:
                raise TooLarge(f"a line has more than {LINE_BYTES_MAX} bytes; --whole takes an input as one message")
            continue
        found = [b"".join((*begun, head)), *rest.split(b"\n")]
        last = found.pop()
        begun, begun_bytes = [last], len(last)
        yield found
    else:
        return
    last = b"".join(begun)
    if last:
        yield [last]


def _blocks(fd: int, ends: float | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> Iterator[bytes]:
    """An input as it comes: at least what is there, at most about a block of what has gathered.

    The end of the input is an empty block; at `ends` there is none.
    """
    reads: queue.Queue[bytes | OSError] = queue.Queue(_READS_AHEAD)

    def read_all() -> None:
        try:
            while data := os.read(fd, _READ_BYTES):
                reads.put(data)
            reads.put(b"")
        except OSError as error:
            reads.put(error)

    # A daemon: a terminal on which nobody types any more must not keep the command from ending.
    threading.Thread(target=read_all, name="input", daemon=True).start()
    while True:
        try:
            gathered = [reads.get(timeout=None if ends is None else max(0.0, ends - monotonic_s()))]
        except queue.Empty:
            return
        size = 0
        with contextlib.suppress(queue.Empty):
            while gathered[-1] and size < _BLOCK_BYTES:
                gathered.append(reads.get_nowait())
                size += _READ_BYTES
        last = gathered[-1]
        if isinstance(last, OSError):
            raise BadInput(f"the input cannot be read: {last.strerror}")
        if len(gathered) > 1 or last:
            yield b"".join(data for data in gathered if isinstance(data, bytes))
        if not last:
            yield b""
            return


def limited(source: Iterator[list[bytes]], count: int | None) -> Iterator[list[bytes]]:
    """At most `count` messages of a source."""
    if count is None:
        yield from source
        return
    left = count
    while left > 0 and (values := next(source, None)) is not None:
        yield values[:left]
        left -= len(values)
