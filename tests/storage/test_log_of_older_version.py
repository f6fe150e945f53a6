"""A log of older versions opens, reads and goes on: names of two fields, entries from 0, indexes of version 1."""

from __future__ import annotations

import itertools
import struct
from array import array
from pathlib import Path

import pytest
from crc32c import crc32c
from testkit.batches import placed_batch
from testkit.logs import OpenLog, entries_of, flip, frame_positions, hole_ranges

from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage import frames
from holdfast.storage.examine_log import examine_log
from holdfast.storage.examined import Report

SEGMENTS, BATCHES = 3, 5


def write_old_log(directory: Path, *, with_indexes: bool) -> dict[int, bytes]:
    """Three segments of five batches of two messages, terms 1, 1 and 2."""
    directory.mkdir(parents=True)
    expected: dict[int, bytes] = {}
    entries = itertools.count()
    for number in range(SEGMENTS):
        first, term = number * BATCHES, 1 + number // 2
        path = directory / f"{2 * first:020d}-{first:020d}.log"
        content = b""
        offsets, positions, times = array("Q"), array("Q"), array("q")
        for _ in range(BATCHES):
            entry = next(entries)
            values = [b"message %d" % (2 * entry), b"message %d" % (2 * entry + 1)]
            expected |= {2 * entry: values[0], 2 * entry + 1: values[1]}
            batch = bytearray(placed_batch(2 * entry, term, *values, timestamp_ms=1_000 + entry))
            if not content:
                offsets.append(2 * entry)
                positions.append(0)
                times.append(1_000 + entry)
            content += frames.frame_header(batch, len(content), LogIndex(entry), Term(term), len(content)) + batch
        path.write_bytes(content)
        if with_indexes:
            ends = (len(content), 2 * (first + BATCHES), first + BATCHES, 1_000 + first + BATCHES - 1)
            sealed = number < SEGMENTS - 1
            body = struct.pack("<4sHHQQQQq", b"HFIX", 1, sealed, 1, *ends)
            body += offsets.tobytes() + positions.tobytes() + times.tobytes()
            path.with_suffix(".index").write_bytes(body + struct.pack("<I", crc32c(body)))
    return expected


@pytest.mark.parametrize("with_indexes", [True, False])
def test_old_log_opens_reads_and_goes_on(tmp_path: Path, with_indexes: bool) -> None:
    expected = write_old_log(tmp_path / "log", with_indexes=with_indexes)
    report = Report(directory=str(tmp_path))
    assert examine_log(tmp_path / "log", report, lambda count: None, is_opened=True) == 30
    assert report.findings == []
    opened = OpenLog(tmp_path / "log", segment_bytes=500)
    assert opened.recovery == (0, [], [])
    for _ in range(2):
        assert opened.served() == (expected, [])
        assert (opened.log.first_index, opened.log.previous_term) == (0, 0)
        assert opened.log.term_runs() == [(0, 1), (10, 2)]
        assert opened.log.last_index == 14
        assert len(entries_of(opened.log)) == 15
        for number in range(15):
            assert opened.log.first_at_or_after(TimestampMs(1_000 + number)) == 2 * number
        opened.reopen()
    expected[opened.append_synced(b"new", timestamp_ms=2_000)] = b"new"
    opened.append_note(b"a note", term=3)
    opened.log.append(bytearray(placed_batch(31, 3, bytes(400))), Term(3))
    expected[31] = bytes(400)
    opened.sync()
    opened.reopen()
    assert opened.served() == (expected, [])
    assert opened.log.term_runs() == [(0, 1), (10, 2), (15, 1), (16, 3)]
    opened.log.truncate_from(LogIndex(12))
    opened.reopen()
    assert opened.log.last_index == 11 and opened.log.written_end == 24
    opened.close()


def test_term_before_a_segment_of_two_fields_comes_from_the_one_before(tmp_path: Path) -> None:
    write_old_log(tmp_path / "log", with_indexes=True)
    opened = OpenLog(tmp_path / "log")
    assert [segment.previous_term for segment in opened.log.segments] == [0, 1, 1]
    opened.log.drop_below(Offset(30))
    assert (opened.log.first_index, opened.log.previous_term) == (10, 1)
    opened.close()


def test_old_index_still_proves_what_was_synced(tmp_path: Path) -> None:
    """Without it the last batch would pass for a torn tail, and be cut off."""
    expected = write_old_log(tmp_path / "log", with_indexes=True)
    newest = max((tmp_path / "log").glob("*.log"))
    flip(newest, frame_positions(newest)[-1][0] + 100)
    opened = OpenLog(tmp_path / "log")
    assert opened.recovery.torn_bytes == 0
    assert hole_ranges(opened.recovery.holes) == [(28, 30)]
    assert opened.served() == ({offset: value for offset, value in expected.items() if offset < 28}, [(28, 30)])
    assert opened.append(b"goes on") == 30
    opened.close()


def test_empty_old_log_goes_on(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / f"{0:020d}-{0:020d}.log").touch()
    opened = OpenLog(tmp_path / "log")
    assert opened.append_synced(b"first") == 0
    opened.reopen()
    assert opened.served() == ({0: b"first"}, [])
    opened.close()


def test_new_log_begins_with_entry_one(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log")
    assert (opened.log.first_index, opened.log.last_index, opened.log.previous_term) == (1, 0, 0)
    assert opened.log.synced_index == 0 and opened.log.term_runs() == []
    assert opened.append_note(b"") == 1
    assert [path.name for path in opened.segment_files()] == [f"{0:020d}-{1:020d}-{0:010d}.log"]
    opened.close()
