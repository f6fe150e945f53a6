"""Retention deletes what it was told to and nothing else, and offsets never start again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testkit.logs import OpenLog

from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import Offset, Term, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.storage import frames
from holdfast.storage.log import PartitionLog
from holdfast.wire.batch_builder import build_batch


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenLog]:
    log = OpenLog(tmp_path / "log", segment_bytes=1)
    yield log
    log.close()


def expire(opened: OpenLog, *, older_than_ms: int | None = None, bytes_max: int | None = None, up_to: int) -> int:
    limit = None if older_than_ms is None else TimestampMs(older_than_ms)
    begin = opened.log.expirable(older_than_ms=limit, bytes_max=bytes_max)
    return opened.log.drop_below(min(begin, Offset(up_to)), renews=True)


def test_old_segments_go_and_new_ones_stay(opened: OpenLog) -> None:
    for number in range(10):
        opened.append_synced(b"%d" % number, timestamp_ms=number)
    assert expire(opened, older_than_ms=4, up_to=10) == 4
    assert opened.log.start_offset == 4
    assert opened.served() == ({i: b"%d" % i for i in range(4, 10)}, [])
    with pytest.raises(OffsetOutOfRange):
        opened.log.read(Offset(3), 100, Offset(10))
    assert len(opened.segment_files()) == 6, "the disk space of expired messages is not given back"
    opened.reopen()
    assert opened.log.start_offset == 4
    assert opened.served() == ({i: b"%d" % i for i in range(4, 10)}, [])


def test_size_bound_keeps_at_least_that_much(opened: OpenLog) -> None:
    for number in range(10):
        opened.append_synced(b"%d" % number)
    one = opened.log.size_bytes // 10
    assert expire(opened, bytes_max=3 * one, up_to=10) == 7
    assert sorted(opened.served()[0]) == [7, 8, 9]


def test_message_no_reader_was_shown_yet_is_never_expired(opened: OpenLog) -> None:
    for number in range(5):
        opened.append_synced(b"%d" % number, timestamp_ms=0)
    assert expire(opened, older_than_ms=100, bytes_max=1, up_to=2) == 2
    assert opened.log.start_offset == 2


def test_unsynced_segment_is_never_expired(opened: OpenLog) -> None:
    for number in range(5):
        opened.append(b"%d" % number, timestamp_ms=0)
    assert expire(opened, older_than_ms=100, bytes_max=1, up_to=5) == 0
    opened.sync()
    assert expire(opened, older_than_ms=100, bytes_max=1, up_to=5) == 5


def test_quiet_topic_expires_to_nothing_and_offsets_go_on(tmp_path: Path) -> None:
    """The last messages expire as well, though nobody publishes any more."""
    opened = OpenLog(tmp_path / "log")
    for number in range(3):
        opened.append_synced(b"%d" % number, timestamp_ms=number)
    assert expire(opened, older_than_ms=100, up_to=3) == 1, "a quiet topic keeps its last segment for ever"
    assert opened.served() == ({}, [])
    assert (opened.log.start_offset, opened.log.written_end) == (3, 3)
    assert expire(opened, older_than_ms=200, up_to=3) == 0
    opened.reopen()
    assert opened.append_synced(b"goes on") == 3
    assert opened.served() == ({3: b"goes on"}, [])
    opened.close()


def test_file_that_is_being_synced_is_not_deleted_under_the_sync(tmp_path: Path) -> None:
    opened = OpenLog(tmp_path / "log")
    opened.append_synced(b"old", timestamp_ms=0)
    point = opened.log.sync_point()
    expire(opened, older_than_ms=100, up_to=1)
    for fd in point.files:
        os.fdatasync(fd)
    opened.log.synced(point)
    opened.sync()
    expire(opened, older_than_ms=100, up_to=1)
    assert opened.served() == ({}, [])
    opened.close()


def test_no_retention_deletes_nothing(opened: OpenLog) -> None:
    for number in range(5):
        opened.append_synced(b"%d" % number)
    assert expire(opened, up_to=5) == 0
    assert len(opened.served()[0]) == 5


def test_ids_are_read_while_what_came_later_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process would end: a mapped file must not become shorter where it is looked at."""
    log, _ = PartitionLog.open(tmp_path)
    log.append(build_batch([NewMessage(value=b"x", id="stays")], 1000), Term(1))
    size = log.active.size
    log.append(build_batch([NewMessage(value=bytes(200_000), id="is cut off")], 1000), Term(1))
    scan = frames.scan

    def cut_meanwhile(data: memoryview, *arguments: Any, **options: Any) -> frames.Scan:
        assert len(data) == size
        log.truncate_from(log.last_index)
        return scan(data, *arguments, **options)

    monkeypatch.setattr(frames, "scan", cut_meanwhile)
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert [each.id for each in log.active.ids(directory, size, TimestampMs(0), 10)] == ["stays"]
    os.close(directory)
    log.close()
