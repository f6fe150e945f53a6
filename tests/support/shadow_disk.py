"""What a disk would hold after a power loss: only what was synced, and whatever else it likes.

A `ShadowDisk` stands in for `fsync` and `fdatasync` of this process and keeps, for files below one directory, the
bytes and the names that were synced. `image` then makes a directory such as a machine may find after its
power came back: synced bytes are there; of the others some sectors are, some are zeros, some are other
bytes; the length is anything between; names that were not synced may be missing, and files whose deletion
was not synced may be back.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from unittest import mock

SECTOR_BYTES = 64  # smaller than a real one, so that small tests have many of them
CACHES = (".index", ".tmp")


class ShadowDisk:
    """Watches one directory of files that are only appended to, truncated and deleted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.synced_bytes: dict[str, bytes] = {}
        self.synced_names: set[str] = set()
        self._patches = [mock.patch.object(os, name, self.sync) for name in ("fsync", "fdatasync")]
        for patch in self._patches:
            patch.start()

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()

    def move_to(self, directory: Path) -> None:
        """Watch another directory, of which everything is on the disk now."""
        self.directory = directory
        self.synced_names = {path.name for path in directory.iterdir()}
        self.synced_bytes = {name: (directory / name).read_bytes() for name in self.synced_names}

    def sync(self, fd: int) -> None:
        """Take note that what this descriptor stands for is on the disk."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path == self.directory:
            self.synced_names = {child.name for child in path.iterdir()}
        elif path.parent == self.directory:
            self.synced_bytes[path.name] = path.read_bytes()

    def image(self, target: Path, dice: random.Random) -> None:
        """Write to `target` what a power loss now might leave."""
        target.mkdir()
        present = {path.name for path in self.directory.iterdir()}
        gone = sorted(self.synced_names - present)
        fresh = sorted(name for name in present - self.synced_names if not name.endswith(CACHES))
        # Changes of a directory are journalled in their order: if one did not make it, none behind it did.
        returned = gone[dice.randrange(len(gone) + 1) :]
        lost = fresh[dice.randrange(len(fresh) + 1) :] if len(returned) == len(gone) else []
        for name in sorted(present):
            if name.endswith(CACHES):
                self._cache_image(name, target, dice)
            elif name not in lost:
                current = (self.directory / name).read_bytes()
                (target / name).write_bytes(torn(self.synced_bytes.get(name, b""), current, dice))
        for name in returned:
            if not name.endswith(CACHES):
                (target / name).write_bytes(self.synced_bytes.get(name, b""))

    def _cache_image(self, name: str, target: Path, dice: random.Random) -> None:
        content = (self.directory / name).read_bytes()
        kept = dice.choice(["whole", "whole", "absent", "empty", "short", "zeros"])
        if kept == "whole":
            (target / name).write_bytes(content)
        elif kept == "empty":
            (target / name).write_bytes(b"")
        elif kept == "short":
            (target / name).write_bytes(content[: dice.randrange(len(content) + 1)])
        elif kept == "zeros":
            (target / name).write_bytes(bytes(len(content)))


def torn(synced: bytes, current: bytes, dice: random.Random) -> bytes:
    """A file after a power loss: everything that was synced, and some of what was written behind it."""
    if not current.startswith(synced):
        # It was cut back after the sync, and that may not have reached the disk.
        return synced if dice.random() < 0.5 else current
    length = dice.choice([len(synced), len(current), dice.randint(len(synced), len(current))])
    mode = dice.choice(["kept", "zeros", "sectors", "sectors", "garbage"])
    found = bytearray(current[:length])
    for start in range(0, length, SECTOR_BYTES):
        begin, end = max(start, len(synced)), min(start + SECTOR_BYTES, length)
        if begin >= end or mode == "kept" or (mode in ("sectors", "garbage") and dice.random() < 0.5):
            continue
        found[begin:end] = dice.randbytes(end - begin) if mode == "garbage" else bytes(end - begin)
    return bytes(found)


def copy_of(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target
