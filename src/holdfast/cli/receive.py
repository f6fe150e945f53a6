"""`holdfast receive`: the other end of a callback, on standard output."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output, session
from holdfast.cli.options import JsonLines, examples

if TYPE_CHECKING:
    from holdfast.client import BlockingReceiver, ReceivedMessage

EXAMPLES = examples(
    "holdfast receive 127.0.0.1:9000",
    "holdfast receive 127.0.0.1:9000 --json --count 10",
)
# What a shell reports for a program that a closed pipe ended, and for one that a signal did.
_EXIT_PIPE_CLOSED: Final = 141
_EXIT_SIGNAL: Final = 128


def receive(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where to listen.", show_default=False)],
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Leave after so many messages.")] = None,
    as_json: JsonLines = False,
) -> None:
    """Listen at an address that callbacks go to, and print what comes, a line each, bytes unchanged.

    A message is acknowledged once it is printed. `holdfast subscribe TOPIC --callback HOST:PORT` has a topic sent here.
    """
    from holdfast.client import BlockingReceiver

    leaving = _Leaving()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, leaving.on_signal)
    try:
        with contextlib.ExitStack() as opened:
            try:
                receiver = opened.enter_context(BlockingReceiver(address))
            except OSError as error:
                raise session.cannot_listen(address, error, "HOST:PORT") from error
            output.note(f"holdfast: listening at {receiver.address}")
            _print_all(receiver, leaving, count, as_json=as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_EXIT_PIPE_CLOSED) from None


class _Leaving:
    """Signals end it between two messages, so that it is known what was printed; a second one ends it anywhere."""

    def __init__(self) -> None:
        self.is_printing = False
        self.code: int | None = None

    def on_signal(self, signum: int, frame: object) -> None:
        is_second, self.code = self.code is not None, _EXIT_SIGNAL + signum
        if is_second or not self.is_printing:
            sys.exit(self.code)


def _print_all(receiver: BlockingReceiver, leaving: _Leaving, count: int | None, *, as_json: bool) -> None:
    printed = 0
    try:
        for message in receiver:
            leaving.is_printing = True
            _print(message, as_json=as_json)
            printed += 1
            leaving.is_printing = False
            if leaving.code is not None:
                sys.exit(leaving.code)
            if printed == count:
                break
    finally:
        # One that is not printed comes again.
        if receiver.handed_out == printed:
            receiver.done()


def _print(message: ReceivedMessage, *, as_json: bool) -> None:
    if as_json:
        output.print_json(_as_json(message))
        return
    sys.stdout.buffer.write(message.value + b"\n")
    sys.stdout.buffer.flush()


def _as_json(message: ReceivedMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
    if message.id is not None:
        fields["id"] = message.id
    try:
        return {**fields, "value": message.value.decode()}
    except UnicodeDecodeError:
        return {**fields, "base64": base64.b64encode(message.value).decode()}
