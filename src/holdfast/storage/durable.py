"""Waiting for the disk: the only place that syncs files, and that believes a sync only where it may be believed.

A file system that is shut down while a sync is under way (its disk was taken out, its journal gave up, somebody forced
it) can report success for bytes that never arrived; ext4 did so after one shutdown of ten or more (decision 0019). One
that is shut down fails every read, also one of no bytes at all, and does not come back until it is mounted again. So a
sync counts once a read after it worked: the file system was there for all of it.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_data(fd: int) -> None:
    """What was written to this file is on the disk, with as much about the file as is needed to read it."""
    os.fdatasync(fd)
    confirm(fd)


def sync_file(fd: int) -> None:
    """As `sync_data`, with everything about the file."""
    os.fsync(fd)
    confirm(fd)


def confirm(fd: int) -> None:
    """Raises `OSError` if the file system went away before; the file must be open for reading."""
    os.pread(fd, 0, 0)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # names are written with the journal itself, which is never half there
    finally:
        os.close(fd)


def write_file(path: Path, content: bytes) -> None:
    """A file with this content, durable on return but for its name, which is for `sync_directory`."""
    with path.open("w+b") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place of another one: after a crash either is there, whole. Its name is for `sync_directory`."""
    temporary = path.with_name(f"{path.name}.tmp")
    write_file(temporary, content)
    temporary.replace(path)
