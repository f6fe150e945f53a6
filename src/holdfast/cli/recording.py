"""`--record FILE`: what a command sent or received, written down also where a signal ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.client.records import RecordFile, SentRecords

EXIT_TERMINATED: Final = 143


@contextlib.contextmanager
def sent(path: Path | None, topic: str) -> Iterator[SentRecords | None]:
    """Where a publisher notes what it does; SIGTERM ends it as Ctrl-C does, with everything written."""
    if path is None:
        yield None
        return
    from holdfast.client.records import RecordFile, SentRecords

    with _Signals() as signals, RecordFile(path) as file:
        records = SentRecords(file, topic, signals.waiting)
        try:
            yield records
        finally:
            signals.do_wait = True  # to the end: the file is closed next
            records.close()


class _Signals:
    """Ctrl-C and SIGTERM end the command, but for a while at most in which they wait.

    Handlers, and not a mask of blocked signals: a client has a thread of its own, which would take them.
    """

    def __init__(self) -> None:
        self.do_wait = False
        self._came: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._end_if_one_came()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        if self.do_wait:
            yield
            return
        self.do_wait = True
        try:
            yield
        finally:
            self.do_wait = False
        self._end_if_one_came()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came = number
        if not self.do_wait:
            self._end_if_one_came()

    def _end_if_one_came(self) -> None:
        came, self._came = self._came, None
        if came == signal.SIGTERM:
            sys.exit(EXIT_TERMINATED)
        elif came is not None:
            raise KeyboardInterrupt


@contextlib.contextmanager
def received(path: Path | None) -> Iterator[RecordFile | None]:
    """Where a subscriber notes what came; it handles signals itself."""
    if path is None:
        yield None
        return
    from holdfast.client.records import RecordFile

    with RecordFile(path) as file:
        yield file


def receiver(name: str | None) -> str:
    """Who reads: a name stays the same over restarts, and every run without one is somebody else."""
    return name if name is not None else f"{socket.gethostname()}-{os.getpid()}"
