"""Small file systems of our own: one that is soon full, and one whose power can be cut. For root only.

The mounts are made below a temporary directory and taken away again whatever happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# EXT4_IOC_SHUTDOWN, and the way of doing it that writes nothing more: neither data nor journal.
_SHUTDOWN = 0x8004587D
_SHUTDOWN_WITHOUT_LOG_FLUSH = 2
MIB = 1 << 20


def why_not_mount() -> str | None:
    """Why file systems cannot be mounted here; `None` if they can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if shutil.which("mount") is None:
        return "there is no mount command"
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} does not work here: {(done.stderr or done.stdout).strip()}")


def _unmount(place: Path) -> None:
    """Unmount, also where a process that is just dying still has a file open."""
    deadline = time.monotonic() + 10
    while True:
        done = subprocess.run(["umount", str(place)], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 or not os.path.ismount(place):
            return
        if time.monotonic() > deadline:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, timeout=60, check=False)
            return
        time.sleep(0.05)


@contextlib.contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory that is full after `size_bytes`."""
    if reason := why_not_mount():
        pytest.skip(reason)
    place.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)


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


class PowerDisk:
    """An ext4 on a file of its own, whose power can be cut and that then can be mounted again."""

    def __init__(self, place: Path, image: Path, size_bytes: int = 48 * MIB) -> None:
        if reason := why_not_mount():
            pytest.skip(reason)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no mkfs.ext4")
        self.place = place
        self._image = image
        place.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.place))

    def cut_power(self) -> None:
        """From now on nothing reaches the disk: what was synced stays, the rest is gone."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _SHUTDOWN_WITHOUT_LOG_FLUSH))
        except OSError as error:
            pytest.skip(f"this kernel cannot cut the power of a file system: {error}")
        finally:
            os.close(fd)

    def come_back(self) -> None:
        _unmount(self.place)
        self.mount()

    def close(self) -> None:
        _unmount(self.place)


@contextlib.contextmanager
def power_disk(directory: Path) -> Iterator[PowerDisk]:
    disk = PowerDisk(directory / "disk", directory / "disk.image")
    try:
        yield disk
    finally:
        disk.close()
