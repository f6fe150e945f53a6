"""What an examination of a data directory tells: findings, and the report that holds them."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path

import msgspec


class Kind(enum.StrEnum):
    """What can be wrong."""

    TORN_TAIL = "torn_tail"
    BAD_INDEX = "bad_index"
    DAMAGED_BATCHES = "damaged_batches"
    MISSING_OFFSETS = "missing_offsets"
    EARLY_SEGMENT = "early_segment"
    OVERLAPPING_SEGMENT = "overlapping_segment"
    PARTITION_MISSING = "partition_missing"
    TOPIC_NOT_IN_STATE = "topic_not_in_state"
    CURSOR_BEYOND_END = "cursor_beyond_end"
    STATE_DAMAGED = "state_damaged"
    STATE_MISSING = "state_missing"
    IDENTITY_DAMAGED = "identity_damaged"
    IDENTITY_MISSING = "identity_missing"
    IDS_DAMAGED = "ids_damaged"
    TOPIC_FILE_BAD = "topic_file_bad"
    UNREADABLE = "unreadable"
    STATE_SET_ASIDE = "state_set_aside"
    STRAY_FILE = "stray_file"
    SPILL_WAITING = "spill_waiting"
    SPILL_FAILED = "spill_failed"
    SPILL_DAMAGED = "spill_damaged"
    SPILL_RECOVERING = "spill_recovering"
    SPILL_PROGRESS_DAMAGED = "spill_progress_damaged"
    SPILL_ROOM_SCARCE = "spill_room_scarce"
    SPILL_NOT_WRITABLE = "spill_not_writable"


# Worth a line, but nothing is wrong now.
NOTES = frozenset((Kind.STATE_SET_ASIDE, Kind.STRAY_FILE, Kind.SPILL_WAITING))


class Finding(msgspec.Struct, kw_only=True):
    """One thing that is not as it should be; `file` is relative to the directory, where it is in it."""

    kind: Kind
    file: str
    detail: str
    first_offset: int | None = None
    next_offset: int | None = None
    position: int | None = None
    size_bytes: int | None = None
    repaired: str | None = None


class Report(msgspec.Struct, kw_only=True):
    """What was looked at and what was found."""

    directory: str
    in_use: bool = False
    node: str | None = None
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    indexes: int = 0
    batches: int = 0
    messages: int = 0
    size_bytes: int = 0
    # Messages that wait in the spill for their store.
    spilled_messages: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """Findings that are still open and more than a note."""
        return [each for each in self.findings if each.kind not in NOTES and each.repaired is None]

    def found(self, kind: Kind, path: Path, detail: str) -> Finding:
        """Take note of a finding; the caller may add to it."""
        file = path.relative_to(self.directory) if path.is_relative_to(self.directory) else path
        finding = Finding(kind=kind, file=str(file), detail=detail)
        self.findings.append(finding)
        return finding

    def cannot_read(self, path: Path, error: OSError) -> None:
        """Take note of what cannot be read; a running broker deletes files under our eyes."""
        if not (self.in_use and isinstance(error, FileNotFoundError)):
            self.found(Kind.UNREADABLE, path, error.strerror or str(error))

    @contextlib.contextmanager
    def going_on(self, path: Path) -> Iterator[None]:
        """Go on behind what cannot be read."""
        try:
            yield
        except OSError as error:
            self.cannot_read(path, error)
