"""A disk without room refuses what it cannot store, keeps what it has, and is a disk again once there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.logs import OpenLog
from testkit.mounts import fill, small_disk

from holdfast.model.errors import DiskFull, StorageFailed
from holdfast.model.ids import Offset
from holdfast.storage.segment import Segment


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenLog]:
    log = OpenLog(tmp_path / "log")
    yield log
    log.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 1 << 20) as place:
        yield place


@pytest.mark.root
def test_full_disk_refuses_a_message_whole_and_takes_it_once_there_is_room(full_disk: Path) -> None:
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    opened = OpenLog(full_disk / "log")
    expected: dict[int, bytes] = {}
    value = bytes(range(256)) * 40
    with pytest.raises(DiskFull):
        for _ in range(1_000):
            expected[opened.append_synced(value)] = value
    assert expected, "nothing fitted at all"
    size = opened.segment_files()[0].stat().st_size
    assert size == opened.log.active.size, "half a message is left on the disk"
    for _ in range(3):
        with pytest.raises(DiskFull):
            opened.append(value)
    assert opened.served() == (expected, [])
    assert opened.segment_files()[0].stat().st_size == size
    opened.reopen()
    assert opened.recovery.torn_bytes == 0
    assert opened.served() == (expected, [])
    ballast.unlink()
    expected[opened.append_synced(b"fits again")] = b"fits again"
    assert opened.served() == (expected, [])
    opened.close()


@pytest.mark.root
def test_log_opens_on_a_full_disk_and_serves(full_disk: Path) -> None:
    """Also where indexes have to be rebuilt and there is no room for them."""
    opened = OpenLog(full_disk / "log", segment_bytes=3_000)
    expected = {opened.append_synced(b"%03d" % i * 300): b"%03d" % i * 300 for i in range(20)}
    for path in opened.index_files():
        path.unlink()
    ballast = fill(full_disk)
    opened.reopen()
    assert opened.recovery == (0, [], [])
    assert opened.served() == (expected, [])
    with pytest.raises(DiskFull):
        for _ in range(20):
            opened.append(bytes(5_000))
    ballast.unlink()
    expected[opened.append_synced(b"goes on")] = b"goes on"
    opened.reopen()
    assert opened.served() == (expected, [])
    opened.close()


@pytest.mark.root
def test_retention_makes_room_on_a_full_disk(full_disk: Path) -> None:
    """It may not need room itself: then a full disk would stay full for ever."""
    opened = OpenLog(full_disk / "log", segment_bytes=3_000)
    for number in range(20):
        opened.append_synced(b"%03d" % number * 300, timestamp_ms=1_000 + number)
    fill(full_disk)
    with pytest.raises(DiskFull):
        for _ in range(20):
            opened.append(bytes(2_000), timestamp_ms=5_000)
    end = opened.log.synced_end
    deleted = opened.log.drop_below(Offset(end), renews=True)
    assert deleted > 0, "a full disk keeps retention from making room"
    assert opened.append_synced(b"fits again", timestamp_ms=5_000) >= end
    opened.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_refused_write_changes_nothing(opened: OpenLog, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    opened.append_synced(b"one")
    before = opened.segment_files()[0].read_bytes()

    def refuse(fd: int, buffers: object, position: int) -> int:
        os.pwrite(fd, b"half a frame", position)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", refuse)
        with pytest.raises(DiskFull):
            opened.append(b"two")
    assert opened.segment_files()[0].read_bytes() == before
    assert opened.append_synced(b"two") == 1
    assert opened.served() == ({0: b"one", 1: b"two"}, [])


@pytest.mark.parametrize("taken", [0, 1, 20, 36, 60, 99])
def test_short_write_is_taken_back(opened: OpenLog, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    opened.append_synced(b"one")
    before = opened.segment_files()[0].read_bytes()

    def short(fd: int, buffers: tuple[bytes, bytes], position: int) -> int:
        return os.pwrite(fd, b"".join(map(bytes, buffers))[:taken], position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", short)
        with pytest.raises(DiskFull):
            opened.append(b"two")
    assert opened.segment_files()[0].read_bytes() == before
    opened.append_synced(b"two")
    opened.reopen()
    assert opened.served() == ({0: b"one", 1: b"two"}, [])


def test_failing_disk_is_no_full_disk(opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.append_synced(b"one")

    def fail(fd: int, buffers: object, position: int) -> int:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        with pytest.raises(StorageFailed):
            opened.append(b"two")
        patched.setattr(os, "ftruncate", lambda fd, size: fail(fd, None, size))
        with pytest.raises(StorageFailed, match="could not be undone"):
            opened.append(b"two")
    assert opened.served() == ({0: b"one"}, [])


def test_no_room_for_the_next_segment_refuses_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenLog(tmp_path / "log", segment_bytes=1)
    opened.append_synced(b"one")
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "create", no_room)
        for _ in range(2):
            with pytest.raises(DiskFull):
                opened.append(b"two")
    assert opened.append_synced(b"two") == 1
    opened.reopen()
    assert opened.served() == ({0: b"one", 1: b"two"}, [])
    opened.close()


def no_room(*_: object) -> Segment:
    raise DiskFull("no room for a file")
