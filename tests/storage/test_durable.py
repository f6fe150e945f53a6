"""A sync is believed only where the file system was there for all of it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from testkit.mounts import PowerDisk, power_disk
from testkit.sizes import dice

from holdfast.storage.durable import replace_file, sync_data
from holdfast.storage.syncer import DiskSync

_FILES = 6
_SHUTDOWNS = 50


class _Point:
    def __init__(self, files: list[int]) -> None:
        self.files = files
        self.directory = None


@pytest.mark.parametrize("files", [1, 5], ids=["one file", "many files"])
def test_a_sync_of_a_file_system_that_went_away_meanwhile_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    handles = [(tmp_path / str(number)).open("w+b", buffering=0) for number in range(files)]

    def gone(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", gone)
    disk = DiskSync()
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync([_Point([handle.fileno() for handle in handles])])
    disk.close()
    for handle in handles:
        handle.close()


def test_a_replaced_file_is_whole(tmp_path: Path) -> None:
    replace_file(tmp_path / "x.json", b"old")
    replace_file(tmp_path / "x.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"new"


@pytest.mark.root
def test_what_was_synced_beside_other_files_is_there_when_the_power_comes_back(tmp_path: Path) -> None:
    """Without looking twice, ext4 loses synced bytes here in one of ten shutdowns or more."""
    moments = dice("shutdowns")
    with power_disk(tmp_path) as disk:
        for _ in range(_SHUTDOWNS):
            synced = _write_until_the_power_fails(disk, moments.uniform(0.01, 0.04))
            disk.come_back()
            for number, size in enumerate(synced):
                content = (disk.place / str(number)).read_bytes()[:size]
                assert content == bytes([number + 1]) * size, f"file {number}: {size} bytes were synced"
            assert all(synced)


def _write_until_the_power_fails(disk: PowerDisk, after_s: float) -> list[int]:
    synced = [0] * _FILES
    began = threading.Barrier(_FILES + 1, timeout=30)

    def write(number: int) -> None:
        sizes = dice(f"file {number}")
        with (disk.place / str(number)).open("w+b", buffering=0) as file:
            written = 0
            try:
                while True:
                    written += file.write(bytes([number + 1]) * sizes.randrange(100, 3000))
                    sync_data(file.fileno())
                    if not synced[number]:
                        began.wait()
                    synced[number] = written
            except OSError as error:
                assert error.errno in (errno.EIO, errno.EROFS)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(_FILES)]
    for writer in writers:
        writer.start()
    began.wait()
    time.sleep(after_s)
    disk.cut_power()
    for writer in writers:
        writer.join()
    return synced
