"""All messages of a plain pair in one row, whatever their topic: what is sent to a backup, and what a backup keeps.

`journal/` in the data directory is a log as of any partition (`storage/log.py`), whose offsets are the numbers of the
pair less one: offset 0 is number 1. Each entry is a batch of one record: the topic is its key, the id its id, and the
epoch of the reign in which it was stored its term. So it can be cut anywhere, and begin with any number. What a foreign
primary has numbered has a header besides, `holdfast-number`: the run and the number, as in `3.17`, and `3.17.copy` of a
copy (`ordering.py`). Entries of before there was this header have none.

A primary writes a message here first, and into its topic once it may be acknowledged (`draining.py`); a backup keeps it
here until it is called delivered, or until it takes over. Whole segments go when nobody needs anything of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs, TopicName
from holdfast.model.messages import Header, NewMessage
from holdfast.storage.log import PartitionLog
from holdfast.storage.syncer import Syncer
from holdfast.wire import batch_builder, record_batch

DIRECTORY: Final = "journal"
# Small: what is delivered goes soon.
_SEGMENT_BYTES: Final = 8 * 1024 * 1024


_NUMBER_HEADER: Final = "holdfast-number"
_COPY: Final = b"copy"


class ForeignNumber(NamedTuple):
    """Which number a foreign primary gave to a message, and in which run of its numbers."""

    run: int
    number: int
    is_copy: bool = False

    def header(self) -> Header:
        copy = b"." + _COPY if self.is_copy else b""
        return _NUMBER_HEADER, b"%d.%d%b" % (self.run, self.number, copy)

    @classmethod
    def found(cls, headers: Sequence[Header]) -> ForeignNumber | None:
        for name, value in headers:
            if name == _NUMBER_HEADER:
                run, number, *rest = value.split(b".")
                return cls(int(run), int(number), rest == [_COPY])
        return None


class Entry(NamedTuple):
    position: int
    topic: TopicName
    message_id: str
    value: bytes
    timestamp_ms: TimestampMs
    number: ForeignNumber | None = None


class Journal:
    """The journal of one broker. `on_synced` is called whenever more of it is as durable as it is going to be."""

    def __init__(
        self,
        directory: Path,
        *,
        is_synced: bool,
        on_synced: Callable[[], None],
        on_failure: Callable[[Exception], None],
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self._log, _ = PartitionLog.open(directory / DIRECTORY, segment_bytes=segment_bytes)
        self._is_synced = is_synced
        self._on_synced = on_synced
        self._syncer: Syncer[PartitionLog] = Syncer(on_synced=lambda _: self._on_synced(), on_failure=on_failure)
        self._stored = self.end

    @property
    def start(self) -> int:
        return self._log.start_offset

    @property
    def end(self) -> int:
        """Behind the last entry that was written."""
        return self._log.written_end

    @property
    def stored(self) -> int:
        """Behind the last entry that is durable."""
        return self._log.synced_end if self._is_synced else self._stored

    def append(
        self,
        messages: Sequence[tuple[TopicName, str, bytes]],
        epoch: int,
        now_ms: TimestampMs,
        number: ForeignNumber | None = None,
    ) -> int:
        """Write messages, each with its topic and id; the position of the first. Raises `Unavailable`."""
        first = self.end
        headers = () if number is None else (number.header(),)
        batches = [
            batch_builder.build_batch(
                [NewMessage(value=value, key=topic.encode(), id=message_id, headers=headers)], now_ms
            )
            for topic, message_id, value in messages
        ]
        index = LogIndex(self._log.last_index + 1)
        try:
            self._log.append_placed(self._log.placed(batches, Term(epoch)))
        except Exception:
            # Some may be written: none was.
            self._log.truncate_from(index)
            raise
        if self._is_synced:
            self._syncer.request(self._log)
        else:
            self._stored = self.end
            asyncio.get_running_loop().call_soon(self._on_synced)
        return first

    def read(self, position: int, bytes_max: int, end: int | None = None) -> list[Entry]:
        """Entries from a position on, at least one if there is any below `end`."""
        end = self.end if end is None else min(end, self.end)
        position = max(position, self.start)
        if position >= end:
            return []
        entries = []
        for batch in self._log.read(Offset(position), bytes_max, Offset(end)):
            head = record_batch.header(batch)
            for offset, record in enumerate(record_batch.decode_records(batch), head.base_offset):
                topic = TopicName((record.key or b"").decode())
                message_id = record_batch.record_id(record) or ""
                number = ForeignNumber.found(record.headers)
                timestamp_ms = TimestampMs(head.base_timestamp_ms)
                entries.append(Entry(offset, topic, message_id, record.value, timestamp_ms, number))
        return [entry for entry in entries if position <= entry.position < end]

    def cut(self, position: int) -> None:
        """Forget everything from a position on; below its start, begin anew there. Durable on return."""
        if position < self.start or position > self.end:
            self._log.reset(LogIndex(position + 1), Offset(position), Term(0))
        else:
            first_index, start = self._log.first_index, self.start
            self._log.truncate_from(LogIndex(first_index + position - start))
        self._stored = self.end

    def prune(self, position: int) -> None:
        """Nobody needs what is below."""
        self._log.drop_below(Offset(min(position, self.stored)))

    async def settled(self) -> None:
        """Until everything that was written is durable."""
        await self._syncer.flush()

    async def stop(self) -> None:
        await self._syncer.stop()
        self._log.close()
