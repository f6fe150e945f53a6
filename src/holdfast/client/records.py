"""Record files: what a publisher sent and a subscriber received, a line of JSON each, for `holdfast pipeline audit`.

::

    sent        {"topic", "id", "sequence", "time_ms", "acknowledged"}                 partition, offset
    received    {"topic", "id", "sequence", "time_ms", "broker"}           receiver,   partition, offset

`id` is the message's own; those that are made here are `<producer>/<sequence>`, so that a receiver knows the sequence,
too. `time_ms` is the writer's own clock. `receiver` tells several subscribers of one file apart. What stands to the
right may be missing.

Lines are written in blocks, whole lines at a time, to the end of the file. A process that is killed leaves out what it
had not written yet: at most `BUFFERED_BYTES_MAX`, and nothing where `flush` was called before. A kill in the middle of
a write, or a machine that is lost, may leave a part of a line at the end; whoever opens the file to write cuts it off,
and the audit counts it as malformed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import uuid_utils

if TYPE_CHECKING:
    from holdfast.model.messages import Published

BUFFERED_BYTES_MAX: Final = 256 * 1024
_TAIL_BYTES: Final = 64 * 1024


class RecordFile:
    """Lines to the end of a file. Use it with `with`: what is buffered is written at the end."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._buffer = bytearray()
        self._encoder = msgspec.json.Encoder()
        _end_last_line(self._descriptor)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        finally:
            os.close(self._descriptor)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            self._buffer += self._encoder.encode(line)
            self._buffer += b"\n"
            if len(self._buffer) >= BUFFERED_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        """Hand everything to the system: it survives this process, not the machine."""
        while self._buffer:
            written = os.write(self._descriptor, self._buffer)
            del self._buffer[:written]


def _end_last_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL_BYTES)
    tail = os.pread(descriptor, _TAIL_BYTES, start)
    if not tail or tail.endswith(b"\n"):
        return
    last = tail[tail.rfind(b"\n") + 1 :]
    is_seen_whole = len(last) < len(tail) or start == 0
    if is_seen_whole and last.startswith(b"{") and not _is_json(last):
        os.ftruncate(descriptor, size - len(last))
    else:
        os.write(descriptor, b"\n")


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


class Begun(NamedTuple):
    """A list of messages that is under way: their ids, the sequence of the first, and when they left."""

    ids: list[str]
    first: int
    time_ms: int


class SentRecords:
    """The publisher's side: gives out ids, and notes what became of each list of messages.

    Nothing that happens inside `undisturbed` may end by a signal: a list is written down as a whole, and once.
    """

    def __init__(
        self,
        file: RecordFile,
        topic: str,
        undisturbed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._file = file
        self._topic = topic
        self._undisturbed = undisturbed
        self._producer = str(uuid_utils.uuid7())
        self._next = 1
        # By their first number, the lists that nothing is written of yet.
        self._under_way: dict[int, Begun] = {}

    def begin(self, count: int, given_id: str | None = None) -> Begun:
        first, self._next = self._next, self._next + count
        made = [f"{self._producer}/{number}" for number in range(first, first + count)]
        begun = Begun([given_id] * count if given_id is not None else made, first, now_ms())
        self._under_way[first] = begun
        return begun

    def end(self, begun: Begun, published: Sequence[Published] | None = None) -> None:
        """All of them are acknowledged; `published` says where they stand, if that is known."""
        self._write(begun, published, acknowledged=True)

    def close(self) -> None:
        """What is still under way was sent, and nobody knows what became of it."""
        for begun in list(self._under_way.values()):
            self._write(begun, None, acknowledged=False)

    def _write(self, begun: Begun, published: Sequence[Published] | None, *, acknowledged: bool) -> None:
        places = published if published is not None else [None] * len(begun.ids)
        with self._undisturbed():
            self._file.write(
                {
                    "topic": self._topic,
                    "id": name,
                    "sequence": begun.first + index,
                    "time_ms": begun.time_ms,
                    "acknowledged": acknowledged,
                    **({} if one is None or one.buffered else {"partition": one.partition, "offset": one.offset}),
                }
                for index, (name, one) in enumerate(zip(begun.ids, places, strict=True))
            )
            del self._under_way[begun.first]


def received_line(topic: str, message_id: str, broker: str, receiver: str, **place: int) -> dict[str, Any]:
    """One received message, now; `place` is its partition and offset where they are known."""
    return {
        "topic": topic,
        "id": message_id,
        "sequence": sequence_of(message_id),
        "time_ms": now_ms(),
        "broker": broker,
        "receiver": receiver,
        **place,
    }


def sequence_of(message_id: str) -> int | None:
    """17 of `<producer>/17`; none where the id is of another make."""
    number = message_id.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None


def now_ms() -> int:
    return time.time_ns() // 1_000_000
