"""Torn tails byte by byte, indexes that are gone or wrong, and segments a crash left half begun."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.logs import OpenLog, abandon, flip, frame_positions, overwrite, path_of
from testkit.shadow_disk import copy_of
from testkit.sizes import dice, scaled

from holdfast.model.entries import KIND_BATCH, KIND_COMMAND
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage import frames, index
from holdfast.storage.entries import note
from holdfast.storage.index import SparseIndex
from holdfast.storage.log import PartitionLog


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenLog]:
    log = OpenLog(tmp_path / "log")
    yield log
    log.close()


# --- torn tails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["cut", "zeros", "garbage"])
def test_crash_in_the_middle_of_any_write_costs_nothing_acknowledged(tmp_path: Path, tail: str) -> None:
    """The unsynced end is cut, zeroed or garbled from every single byte on."""
    rolled = dice(f"torn tail {tail}")
    opened = OpenLog(tmp_path / "log")
    for number in range(3):
        opened.append_synced(b"acknowledged %d" % number)
    synced = opened.log.active.size
    opened.append(b"unsynced one", b"unsynced two")
    opened.append(b"unsynced three")
    file = opened.segment_files()[0]
    whole = file.read_bytes()
    ends = [end for _, end in frame_positions(file)]
    abandon(opened.log)
    for position in range(synced, len(whole) + 1, scaled(3, 1)):
        rest = len(whole) - position
        behind = {"cut": b"", "zeros": bytes(rest), "garbage": rolled.randbytes(rest)}[tail]
        found = whole[:position] + behind
        file.write_bytes(found)
        log, recovery = PartitionLog.open(opened.directory)
        batches = sum(found[:end] == whole[:end] for end in ends)
        assert recovery.holes == []
        assert log.active.size == ends[batches - 1]
        assert recovery.torn_bytes == len(found) - ends[batches - 1]
        assert log.written_end == {3: 3, 4: 5, 5: 6}[batches]
        again = log.append(values_batch(b"after the crash"), Term(1))
        assert again == log.written_end - 1, "an offset is skipped or given twice"
        abandon(log)
        for path in opened.index_files():
            path.unlink()


def test_hole_with_whole_batches_behind_it_is_a_torn_tail(opened: OpenLog) -> None:
    """Pages reach the disk in any order: a later batch may be whole where an earlier one is not."""
    opened.append_synced(b"acknowledged")
    for number in range(5):
        opened.append(b"unsynced %d" % number)
    file = opened.segment_files()[0]
    start, end = frame_positions(file)[2]
    overwrite(file, start, bytes(end - start))
    recovery = opened.reopen()
    assert recovery.holes == [] and recovery.torn_bytes > 0
    expected = {0: b"acknowledged", 1: b"unsynced 0"}
    assert opened.served() == (expected, [])
    # What takes the place of the lost batch is exactly as long: what stood behind it must not join on.
    expected[opened.append_synced(b"in place 1")] = b"in place 1"
    for _ in range(2):
        opened.reopen()
        assert opened.served() == (expected, []), "batches that were cut off are back"


def test_batch_appended_during_a_sync_is_not_counted_as_synced_by_it(opened: OpenLog) -> None:
    """If it were, its torn bytes would be called damage to acknowledged messages."""
    opened.append(b"acknowledged")
    point = opened.log.sync_point()
    opened.append(b"during the sync")
    for fd in point.files:
        os.fdatasync(fd)
    opened.log.synced(point)
    opened.append(b"after the sync")
    file = opened.segment_files()[0]
    start, end = frame_positions(file)[1]
    overwrite(file, start, bytes(end - start))
    recovery = opened.reopen()
    assert recovery.holes == [] and recovery.torn_bytes > 0
    assert opened.served() == ({0: b"acknowledged"}, [])


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_segments_begun_before_the_one_before_was_synced_are_dropped_with_its_torn_tail(
    tmp_path: Path, lost: int
) -> None:
    """Three segments were begun between two syncs and the first of them lost its end: nothing of it was promised."""
    opened = OpenLog(tmp_path / "log", segment_bytes=1)
    opened.append_synced(b"acknowledged")
    for number in range(4):
        opened.append(b"unsynced %d" % number)
    file = opened.segment_files()[lost]
    file.write_bytes(file.read_bytes()[:-5])
    recovery = opened.reopen()
    assert recovery.holes == [], "what was never acknowledged is called damage"
    assert len(recovery.deleted_segments) == 4 - lost
    expected = [b"acknowledged", *[b"unsynced %d" % number for number in range(lost - 1)]]
    assert opened.served() == (dict(enumerate(expected)), [])
    assert opened.append_synced(b"goes on") == len(expected)
    opened.reopen()
    assert opened.served() == (dict(enumerate([*expected, b"goes on"])), [])
    opened.close()


def test_segment_that_was_only_begun_is_a_valid_end(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=1)
    opened.append_synced(b"one")
    opened.append(b"two")
    opened.segment_files()[1].write_bytes(b"")
    recovery = opened.reopen()
    assert recovery.holes == [] and recovery.deleted_segments == []
    assert opened.append_synced(b"two again") == 1
    assert opened.served() == ({0: b"one", 1: b"two again"}, [])
    opened.close()


def test_what_was_found_after_a_kill_is_synced_before_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves unsynced batches in memory. Once a reader saw them, a power loss may not take them."""
    opened = OpenLog(tmp_path / "log", segment_bytes=1)
    opened.append_synced(b"synced")
    for number in range(3):
        opened.append(b"%d" % number)
    unsynced = [path.name for path in opened.segment_files()[1:]]
    abandon(opened.log)
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(path_of(fd).name)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    log, recovery = PartitionLog.open(opened.directory, segment_bytes=1)
    assert recovery == (0, [], [])
    assert log.synced_end == 4
    assert set(unsynced) <= set(synced), "some of what readers see now is not on the disk"
    assert opened.directory.name in synced
    abandon(log)


def test_payload_that_looks_like_a_frame_never_becomes_a_message(tmp_path: Path) -> None:
    """Somebody backs up a segment through the broker; damage to that message must not bring its content alive."""
    other = OpenLog(tmp_path / "other")
    for number in range(6):
        other.append_synced(b"message of another log %d" % number)
    backup = other.segment_files()[0].read_bytes()
    other.close()
    opened = OpenLog(tmp_path / "log")
    opened.append_synced(b"first")
    opened.append_synced(backup)
    opened.append_synced(b"last")
    file = opened.segment_files()[0]
    start, end = frame_positions(file)[1]
    copies = tmp_path / "copies"
    for position in range(start, end, scaled(29, 3)):
        copy = copy_of(opened.directory, copies)
        flip(copy / file.name, position)
        damaged = OpenLog(copy)
        assert damaged.served() == ({0: b"first", 2: b"last"}, [(1, 2)]), f"byte {position}"
        damaged.close()
        shutil.rmtree(copy)
    # The same in a tail that was never synced.
    opened.append(backup)
    data = file.read_bytes()
    tail_start, tail_end = frame_positions(file)[3]
    for cut in range(tail_start + 1, tail_end, scaled(29, 3)):
        copy = copy_of(opened.directory, copies)
        (copy / file.name).write_bytes(data[:tail_start] + bytes(40) + data[tail_start + 40 : cut])
        torn = OpenLog(copy)
        assert torn.recovery.holes == []
        assert torn.served() == ({0: b"first", 1: backup, 2: b"last"}, []), f"cut at {cut}"
        torn.close()
        shutil.rmtree(copy)
    opened.close()


# --- indexes ------------------------------------------------------------------------------------------


def sealed_log(directory: Path) -> tuple[OpenLog, dict[int, bytes]]:
    opened = OpenLog(directory, segment_bytes=500)
    expected: dict[int, bytes] = {}
    for number in range(20):
        value = b"message %02d " % number * (1 + number % 4)
        expected[opened.append_synced(value, timestamp_ms=1_000 + 10 * number)] = value
    assert len(opened.segment_files()) > 4
    return opened, expected


SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped where the end is": lambda path: flip(path, 24),
    "flipped where the newest time is": lambda path: flip(path, 45),
    "of another size": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "of another format": lambda path: path.write_bytes(b"NOPE" + path.read_bytes()[4:]),
    "half written": lambda path: path.rename(path.with_suffix(".index.tmp")),
}


@pytest.mark.parametrize("which", ["all", "first", "last"])
def test_message_is_found_without_a_trustworthy_index(tmp_path: Path, which: str) -> None:
    for spoil in SPOILED:
        check_without_index(tmp_path / spoil, spoil, which)


def check_without_index(place: Path, spoil: str, which: str) -> None:
    opened, expected = sealed_log(place)
    files = opened.index_files()
    for path in {"all": files, "first": files[:1], "last": files[-1:]}[which]:
        SPOILED[spoil](path)
    recovery = opened.reopen()
    assert recovery == (0, [], [])
    assert opened.served() == (expected, [])
    for number in range(20):
        assert opened.log.first_at_or_after(TimestampMs(1_000 + 10 * number - 5)) == number
    assert len(opened.index_files()) >= len(opened.segment_files()) - 1, "it is not rebuilt"
    opened.close()


def test_index_that_vanishes_while_the_broker_runs_is_missed_by_nobody(tmp_path: Path) -> None:
    opened, expected = sealed_log(tmp_path / "log")
    opened.reopen()
    for path in opened.index_files():
        path.unlink()
    assert opened.served() == (expected, [])
    assert opened.served(1) == (expected, [])
    opened.close()


@pytest.mark.parametrize("interval", [1, 150, 16_384])
def test_time_is_found_where_clocks_went_back_and_forth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    monkeypatch.setattr(index, "INDEX_INTERVAL_BYTES", interval)
    rolled = dice(f"time {interval}")
    opened = OpenLog(tmp_path / "log", segment_bytes=900)
    times = [rolled.randint(0, 100) for _ in range(60)]
    for number, timestamp_ms in enumerate(times):
        opened.append_synced(b"%d" % number, timestamp_ms=timestamp_ms)
    for _ in range(2):
        for wanted in range(-1, 103):
            expected = next((i for i, timestamp_ms in enumerate(times) if timestamp_ms >= wanted), len(times))
            assert opened.log.first_at_or_after(TimestampMs(wanted)) == expected
        opened.reopen()
    opened.close()


def test_index_says_what_it_was_told(tmp_path: Path) -> None:
    rolled = random.Random(7)
    made = SparseIndex()
    position = offset = 0
    runs = [(LogIndex(7), Term(1)), (LogIndex(300), Term(2**40))]
    for number in range(500):
        made.add(Offset(offset), position, TimestampMs(rolled.randint(0, 10**12)), LogIndex(7 + number))
        offset += rolled.randint(1, 1_000)
        position += rolled.randint(97, 100_000)
    file = tmp_path / "x.index"
    made.save(file, position, Offset(offset), LogIndex(507), sealed=True, term_runs=runs)
    assert SparseIndex.load(file, position + 1) is None
    loaded = SparseIndex.load(file, position)
    assert loaded is not None
    again, end_offset, end_index = loaded
    assert (end_offset, end_index, again.newest_ms) == (offset, 507, made.newest_ms)
    assert (again.offsets, again.positions, again.times) == (made.offsets, made.positions, made.times)
    assert (again.log_indexes, again.term_runs) == (made.log_indexes, runs)
    body = file.read_bytes()
    for _ in range(scaled(200, 5_000)):
        broken = bytearray(body)
        broken[rolled.randrange(len(broken))] ^= 1 << rolled.randrange(8)
        file.write_bytes(broken)
        assert SparseIndex.load(file, position) is None


# --- frames -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (KIND_BATCH, bytes(values_batch(b"one", b"two", b"three"))),
        (KIND_COMMAND, note(Offset(77), b"")),
        (KIND_COMMAND, note(Offset(77), b"abc")),
        (KIND_COMMAND, note(Offset(77), b"a body that is longer than what the frame covers")),
    ],
)
def test_frame_is_refused_with_any_bit_turned_over(kind: int, payload: bytes) -> None:
    head = frames.frame_header(payload, 5_000, LogIndex(7), Term(3), 4_000, kind)
    whole = head + payload
    found = frames.frame_at(memoryview(whole), 0, file_position=5_000)
    assert found is not None and frames.payload_is_sound(memoryview(whole), found, shift=5_000)
    assert (found.log_index, found.term, found.synced, found.end) == (7, 3, 4_000, 5_000 + len(whole))
    for position in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            view = memoryview(bytes(broken))
            frame = frames.frame_at(view, 0, file_position=5_000)
            assert frame is None or not frames.payload_is_sound(view, frame, shift=5_000), (position, bit)
    for cut in range(len(whole)):
        view = memoryview(whole[:cut])
        frame = frames.frame_at(view, 0, file_position=5_000)
        assert frame is None or not frames.payload_is_sound(view, frame, shift=5_000)
    assert frames.frame_at(memoryview(whole), 0, file_position=5_001) is None, "a copy elsewhere counts as a frame"
