"""`--record FILE`: what a command sent or received, written down also where a signal ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

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

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        with RecordFile(path) as file:
            yield SentRecords(file, topic)
    finally:
        signal.signal(signal.SIGTERM, before)


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
