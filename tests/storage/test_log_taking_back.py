"""Truncations and resets with the power going at every single step, and while a sync is under way."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.crashes import Crashed
from testkit.logs import OpenLog, abandon, entries_of, flip, frame_positions
from testkit.shadow_disk import ShadowDisk
from testkit.sizes import in_memory, scaled

from holdfast.model.errors import DiskFull, StorageFailed
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage.entries import DamagedEntries, EntryGone
from holdfast.storage.log import PartitionLog

ENTRIES = 12
SEGMENT_BYTES = 500


def filled(opened: OpenLog, *, synced: int = ENTRIES) -> None:
    """Twelve entries in several segments, every third of them a note, terms 1 to 4; the first `synced` are durable."""
    for number in range(1, ENTRIES + 1):
        term = Term(1 + number // 4)
        if number % 3 == 0:
            opened.log.append_note(2, b"note %d" % number, term)
        else:
            opened.log.append(values_batch(b"message %d" % number, timestamp_ms=number), term)
        if number <= synced:
            opened.sync()


class Crashing:
    """The same log again and again, each time with a power loss one call later."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = 0

    def run(
        self, change: Callable[[PartitionLog], None], *, synced: int, calls: int | None, seed: int
    ) -> tuple[PartitionLog, bool]:
        """Returns the log as it is found afterwards, and whether the change was done before the power went."""
        self.runs += 1
        place = self.root / f"run {self.runs}"
        (place / "log").mkdir(parents=True)
        disk = ShadowDisk(place / "log")
        try:
            opened = OpenLog(place / "log", SEGMENT_BYTES)
            filled(opened, synced=synced)
            is_done = False
            with contextlib.suppress(Crashed), disk.fail_at(calls):
                change(opened.log)
                is_done = True
            disk.image(place / "image", random.Random(seed))
            with contextlib.suppress(OSError):
                abandon(opened.log)
        finally:
            disk.close()
        log, recovery = PartitionLog.open(place / "image", segment_bytes=SEGMENT_BYTES)
        assert recovery.holes == [], "what a crash left is called damage"
        return log, is_done


@pytest.fixture
def crashing() -> Iterator[Crashing]:
    root = Path(tempfile.mkdtemp(prefix="holdfast-crashing-", dir=in_memory()))
    yield Crashing(root)
    shutil.rmtree(root)


@pytest.fixture
def whole(tmp_path: Path) -> list[tuple[int, int, bytes]]:
    opened = OpenLog(tmp_path / "whole", SEGMENT_BYTES)
    filled(opened)
    assert 3 <= len(opened.segment_files()) <= 4, "the tests need several segments of several entries"
    found = [(int(entry.term), entry.kind, bytes(entry.payload)) for entry in entries_of(opened.log)]
    opened.close()
    return found


def test_power_loss_at_any_step_of_a_truncation_leaves_the_old_end_or_a_shorter_one(
    crashing: Crashing, whole: list[tuple[int, int, bytes]]
) -> None:
    for cut in range(1, ENTRIES + 1, scaled(2, 1)):
        for synced in (ENTRIES, 5):
            for calls in range(40):
                is_done = False
                for seed in range(scaled(5, 20)):
                    change = methodcaller("truncate_from", LogIndex(cut))
                    log, is_done = crashing.run(change, synced=synced, calls=calls, seed=seed)
                    found = [tuple(entry) for entry in entries_of(log)]
                    assert found == whole[: len(found)], "something else is there than before"
                    assert len(found) >= min(cut - 1, synced), "entries before the cut are gone"
                    if is_done:
                        assert len(found) <= cut - 1, "entries that were taken back are there again"
                    log.append(values_batch(b"new"), Term(9))
                    assert len(entries_of(log)) == len(found) + 1
                    abandon(log)
                if is_done:
                    break
            assert is_done


def test_power_loss_at_any_step_of_a_reset_leaves_all_or_nothing(
    crashing: Crashing, whole: list[tuple[int, int, bytes]]
) -> None:
    outcomes = set()
    for synced in (ENTRIES, 5):
        for calls in range(40):
            is_done = False
            for seed in range(scaled(5, 20)):
                log, is_done = crashing.run(
                    lambda log: log.reset(LogIndex(101), Offset(70), Term(7)), synced=synced, calls=calls, seed=seed
                )
                is_new = log.first_index == 101
                outcomes.add((is_new, is_done))
                if is_new:
                    assert (log.last_index, log.start_offset, log.written_end) == (100, 70, 70)
                    assert (log.previous_term, log.term_runs(), log.synced_index) == (7, [], 100)
                else:
                    assert not is_done, "what was thrown away is back"
                    found = [tuple(entry) for entry in entries_of(log)]
                    assert found == whole[: len(found)] and len(found) >= synced, "promised entries are gone"
                assert [path.suffix for path in log.directory.iterdir() if path.suffix not in (".log", ".index")] == []
                abandon(log)
            if is_done:
                break
        assert is_done
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_sync_under_way_does_not_vouch_for_what_was_taken_back(tmp_path: Path) -> None:
    """The sync began before the truncation; what took the place of the old entries is not on the disk."""
    for cut in range(1, ENTRIES + 1):
        opened = OpenLog(tmp_path / str(cut), SEGMENT_BYTES)
        filled(opened, synced=2)
        point = opened.log.sync_point()
        opened.log.truncate_from(LogIndex(cut))
        assert opened.log.synced_index == min(2, cut - 1)
        for _ in range(ENTRIES):
            opened.log.append(values_batch(b"new"), Term(9))
        for fd in point.files:
            os.fdatasync(fd)  # none of them was closed meanwhile
        opened.log.synced(point)
        assert opened.log.synced_index == cut - 1
        opened.sync()
        assert opened.log.synced_index == opened.log.last_index == cut - 1 + ENTRIES
        assert opened.log.synced_end == opened.log.written_end
        opened.reopen()
        assert opened.log.last_index == cut - 1 + ENTRIES and opened.recovery.holes == []
        opened.close()


def test_sync_under_way_does_not_vouch_for_a_log_begun_anew(tmp_path: Path) -> None:
    for next_index in (5, 50):
        opened = OpenLog(tmp_path / str(next_index), SEGMENT_BYTES)
        filled(opened, synced=2)
        point = opened.log.sync_point()
        opened.log.reset(LogIndex(next_index), Offset(40), Term(6))
        opened.append(b"not on the disk yet")
        for fd in point.files:
            os.fdatasync(fd)
        opened.log.synced(point)
        assert (opened.log.synced_index, opened.log.synced_end) == (next_index - 1, 40)
        opened.sync()
        assert (opened.log.synced_index, opened.log.synced_end) == (next_index, 41)
        opened.reopen()
        assert opened.served() == ({40: b"not on the disk yet"}, [])
        opened.close()


def test_log_goes_on_behind_a_truncation(tmp_path: Path) -> None:
    for cut in range(1, ENTRIES + 2):
        opened = OpenLog(tmp_path / str(cut), SEGMENT_BYTES)
        filled(opened)
        kept = entries_of(opened.log)[: cut - 1]
        newest = max((number for number in range(1, cut) if number % 3), default=-1)
        opened.log.truncate_from(LogIndex(cut))
        for _ in range(2):
            assert entries_of(opened.log) == kept
            assert max(segment.newest_ms for segment in opened.log.segments) == newest
            for wanted in range(ENTRIES + 1):
                expected = sum(1 for number in range(1, min(wanted, cut)) if number % 3)
                assert opened.log.first_at_or_after(TimestampMs(wanted)) == expected
            runs = [(first, term) for first, term in [(1, 1), (4, 2), (8, 3), (12, 4)] if first < cut]
            assert opened.log.term_runs() == runs
            opened.reopen()
        opened.log.append_note(3, b"goes on", Term(9))
        opened.sync()
        assert opened.log.term_runs() == [*runs, (cut, 9)]
        opened.reopen()
        assert opened.log.term_runs() == [*runs, (cut, 9)]
        assert len(entries_of(opened.log)) == cut
        opened.close()


def test_follower_that_reads_on_is_not_sent_to_where_an_entry_was_before_the_truncation(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log")
    filled(opened)
    entries_of(opened.log, bytes_max=1)
    opened.log.truncate_from(LogIndex(4))
    for number in range(ENTRIES):
        opened.log.append_note(2, bytes(20 * number), Term(9))
    for index in range(3 + ENTRIES, 3, -1):
        (entry,) = opened.log.read_entries(LogIndex(index), 1, LogIndex(index))
        assert len(entry.payload) == 12 + 20 * (index - 4)
    assert opened.log.holes() == []
    opened.close()


def test_what_is_gone_cannot_be_truncated(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", SEGMENT_BYTES)
    filled(opened)
    opened.log.reset(LogIndex(20), Offset(5), Term(4))
    with pytest.raises(EntryGone):
        opened.log.truncate_from(LogIndex(19))
    opened.log.truncate_from(LogIndex(20))
    assert opened.log.last_index == 19
    opened.close()


@pytest.mark.parametrize("position", ["first", "sealed", "newest"])
def test_truncation_within_damage_is_refused_and_before_it_works(tmp_path: Path, position: str) -> None:
    """Nobody knows where in the damaged bytes an entry begins."""
    opened = OpenLog(tmp_path / "log", 1 << 30 if position == "newest" else SEGMENT_BYTES)
    filled(opened, synced=ENTRIES - 1)  # the last entry knows that the ones before were synced
    opened.sync()
    file = opened.segment_files()[0 if position == "first" else -2 if position == "sealed" else 0]
    places = frame_positions(file)
    for start, _ in places[1:3]:
        flip(file, start)
    first = next(s.base_index for s in opened.log.segments if s.path == file)
    for _ in range(2):
        with pytest.raises(DamagedEntries):
            opened.log.truncate_from(LogIndex(first + 2))
        assert opened.log.last_index == ENTRIES
        opened.reopen()
    opened.log.truncate_from(LogIndex(first + 1))
    assert opened.log.last_index == first and opened.log.holes() == []
    assert len(entries_of(opened.log)) == first
    opened.close()


def test_full_disk_refuses_a_truncation_that_needs_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenLog(tmp_path / "log", SEGMENT_BYTES)
    filled(opened)
    before = entries_of(opened.log)

    def no_room(*_: object) -> int:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "sendfile", no_room)
        with pytest.raises(DiskFull):
            opened.log.truncate_from(LogIndex(2))
    assert entries_of(opened.log) == before and opened.log.synced_index == ENTRIES
    assert list(opened.directory.glob("*.tmp")) == []
    opened.log.truncate_from(LogIndex(2))
    assert entries_of(opened.log) == before[:1]
    opened.close()


def test_failing_disk_ends_a_truncation_with_nothing_counted_that_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenLog(tmp_path / "log", SEGMENT_BYTES)
    filled(opened)

    def fail(*_: object) -> None:
        raise OSError(5, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageFailed):
            opened.log.truncate_from(LogIndex(ENTRIES))
    assert opened.log.synced_index == ENTRIES - 1
    opened.reopen()
    assert opened.log.last_index == ENTRIES
    opened.close()


def test_reset_leaves_the_same_log_usable(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", SEGMENT_BYTES)
    filled(opened)
    opened.log.reset(LogIndex(100), Offset(1_000), Term(8))
    assert (opened.log.first_index, opened.log.last_index, opened.log.previous_term) == (100, 99, 8)
    assert opened.log.synced_index == 99 and opened.log.synced_end == opened.log.written_end == 1_000
    assert opened.append_synced(b"first of the new") == 1_000
    for _ in range(2):
        assert opened.served() == ({1_000: b"first of the new"}, [])
        assert opened.log.term_runs() == [(100, 1)]
        assert opened.log.previous_term == 8
        opened.reopen()
    opened.close()
