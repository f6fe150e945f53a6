"""Disks of `testkit.disks` for tests: where they cannot be made on this machine, the test is skipped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from testkit.disks import Disk
from testkit.machine import CannotBreak, missing

MIB: Final = 1 << 20


@contextlib.contextmanager
def _or_skip() -> Iterator[None]:
    try:
        yield
    except CannotBreak as error:
        pytest.skip(str(error))


def why_not_mount() -> str | None:
    """Why file systems cannot be mounted here; `None` if they can."""
    return missing(["mount", "umount"], root=True)


@contextlib.contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory that is full after `size_bytes`."""
    if reason := why_not_mount():
        pytest.skip(reason)
    with _or_skip():
        disk = Disk(place, "small", size_bytes)
    with contextlib.closing(disk):
        yield place


def fill(place: Path, leave_bytes: int = 0) -> Path:
    """Put a file on a file system that leaves only this much room."""
    ballast = place / "ballast"
    with ballast.open("ab", buffering=0) as file:
        step = 1 << 16
        while step:
            room = os.statvfs(place)
            if room.f_bavail * room.f_frsize <= leave_bytes:
                break
            try:
                file.write(bytes(min(step, room.f_bavail * room.f_frsize - leave_bytes)))
            except OSError:
                step //= 2
    return ballast


class PowerDisk(Disk):
    """An ext4 on a file of its own, whose power can be cut and that then can be mounted again."""

    def __init__(self, place: Path) -> None:
        if reason := missing(["mount", "umount", "mkfs.ext4"], root=True):
            pytest.skip(reason)
        with _or_skip():
            super().__init__(place, "power", 48 * MIB)

    def cut_power(self) -> None:
        with _or_skip():
            super().cut_power()

    def come_back(self) -> None:
        self.power_on()


@contextlib.contextmanager
def power_disk(directory: Path) -> Iterator[PowerDisk]:
    with contextlib.closing(PowerDisk(directory / "disk")) as disk:
        yield disk
