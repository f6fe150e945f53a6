"""Disks of our own below a node's data directory: one that is soon full, one whose power can be cut. For root only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final, Literal

from testkit.machine import CannotBreak, call

# `plain` is a directory as any other.
DiskKind = Literal["plain", "small", "power"]

# EXT4_IOC_SHUTDOWN, and the way of doing it that writes nothing more: neither data nor journal.
_SHUTDOWN: Final = 0x8004587D
_SHUTDOWN_WITHOUT_LOG_FLUSH: Final = 2
SIZE_BYTES: Final = 96 << 20
_BALLAST: Final = "ballast"
_UNMOUNT_S: Final = 20.0


class Disk:
    """What is mounted at a node's data directory."""

    def __init__(self, place: Path, kind: DiskKind, size_bytes: int = SIZE_BYTES) -> None:
        self.place = place
        self.kind = kind
        self._image = place.with_name(f"{place.name}.image")
        self._is_frozen = False
        self.has_power = True
        place.mkdir(parents=True, exist_ok=True)
        if kind == "small":
            call("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place))
        elif kind == "power":
            with self._image.open("wb") as file:
                file.truncate(size_bytes)
            call("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(self._image))
            self._mount()

    def _mount(self) -> None:
        call("mount", "-o", "loop", str(self._image), str(self.place))

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.place / _BALLAST).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            self._reserve(file.fileno())
            for piece_bytes in (1 << 20, 4096, 1):
                piece = bytes(piece_bytes)
                with contextlib.suppress(OSError):
                    while file.write(piece) == piece_bytes:
                        pass

    def _reserve(self, fd: int) -> None:
        """All large pieces at once, where the file system knows how to: nothing is written for that."""
        size_bytes = 0
        for piece_bytes in (64 << 20, 1 << 20):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(fd, size_bytes, piece_bytes)
                    size_bytes += piece_bytes
        os.lseek(fd, size_bytes, os.SEEK_SET)

    def make_room(self) -> None:
        (self.place / _BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Whoever writes waits until `thaw`, and cannot even be killed."""
        call("fsfreeze", "-f", str(self.place))
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            call("fsfreeze", "-u", str(self.place))
            self._is_frozen = False

    def cut_power(self) -> None:
        """From now on nothing reaches the disk: what was synced stays, the rest is gone."""
        self.has_power = False
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _SHUTDOWN_WITHOUT_LOG_FLUSH))
        except OSError as error:
            raise CannotBreak(f"this kernel cannot cut the power of a file system: {error}") from error
        finally:
            os.close(fd)

    def power_on(self) -> None:
        self._unmount()
        self._mount()
        self.has_power = True

    def close(self) -> None:
        with contextlib.suppress(CannotBreak):
            self.thaw()
        if self.kind != "plain":
            self._unmount()
        self._image.unlink(missing_ok=True)

    def _unmount(self) -> None:
        """Also where a process that is just dying still has a file open."""
        deadline = time.monotonic() + _UNMOUNT_S
        while True:
            done = subprocess.run(["umount", str(self.place)], capture_output=True, timeout=60, check=False)
            if done.returncode == 0 or not self.place.is_mount():
                return
            if time.monotonic() > deadline:
                subprocess.run(["umount", "-l", str(self.place)], capture_output=True, timeout=60, check=False)
                return
            time.sleep(0.05)
