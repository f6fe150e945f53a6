"""One partition's log against a list, through everything that can happen to it, in any order.

Appends of a leader and of a follower, notes, truncations, resets, syncs, retention, kills, and power losses, also in
the middle of a truncation or a reset. What must hold after every reopening: each entry that was ever reported as
synced, and not taken back, is there with its number, its offset, its term and its bytes; what else is there was
appended, in the order of appending; no gap, nothing twice; and a torn tail is never called damage, for it is none.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from testkit.batches import placed_batch, values_batch
from testkit.crashes import Crashed
from testkit.logs import abandon, entries_of
from testkit.shadow_disk import ShadowDisk
from testkit.sizes import examples, in_memory

from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, KIND_MEMBERS, KIND_REIGN, Entry
from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage import index, segment_reading
from holdfast.storage.entries import BadEntry, EntryGone, note
from holdfast.storage.log import PartitionLog, SyncPoint
from holdfast.wire import record_batch

EVERYTHING = 1 << 40
LENGTHS = [0, 1, 40, 150, 900]
NOTE_KINDS = [KIND_REIGN, KIND_MEMBERS, KIND_COMMAND]
# More calls than a truncation or a reset makes: then the power stays on.
CRASH_AT = st.none() | st.integers(0, 20)


class Stored(NamedTuple):
    kind: int
    term: int
    base_offset: int
    next_offset: int
    timestamp_ms: int
    data: bytes


class LogMachine(RuleBasedStateMachine):
    """The model is `stored`, by entry number; everything up to `acked` was promised to somebody."""

    @initialize(
        segment_bytes=st.sampled_from([1, 300, 700, 2_000, 10**9]),
        index_interval=st.sampled_from([1, 200, 16_384]),
        read_ahead=st.sampled_from([100, 400, 65_536]),
    )
    def open_new(self, segment_bytes: int, index_interval: int, read_ahead: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-log-", dir=in_memory()))
        self.patches = [
            mock.patch.object(index, "INDEX_INTERVAL_BYTES", index_interval),
            mock.patch.object(segment_reading, "_READ_AHEAD_BYTES", read_ahead),
        ]
        for patch in self.patches:
            patch.start()
        self.generation = 0
        self.segment_bytes = segment_bytes
        self.term = 1
        self.stored: dict[int, Stored] = {}
        # Where the log goes on.
        self.next_index, self.next_offset = 1, 0
        # Entries that retention deleted; their files may be back after a power loss.
        self.expired: dict[int, Stored] = {}
        # The term of the entry before everything that is known.
        self.term_before = (0, 0)
        self.acked = 0
        self.point: SyncPoint | None = None
        self.point_covers = 0
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

    # --- appending ---------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 5),
        length=st.sampled_from(LENGTHS),
        timestamp_ms=st.integers(0, 50),
        seed=st.integers(0, 2**30),
    )
    def append(self, count: int, length: int, timestamp_ms: int, seed: int) -> None:
        values = [random.Random(seed + i).randbytes(length) for i in range(count)]
        batch = values_batch(*values, timestamp_ms=timestamp_ms)
        base_offset = self.log.append(batch, Term(self.term))
        assert base_offset == self.next_offset, "offsets have a gap or repeat"
        self._store(KIND_BATCH, bytes(batch), count, timestamp_ms)

    @rule(kind=st.sampled_from(NOTE_KINDS), length=st.sampled_from(LENGTHS))
    def append_note(self, kind: int, length: int) -> None:
        body = random.Random(self.next_index).randbytes(length)
        assert self.log.append_note(kind, body, Term(self.term)) == self.next_index, "an entry is skipped or repeats"
        self._store(kind, note(Offset(self.next_offset), body), 0, -1)

    @rule(seed=st.integers(0, 2**30), spoil=st.sampled_from([None, None, None, "bits", "offset", "epoch"]))
    def append_entries(self, seed: int, spoil: str | None) -> None:
        """As a follower gets them: many at once, of several terms."""
        rolled = random.Random(seed)
        found: list[tuple[int, bytes, int, int, int]] = []
        offset, term = self.next_offset, self.term
        for _ in range(rolled.choice([0, 1, 2, 10, 30])):
            term += rolled.random() < 0.1
            values = [rolled.randbytes(rolled.choice(LENGTHS)) for _ in range(rolled.randrange(4))]
            if values:
                timestamp_ms = rolled.randrange(50)
                payload = placed_batch(offset, term, *values, timestamp_ms=timestamp_ms)
                found.append((KIND_BATCH, payload, len(values), timestamp_ms, term))
            else:
                payload = note(Offset(offset), rolled.randbytes(rolled.choice(LENGTHS)))
                found.append((rolled.choice(NOTE_KINDS), payload, 0, -1, term))
            offset += len(values)
        entries = [Entry(Term(term), kind, memoryview(payload)) for kind, payload, _, _, term in found]
        if spoil is not None and entries:
            place = rolled.randrange(len(entries))
            entries[place] = spoiled(entries[place], spoil, rolled)
            before = [path.read_bytes() for path in sorted(self.directory.glob("*.log"))]
            with pytest.raises(BadEntry):
                self.log.append_placed(self.log.checked(entries))
            assert [path.read_bytes() for path in sorted(self.directory.glob("*.log"))] == before
            return
        self.log.append_placed(self.log.checked(entries))
        self.term = term
        for kind, payload, count, timestamp_ms, its_term in found:
            self._store(kind, payload, count, timestamp_ms, its_term)

    @rule()
    def begin_term(self) -> None:
        self.term += 1

    def _store(self, kind: int, data: bytes, count: int, timestamp_ms: int, term: int | None = None) -> None:
        following = self.next_offset + count
        its_term = self.term if term is None else term
        self.stored[self.next_index] = Stored(kind, its_term, self.next_offset, following, timestamp_ms, data)
        self.next_index, self.next_offset = self.next_index + 1, following

    # --- taking back -------------------------------------------------------------------------------

    @rule(place=st.integers(0, 40), crash_at=CRASH_AT, seed=st.integers(0, 2**30))
    def truncate(self, place: int, crash_at: int | None, seed: int) -> None:
        first = min(self.stored, default=self.next_index)
        cut = max(self.next_index - place, first)
        if place == 40:
            with pytest.raises(EntryGone):
                self.log.truncate_from(LogIndex(self.log.first_index - 1))
            return
        self.acked = min(self.acked, cut - 1)
        self.point_covers = min(self.point_covers, cut - 1)
        try:
            with self.disk.fail_at(crash_at):
                self.log.truncate_from(LogIndex(cut))
        except Crashed:
            self.lose_power_and_reopen(seed)
            return
        self._forget_from(cut)
        assert self.log.synced_index == self.acked, "more counts as synced than is there, or less"

    @rule(
        ahead=st.integers(1, 50),
        crash_at=CRASH_AT,
        seed=st.integers(0, 2**30),
    )
    def reset(self, ahead: int, crash_at: int | None, seed: int) -> None:
        place = (self.next_index + ahead, self.next_offset + 2 * ahead, self.term)
        try:
            with self.disk.fail_at(crash_at):
                self.log.reset(LogIndex(place[0]), Offset(place[1]), Term(place[2]))
        except Crashed:
            self.lose_power_and_reopen(seed, instead=place)
            return
        self._begin_anew(*place)

    def _begin_anew(self, next_index: int, next_offset: int, previous_term: int) -> None:
        self.stored, self.expired = {}, {}
        self.next_index, self.next_offset = next_index, next_offset
        self.term_before = (next_index - 1, previous_term)
        self.acked = next_index - 1

    def _forget_from(self, cut: int) -> None:
        if cut in self.stored:
            self.next_index, self.next_offset = cut, self.stored[cut].base_offset
        self.stored = {number: entry for number, entry in self.stored.items() if number < cut}

    # --- syncing and retention ---------------------------------------------------------------------

    @precondition(lambda self: self.point is None)
    @rule()
    def begin_sync(self) -> None:
        self.point = self.log.sync_point()
        self.point_covers = self.next_index - 1

    @precondition(lambda self: self.point is not None)
    @rule()
    def end_sync(self) -> None:
        """The disk is done with what `begin_sync` asked for, and anything may have happened meanwhile."""
        assert self.point is not None
        for fd in self.point.files:
            os.fstat(fd)  # it is still open
            self.disk.sync(fd)
        if self.point.directory is not None:
            self.log.sync_directory()
        self.log.synced(self.point)
        self.acked = max(self.acked, self.point_covers)
        assert self.log.synced_index == self.acked
        assert self.log.synced_end == self._offset_behind(self.acked)
        self.point = None

    @rule(older_than_ms=st.none() | st.integers(0, 51), bytes_max=st.none() | st.integers(1, 3_000))
    def expire(self, older_than_ms: int | None, bytes_max: int | None) -> None:
        before, acked_end = self.log.first_index, Offset(self._offset_behind(self.acked))
        limit = None if older_than_ms is None else TimestampMs(older_than_ms)
        begin = self.log.expirable(older_than_ms=limit, bytes_max=bytes_max)
        if begin > self.log.start_offset:
            self.log.drop_below(min(begin, acked_end), through_index=LogIndex(self.acked), renews=True)
        first = self.log.first_index
        assert before <= first <= max(before, self.acked + 1), "retention took what was not committed yet"
        if older_than_ms is None and bytes_max is None:
            assert first == before
        gone = {number: entry for number, entry in self.stored.items() if number < first}
        if bytes_max is None and older_than_ms is not None:
            assert all(entry.timestamp_ms < older_than_ms for entry in gone.values())
        if older_than_ms is None and bytes_max is not None and first > before:
            assert self.log.size_bytes >= bytes_max, "retention took more than it was told to"
        self.expired |= gone
        self.stored = {number: entry for number, entry in self.stored.items() if number >= first}

    # --- the end of the process --------------------------------------------------------------------

    @rule()
    def close_and_reopen(self) -> None:
        if self.point is None:
            self.begin_sync()
        self.end_sync()
        self.begin_sync()
        self.end_sync()
        self.log.close()
        self._reopened(self.directory, self.next_index - 1)

    @rule()
    def kill_and_reopen(self) -> None:
        """The process is gone, the page cache is not: everything that was written is still there."""
        abandon(self.log)
        self._reopened(self.directory, self.next_index - 1)

    @rule(seed=st.integers(0, 2**30))
    def lose_power_and_reopen(self, seed: int, instead: tuple[int, int, int] | None = None) -> None:
        self.generation += 1
        image = self.root / str(self.generation)
        self.disk.image(image, random.Random(seed))
        with contextlib.suppress(OSError):  # the power went while a file was renamed
            abandon(self.log)
        self.disk.move_to(image)
        self.directory = image
        self._reopened(image, self.acked, instead=instead)

    def _reopened(self, directory: Path, promised: int, instead: tuple[int, int, int] | None = None) -> None:
        self.point = None
        self.log, recovery = PartitionLog.open(directory, segment_bytes=self.segment_bytes)
        assert recovery.holes == [], "a torn tail is called damage"
        assert self.log.synced_index == self.log.last_index and self.log.synced_end == self.log.written_end
        if instead is not None and self.log.first_index == instead[0]:
            self._begin_anew(*instead)
            return
        assert self.log.last_index >= promised, "acknowledged entries are gone"
        known = self.expired | self.stored
        first = int(self.log.first_index)
        oldest = min(self.stored, default=self.next_index)
        assert first <= oldest, "entries are gone from the beginning"
        expected = [as_entry(known[number]) for number in range(first, self.log.last_index + 1)]
        assert entries_of(self.log) == expected, "acknowledged entries are changed, or some are that nobody appended"
        if self.log.last_index + 1 < self.next_index:
            self.next_index = self.log.last_index + 1
            self.next_offset = self._offset_behind(self.log.last_index)
        # Deleted segments may be back after a power loss; what was there before is behind them.
        self.stored = {number: entry for number, entry in known.items() if first <= number <= self.log.last_index}
        self.expired = {number: entry for number, entry in known.items() if number < first}
        # From here on readers are shown all of this and resends of it are acknowledged.
        self.acked = self.next_index - 1

    # --- what holds --------------------------------------------------------------------------------

    @rule(place=st.integers(0, 200), bytes_max=st.sampled_from([0, 1, 300, 1_000, EVERYTHING]))
    def read_anywhere(self, place: int, bytes_max: int) -> None:
        start, end = self.log.start_offset, self._offset_behind(self.acked)
        offset = start + place % (end - start + 1)
        batches = [bytes(batch) for batch in self.log.read(Offset(offset), bytes_max, Offset(end))]
        visible = [b for b in self._batches() if offset < b.next_offset <= end]
        assert batches == [b.data for b in visible[: len(batches)]]
        assert bool(batches) == bool(visible), "a reader is told that nothing is there"
        assert len(batches) <= 1 or sum(map(len, batches)) <= bytes_max
        for outside in (start - 1, end + 1):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(Offset(outside), bytes_max, Offset(end))

    @rule(
        place=st.integers(0, 100),
        length=st.integers(0, 20),
        bytes_max=st.sampled_from([0, 1, 300, 1_000, EVERYTHING]),
    )
    def read_entries_anywhere(self, place: int, length: int, bytes_max: int) -> None:
        first = self.log.first_index + place % (self.next_index - self.log.first_index + 1)
        last = first + length
        entries = self.log.read_entries(LogIndex(first), bytes_max, LogIndex(last))
        found = [entry._replace(payload=bytes(entry.payload)) for entry in entries]
        there = range(first, min(last + 1, self.next_index))
        assert found == [as_entry(self.stored[number]) for number in there[: len(found)]]
        assert bool(found) == bool(there), "a follower is told that nothing is there"
        assert len(found) <= 1 or sum(len(entry.payload) for entry in found) <= bytes_max
        with pytest.raises(EntryGone):
            self.log.read_entries(LogIndex(self.log.first_index - 1), bytes_max, LogIndex(last))

    @rule(timestamp_ms=st.integers(-1, 52))
    def find_by_time(self, timestamp_ms: int) -> None:
        found = self.log.first_at_or_after(TimestampMs(timestamp_ms))
        end = self.log.written_end
        assert found == next((b.base_offset for b in self._batches() if b.timestamp_ms >= timestamp_ms), end)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self._read_all(self.log.start_offset) == [b.data for b in self._batches()]
        assert self.log.written_end == self.next_offset and self.log.last_index == self.next_index - 1
        assert self.log.first_index == min(self.stored, default=self.next_index)
        assert self.log.holes() == []
        assert self.log.next_readable(Offset(0)) == self.log.start_offset

    @invariant()
    def terms_are_known(self) -> None:
        if not hasattr(self, "log"):
            return
        first = self.log.first_index
        before = self.expired[first - 1].term if first - 1 in self.expired else self.term_before[1]
        assert self.log.previous_term == before
        runs: list[tuple[int, int]] = []
        for number, entry in sorted(self.stored.items()):
            if not runs or runs[-1][1] != entry.term:
                runs.append((number, entry.term))
        assert self.log.term_runs() == runs

    def _batches(self) -> list[Stored]:
        return [entry for _, entry in sorted(self.stored.items()) if entry.kind == KIND_BATCH]

    def _offset_behind(self, number: int) -> int:
        known = self.expired | self.stored
        if number in known:
            return known[number].next_offset
        return known[number + 1].base_offset if number + 1 in known else self.next_offset

    def _read_all(self, offset: int) -> list[bytes]:
        found: list[bytes] = []
        while batches := self.log.read(Offset(offset), 500, self.log.written_end):
            found += [bytes(batch) for batch in batches]
            offset = record_batch.header(batches[-1]).next_offset
        return found


def as_entry(stored: Stored) -> Entry:
    return Entry(Term(stored.term), stored.kind, stored.data)


def spoiled(entry: Entry, how: str, rolled: random.Random) -> Entry:
    """The entry as a broken cable or a confused leader would send it."""
    payload = bytearray(entry.payload)
    if how == "epoch" and entry.kind == KIND_BATCH:
        return entry._replace(term=Term(entry.term + 1))
    if how == "bits":
        payload[rolled.randrange(len(payload))] ^= 1 << rolled.randrange(8)
    else:
        payload[7] ^= 1
    return entry._replace(payload=payload)


TestLogKeepsWhatItPromised = LogMachine.TestCase
TestLogKeepsWhatItPromised.settings = examples(60, 1_500)
