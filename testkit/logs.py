"""A partition's log on a real directory, driven by hand: append, sync, read, break, open again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.model.entries import KIND_COMMAND, Entry
from holdfast.model.errors import DamagedData
from holdfast.model.ids import LogIndex, Offset, Term
from holdfast.storage.frames import FRAME_BYTES, Hole
from holdfast.storage.log import PartitionLog, Recovery
from holdfast.wire import record_batch
from testkit.batches import values_batch, values_of

EVERYTHING = 1 << 40


class OpenLog:
    """One log, and the places of the batches that were appended to it through here."""

    def __init__(self, directory: Path, segment_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.log, self.recovery = PartitionLog.open(directory, segment_bytes=segment_bytes)

    def append(self, *values: bytes, timestamp_ms: int = 1_000) -> int:
        return self.log.append(values_batch(*values, timestamp_ms=timestamp_ms), Term(1))

    def append_note(self, body: bytes, *, kind: int = KIND_COMMAND, term: int = 1) -> int:
        return self.log.append_note(kind, body, Term(term))

    def sync(self) -> None:
        point = self.log.sync_point()
        for fd in point.files:
            os.fdatasync(fd)
        if point.directory is not None:
            self.log.sync_directory()
        self.log.synced(point)

    def append_synced(self, *values: bytes, timestamp_ms: int = 1_000) -> int:
        offset = self.append(*values, timestamp_ms=timestamp_ms)
        self.sync()
        return offset

    def reopen(self) -> Recovery:
        """After a kill: nothing is said to the log before."""
        abandon(self.log)
        self.log, self.recovery = PartitionLog.open(self.directory, segment_bytes=self.segment_bytes)
        return self.recovery

    def close(self) -> None:
        self.log.close()

    def segment_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def index_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.index"))

    def read_batches(self, offset: int, bytes_max: int = EVERYTHING) -> list[bytes]:
        found = self.log.read(Offset(offset), bytes_max, self.log.written_end)
        return [bytes(batch) for batch in found]

    def served(self, bytes_max: int = EVERYTHING) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
        """Every message a patient reader gets, by offset, and the stretches it is told are damaged."""
        offset = int(self.log.start_offset)
        values: dict[int, bytes] = {}
        damage: list[tuple[int, int]] = []
        while offset < self.log.written_end:
            try:
                batches = self.read_batches(offset, bytes_max)
            except DamagedData as error:
                assert error.next_offset > offset, f"sent back from {offset} to {error.next_offset}: an endless loop"
                damage.append((offset, error.next_offset))
                offset = error.next_offset
                continue
            assert batches, f"nothing is served at {offset}, though the log ends at {self.log.written_end}"
            for batch in batches:
                base = record_batch.header(batch).base_offset
                for place, value in enumerate(values_of([batch])):
                    if base + place >= offset:
                        assert base + place not in values, "a message is served twice"
                        values[base + place] = value
            following = record_batch.header(batches[-1]).next_offset
            assert following > offset
            offset = following
        return values, damage


def entries_of(log: PartitionLog, first: int | None = None, bytes_max: int = EVERYTHING) -> list[Entry]:
    """Every entry from `first` on, as a follower reads them; their payloads are copied."""
    index = log.first_index if first is None else LogIndex(first)
    found: list[Entry] = []
    while entries := log.read_entries(index, bytes_max, log.last_index):
        found += [entry._replace(payload=bytes(entry.payload)) for entry in entries]
        index = LogIndex(index + len(entries))
    assert index == log.last_index + 1, f"nothing is served at entry {index}"
    return found


def abandon(log: PartitionLog) -> None:
    """What a kill does to a log: its files are closed, and nothing is written any more."""
    for segment in (*log.segments, *log._retired):
        segment.release()


def frame_positions(path: Path) -> list[tuple[int, int]]:
    """Where each frame of a sound segment begins and ends."""
    data = path.read_bytes()
    found = []
    position = 0
    while position < len(data):
        end = position + FRAME_BYTES + int.from_bytes(data[position + 4 : position + 8], "big")
        found.append((position, end))
        position = end
    return found


def path_of(fd: int) -> Path:
    """Which file an open descriptor stands for."""
    return Path(f"/proc/self/fd/{fd}").readlink()


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """One bit of a file turns over."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    overwrite(path, position, bytes(data[position : position + 1]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes in place: the same file, so that whoever has it open sees it too."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, position)
    finally:
        os.close(fd)


def hole_ranges(holes: Sequence[tuple[str, Hole]]) -> list[tuple[int, int]]:
    return [(hole.first_offset, hole.next_offset) for _, hole in holes]
