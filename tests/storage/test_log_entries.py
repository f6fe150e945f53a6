"""Entries that readers never see, and the way of entries from a leader's log into a follower's."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.batches import placed_batch
from testkit.logs import OpenLog, abandon, entries_of, flip, frame_positions

from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, KIND_REIGN, Entry
from holdfast.model.errors import DamagedData, DiskFull
from holdfast.model.ids import LogIndex, Offset, Term
from holdfast.storage import segment_file
from holdfast.storage.doctor import examine
from holdfast.storage.entries import BadEntry, DamagedEntries, EntryGone, note, note_body
from holdfast.storage.examined import Kind
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import ENTRIES_PER_WRITE_MAX, NotCached

EVERYTHING = 1 << 40


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenLog]:
    log = OpenLog(tmp_path / "topics" / "t" / "0")
    yield log
    log.close()


def mixed(opened: OpenLog, count: int = 30) -> dict[int, bytes]:
    """Batches and notes in turns, each of them synced; returns the messages."""
    expected = {}
    for number in range(count):
        if number % 3:
            value = b"message %d " % number * (number % 5 + 1)
            expected[opened.append_synced(value)] = value
        else:
            opened.append_note(b"note %d" % number, term=1 + number // 10)
            opened.sync()
    return expected


def test_notes_take_no_offset_and_are_never_served(opened: OpenLog) -> None:
    expected = mixed(opened)
    assert sorted(expected) == list(range(20)), "a note took an offset"
    for _ in range(2):
        for bytes_max in (1, 200, EVERYTHING):
            assert opened.served(bytes_max) == (expected, [])
        assert (opened.log.first_index, opened.log.last_index) == (1, 30)
        entries = entries_of(opened.log)
        notes = [note_body(entry.payload) for entry in entries if entry.kind == KIND_COMMAND]
        assert notes == [b"note %d" % number for number in range(0, 30, 3)]
        opened.reopen()


def test_log_that_ends_with_notes_ends_for_readers_before_them(opened: OpenLog) -> None:
    opened.append_synced(b"message")
    for _ in range(3):
        opened.append_note(b"", kind=KIND_REIGN)
    opened.sync()
    assert (opened.log.written_end, opened.log.synced_end, opened.log.synced_index) == (1, 1, 4)
    assert opened.log.read(Offset(1), 100, Offset(1)) == []
    assert opened.append(b"next") == 1


def test_log_of_notes_alone_rolls_and_expires(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=100)
    for number in range(20):
        opened.append_note(b"%d" % number)
    opened.sync()
    assert len(opened.segment_files()) > 5
    opened.reopen()
    assert [note_body(entry.payload) for entry in entries_of(opened.log)] == [b"%d" % n for n in range(20)]
    assert opened.log.drop_below(Offset(0), through_index=LogIndex(6)) > 0
    assert 1 < opened.log.first_index <= 7, "an entry that may be needed was deleted"
    assert opened.append(b"first message") == 0
    opened.close()


def test_follower_holds_the_same_entries_byte_for_byte(tmp_path: Path, opened: OpenLog) -> None:
    mixed(opened, 60)
    follower = OpenLog(tmp_path / "follower", segment_bytes=700)
    index = LogIndex(1)
    while entries := opened.log.read_entries(index, 1_000, opened.log.last_index):
        follower.log.append_placed(follower.log.checked(entries))
        index = LogIndex(index + len(entries))
    assert entries_of(follower.log) == entries_of(opened.log)
    assert follower.log.term_runs() == opened.log.term_runs()
    assert follower.served() == opened.served()
    follower.sync()
    follower.reopen()
    assert entries_of(follower.log) == entries_of(opened.log)
    assert all(file.stat().st_size <= 800 for file in follower.segment_files())
    follower.close()


def many(count: int, first_offset: int = 0) -> list[Entry]:
    return [Entry(Term(3), KIND_BATCH, memoryview(placed_batch(first_offset + n, 3, b"%d" % n))) for n in range(count)]


def test_many_entries_are_few_writes(opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never more pieces than the system takes at once."""
    calls = []
    real = os.pwritev

    def counted(fd: int, pieces: list[bytes], position: int) -> int:
        calls.append(len(pieces))
        return real(fd, pieces, position)

    monkeypatch.setattr(os, "pwritev", counted)
    opened.log.append_placed(opened.log.checked(many(2 * ENTRIES_PER_WRITE_MAX + 1)))
    assert calls == [1024, 1024, 2]
    opened.log.append_placed(opened.log.checked([]))
    assert opened.log.last_index == 2 * ENTRIES_PER_WRITE_MAX + 1
    assert opened.served() == ({n: b"%d" % n for n in range(1025)}, [])


def test_refused_write_leaves_whole_entries_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=1_000)
    opened.log.append_placed(opened.log.checked(many(3)))
    real, calls = os.pwritev, []

    def second_fails(fd: int, pieces: list[bytes], position: int) -> int:
        calls.append(position)
        written = real(fd, pieces[:-1], position)
        return written if len(calls) == 2 else written + os.pwrite(fd, pieces[-1], position + written)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", second_fails)
        with pytest.raises(DiskFull):
            opened.log.append_placed(opened.log.checked(many(40, first_offset=3)))
    kept = opened.log.last_index
    assert 3 < kept < 43
    assert [entry.payload for entry in entries_of(opened.log)] == [e.payload for e in many(3) + many(40, 3)[: kept - 3]]
    opened.log.append_placed(opened.log.checked(many(40, first_offset=3)[kept - 3 :]))
    opened.sync()
    opened.reopen()
    assert opened.log.last_index == 43 and opened.recovery.torn_bytes == 0
    opened.close()


BAD = {
    "wrong offset": Entry(Term(3), KIND_BATCH, placed_batch(2, 3, b"x")),
    "wrong term": Entry(Term(4), KIND_BATCH, placed_batch(1, 3, b"x")),
    "half a batch": Entry(Term(3), KIND_BATCH, placed_batch(1, 3, b"x" * 50)[:-20]),
    "no batch": Entry(Term(3), KIND_BATCH, b"short"),
    "flipped batch": Entry(Term(3), KIND_BATCH, placed_batch(1, 3, b"x" * 50)[:-1] + b"y"),
    "flipped note": Entry(Term(3), KIND_COMMAND, note(Offset(1), b"body")[:-1] + b"!"),
    "note elsewhere": Entry(Term(3), KIND_COMMAND, note(Offset(7), b"body")),
    "half a note": Entry(Term(3), KIND_COMMAND, b"short"),
    "no kind": Entry(Term(3), 0, note(Offset(1), b"")),
    "kind too big": Entry(Term(3), 256, note(Offset(1), b"")),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_entry_is_refused_with_all_that_came_with_it(opened: OpenLog, bad: str) -> None:
    opened.log.append_placed(opened.log.checked(many(1)))
    before = opened.segment_files()[0].read_bytes()
    for entries in ([BAD[bad]], [*many(0), BAD[bad], *many(2, first_offset=2)]):
        with pytest.raises(BadEntry):
            opened.log.append_placed(opened.log.checked(entries))
    assert opened.segment_files()[0].read_bytes() == before
    opened.log.append_placed(opened.log.checked(many(2, first_offset=1)))
    assert opened.log.last_index == 3


def test_entries_that_are_gone_are_told(opened: OpenLog) -> None:
    opened.log.reset(LogIndex(10), Offset(5), Term(2))
    with pytest.raises(EntryGone) as told:
        opened.log.read_entries(LogIndex(9), 100, LogIndex(20))
    assert (told.value.index, told.value.first_index) == (9, 10)
    assert opened.log.read_entries(LogIndex(10), 100, LogIndex(20)) == []


@pytest.mark.skipif(not segment_file._RWF_NOWAIT, reason="no way to ask the page cache here")
def test_entries_that_are_not_in_memory_are_not_waited_for(opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(opened)
    real = os.preadv

    def cold(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", cold)
    with pytest.raises(NotCached) as told:
        opened.log.read_entries(LogIndex(5), 1_000, LogIndex(30), may_block=False)
    told.value.warm()
    monkeypatch.setattr(os, "preadv", real)
    assert len(opened.log.read_entries(LogIndex(5), EVERYTHING, LogIndex(30), may_block=False)) == 26


# --- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found_by", ["opening", "reading"])
@pytest.mark.parametrize("segment_bytes", [400, 1 << 30])
def test_flipped_bit_costs_one_entry_of_any_kind_and_is_told(tmp_path: Path, found_by: str, segment_bytes: int) -> None:
    rolled = random.Random(segment_bytes)
    for damaged in range(1, 29, 3):
        for is_note in (True, False):
            opened = OpenLog(tmp_path / f"{damaged} {is_note}", segment_bytes)
            expected = mixed(opened)
            entries = entries_of(opened.log)
            number = damaged if is_note else damaged + 1
            files = [(file, *place) for file in opened.segment_files() for place in frame_positions(file)]
            file, start, end = files[number - 1]
            flip(file, rolled.randrange(start, end), 1 << rolled.randrange(8))
            if found_by == "opening":
                opened.reopen()
            for first in range(1, 31):
                try:
                    found = opened.log.read_entries(LogIndex(first), EVERYTHING, LogIndex(30))
                except DamagedEntries as error:
                    assert first == number == error.first_index and error.next_index == number + 1
                    assert isinstance(error, DamagedData)
                else:
                    assert first != number and found
                    copies = [entry._replace(payload=bytes(entry.payload)) for entry in found]
                    assert copies == entries[first - 1 : first - 1 + len(copies)], "damaged bytes were served"
            values, missing = opened.served()
            if is_note:
                assert (values, missing) == (expected, []), "readers notice that a note is damaged"
            else:
                ((lost, _),) = missing
                assert values == {offset: value for offset, value in expected.items() if offset != lost}
            opened.close()


def test_missing_note_between_two_segments_is_told(tmp_path: Path) -> None:
    """No offset is missing, but an entry is."""
    opened = OpenLog(tmp_path / "topics" / "t" / "0", segment_bytes=1)
    opened.append_synced(b"one")
    opened.append_note(b"in a segment of its own")
    opened.sync()
    opened.append_synced(b"two")
    opened.append_synced(b"three")
    opened.segment_files()[1].unlink()
    recovery = opened.reopen()
    ((_, hole),) = recovery.holes
    assert (hole.first_offset, hole.next_offset, hole.first_index, hole.next_index) == (1, 1, 2, 3)
    assert opened.served() == ({0: b"one", 1: b"two", 2: b"three"}, [])
    with pytest.raises(DamagedEntries):
        opened.log.read_entries(LogIndex(2), 100, LogIndex(4))
    assert len(opened.log.read_entries(LogIndex(3), 100, LogIndex(3))) == 1
    (finding,) = (finding for finding in examine(tmp_path).problems if finding.file.endswith(".log"))
    assert finding.kind is Kind.MISSING_OFFSETS and "no messages" in finding.detail
    opened.close()


def test_background_check_finds_a_damaged_note(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=400)
    mixed(opened)
    segment = opened.log.segments[0]
    assert segment.verify(sealed=True).holes == []
    flip(segment.path, frame_positions(segment.path)[0][0] + 50)
    ((hole),) = segment.verify(sealed=True).holes
    assert (hole.first_index, hole.next_index, hole.first_offset, hole.next_offset) == (1, 2, 0, 0)
    opened.close()


# --- terms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", ["closed", "killed", "without indexes"])
def test_terms_are_known_after_a_restart(tmp_path: Path, ended: str) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=300)
    terms = [1, 1, 1, 2, 2, 5, 5, 5, 5, 5, 5, 9, 10, 10]
    for term in terms:
        opened.append_note(bytes(30), term=term)
    opened.sync()
    runs = [(1, 1), (4, 2), (6, 5), (12, 9), (13, 10)]
    assert opened.log.term_runs() == runs
    opened.log.drop_below(Offset(0), through_index=LogIndex(9))
    first = opened.log.first_index
    assert 1 < first < 12
    expected = [(first, terms[first - 1]), *[run for run in runs if run[0] > first]]
    if ended == "closed":
        opened.close()
    if ended == "without indexes":
        for path in opened.index_files():
            path.unlink()
    for _ in range(2):
        opened.reopen()
        assert opened.log.term_runs() == expected
        assert opened.log.previous_term == terms[first - 2]
    opened.close()


def test_doctor_understands_everything_there_is(tmp_path: Path, opened: OpenLog) -> None:
    expected = mixed(opened)
    opened.log.segment_bytes = 400
    mixed(opened)
    opened.log.truncate_from(LogIndex(50))
    opened.append_note(b"of a later term", term=20)
    opened.sync()
    for is_closed in (True, False):
        served = len(opened.served()[0])
        if is_closed:
            opened.close()
        report = examine(tmp_path)
        assert [finding for finding in report.findings if "topics/t/0" in finding.file] == []
        assert report.messages == served > len(expected)
        abandon(opened.log)
        opened.log, _ = PartitionLog.open(opened.directory, segment_bytes=400)
    (opened.directory / f"{50:020d}-{90:020d}-{7:010d}.reset").touch()
    assert [finding.file for finding in examine(tmp_path).findings if finding.file.endswith(".reset")]
    opened.reopen()
    assert (opened.log.first_index, opened.log.start_offset, opened.log.previous_term) == (90, 50, 7)
