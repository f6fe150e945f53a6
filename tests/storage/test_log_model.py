"""One partition's log against a list, through appends, syncs, kills and power losses in any order.

What must hold after every reopening: each batch that was ever reported as synced is there, at its offset,
with its bytes; what else is there was appended, in the order of appending; no gap, no batch twice; and a
torn tail is never called damage, for it is none.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import Offset, Term, TimestampMs
from holdfast.storage import index, segment
from holdfast.storage.log import PartitionLog, SyncPoint
from holdfast.wire import record_batch
from tests.support.batches import values_batch
from tests.support.logs import abandon
from tests.support.shadow_disk import ShadowDisk
from tests.support.sizes import examples, in_memory

EVERYTHING = 1 << 40


class Stored(NamedTuple):
    base_offset: int
    next_offset: int
    timestamp_ms: int
    data: bytes


class LogMachine(RuleBasedStateMachine):
    """The model is `stored`; everything below `acked_end` was promised to somebody."""

    @initialize(
        segment_bytes=st.sampled_from([1, 300, 700, 2_000, 10**9]),
        index_interval=st.sampled_from([1, 200, 16_384]),
        read_ahead=st.sampled_from([100, 400, 65_536]),
    )
    def open_new(self, segment_bytes: int, index_interval: int, read_ahead: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-log-", dir=in_memory()))
        self.patches = [
            mock.patch.object(index, "INDEX_INTERVAL_BYTES", index_interval),
            mock.patch.object(segment, "_READ_AHEAD_BYTES", read_ahead),
        ]
        for patch in self.patches:
            patch.start()
        self.generation = 0
        self.segment_bytes = segment_bytes
        self.stored: list[Stored] = []
        self.acked_end = 0
        self.point: SyncPoint | None = None
        self.directory = self.root / "0"
        self.directory.mkdir()
        self.disk = ShadowDisk(self.directory)
        self.log, recovery = PartitionLog.open(self.directory, segment_bytes=segment_bytes)
        assert recovery == (0, [], [])

    def teardown(self) -> None:
        if hasattr(self, "root"):
            abandon(self.log)
            self.disk.close()
            for patch in self.patches:
                patch.stop()
            shutil.rmtree(self.root)

    # --- what happens ------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 5),
        length=st.sampled_from([0, 1, 40, 150, 900]),
        timestamp_ms=st.integers(0, 50),
        seed=st.integers(0, 2**30),
    )
    def append(self, count: int, length: int, timestamp_ms: int, seed: int) -> None:
        values = [random.Random(seed + i).randbytes(length) for i in range(count)]
        batch = values_batch(*values, timestamp_ms=timestamp_ms)
        base_offset = self.log.append(batch, Term(1))
        end = self.stored[-1].next_offset if self.stored else self.log.start_offset
        assert base_offset == end, "offsets have a gap or repeat"
        self.stored.append(Stored(base_offset, base_offset + count, timestamp_ms, bytes(batch)))

    @precondition(lambda self: self.point is None)
    @rule()
    def begin_sync(self) -> None:
        self.point = self.log.sync_point()

    @precondition(lambda self: self.point is not None)
    @rule()
    def end_sync(self) -> None:
        """The disk is done with what `begin_sync` asked for, and more may have been appended meanwhile."""
        assert self.point is not None
        for fd in self.point.files:
            self.disk.sync(fd)
        if self.point.directory is not None:
            self.log.sync_directory()
        self.log.synced(self.point)
        self.acked_end = self.point.end
        assert self.log.synced_end == self.acked_end
        self.point = None

    @rule(older_than_ms=st.none() | st.integers(0, 51), bytes_max=st.none() | st.integers(1, 3_000))
    def expire(self, older_than_ms: int | None, bytes_max: int | None) -> None:
        before, up_to = self.log.start_offset, Offset(self.acked_end)
        limit = None if older_than_ms is None else TimestampMs(older_than_ms)
        self.log.expire(older_than_ms=limit, bytes_max=bytes_max, up_to=up_to)
        start = self.log.start_offset
        assert before <= start <= max(before, up_to), "retention took what no reader was shown yet"
        if older_than_ms is None and bytes_max is None:
            assert start == before
        if bytes_max is None and older_than_ms is not None:
            assert all(b.timestamp_ms < older_than_ms for b in self.stored if b.next_offset <= start)
        if older_than_ms is None and bytes_max is not None and start > before:
            assert self.log.size_bytes >= bytes_max, "retention took more than it was told to"
        self.stored = [b for b in self.stored if b.base_offset >= start]

    @rule()
    def close_and_reopen(self) -> None:
        self.begin_sync()
        self.end_sync()
        self.log.close()
        self._reopened(self.directory, self.stored[-1].next_offset if self.stored else self.acked_end)

    @rule()
    def kill_and_reopen(self) -> None:
        """The process is gone, the page cache is not: everything that was written is still there."""
        abandon(self.log)
        self._reopened(self.directory, self.stored[-1].next_offset if self.stored else self.acked_end)

    @rule(seed=st.integers(0, 2**30))
    def lose_power_and_reopen(self, seed: int) -> None:
        self.generation += 1
        image = self.root / str(self.generation)
        self.disk.image(image, random.Random(seed))
        abandon(self.log)
        self.disk.move_to(image)
        self.directory = image
        self._reopened(image, self.acked_end)

    def _reopened(self, directory: Path, promised_end: int) -> None:
        self.point = None
        self.log, recovery = PartitionLog.open(directory, segment_bytes=self.segment_bytes)
        assert recovery.holes == [], "a torn tail is called damage"
        assert self.log.synced_end == self.log.written_end >= promised_end, "acknowledged messages are gone"
        found = self._read_all(self.log.start_offset)
        promised = [b.data for b in self.stored if b.next_offset <= promised_end]
        oldest = self.stored[0].base_offset if self.stored else promised_end
        # Deleted segments may be back after a power loss; what was there before is behind them.
        kept = [data for data in found if record_batch.header(data).base_offset >= oldest]
        assert kept[: len(promised)] == promised, "acknowledged messages are gone or changed"
        written = [b.data for b in self.stored]
        assert kept == written[: len(kept)], "something is there that nobody appended"
        if self.log.start_offset < oldest:
            self.stored = [stored_of(data) for data in found]
        else:
            self.stored = self.stored[: len(kept)]
        # From here on readers are shown all of this and resends of it are acknowledged.
        self.acked_end = self.log.written_end

    # --- what holds --------------------------------------------------------------------------------

    @rule(place=st.integers(0, 200), bytes_max=st.sampled_from([0, 1, 300, 1_000, EVERYTHING]), data=st.data())
    def read_anywhere(self, place: int, bytes_max: int, data: st.DataObject) -> None:
        start, end = self.log.start_offset, self.acked_end
        offset = start + place % (end - start + 1)
        batches = [bytes(batch) for batch in self.log.read(Offset(offset), bytes_max, Offset(end))]
        visible = [b for b in self.stored if offset < b.next_offset <= end]
        assert batches == [b.data for b in visible[: len(batches)]]
        assert bool(batches) == bool(visible), "a reader is told that nothing is there"
        assert len(batches) <= 1 or sum(map(len, batches)) <= bytes_max
        for outside in (start - 1, end + 1):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(Offset(outside), bytes_max, Offset(end))

    @rule(timestamp_ms=st.integers(-1, 52))
    def find_by_time(self, timestamp_ms: int) -> None:
        found = self.log.first_at_or_after(TimestampMs(timestamp_ms))
        end = self.log.written_end
        assert found == next((b.base_offset for b in self.stored if b.timestamp_ms >= timestamp_ms), end)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self._read_all(self.log.start_offset) == [b.data for b in self.stored]
        assert self.log.written_end == (self.stored[-1].next_offset if self.stored else self.acked_end)
        assert self.log.holes() == []
        assert self.log.next_readable(Offset(0)) == self.log.start_offset

    def _read_all(self, offset: int) -> list[bytes]:
        found: list[bytes] = []
        while batches := self.log.read(Offset(offset), 500, self.log.written_end):
            found += [bytes(batch) for batch in batches]
            offset = record_batch.header(batches[-1]).next_offset
        return found


def stored_of(data: bytes) -> Stored:
    head = record_batch.header(data)
    return Stored(head.base_offset, head.next_offset, head.max_timestamp_ms, data)


TestLogKeepsWhatItPromised = LogMachine.TestCase
TestLogKeepsWhatItPromised.settings = examples(60, 1_500)
