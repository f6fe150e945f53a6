"""Filling a hole in a segment with the entries that were there, when somebody else still has them.

An entry is stored as the same bytes by everybody, so what belongs into a hole takes exactly its room. It is
written in place. A crash on the way leaves a hole, as there was one before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.model.entries import Entry
from holdfast.model.errors import DiskFull
from holdfast.model.ids import LogIndex, Offset
from holdfast.storage import frames
from holdfast.storage.durable import sync_file
from holdfast.storage.entries import BadEntry, checked
from holdfast.storage.frames import FRAME_BYTES, Hole
from holdfast.storage.segment import Segment, as_write_error
from holdfast.wire.record_batch import Buffer

# What a frame says of earlier syncs is for the newest segment after a crash; these are older.
_NOTHING_SYNCED = 0


def mend(segment: Segment, hole: Hole, entries: Sequence[Entry]) -> None:
    """Write what belongs into a hole, durably.

    Raises `BadEntry` if that is not what was there, and `Unavailable` if the disk refuses: then nothing is mended.
    """
    placed = checked(entries, hole.first_offset)
    found = (LogIndex(hole.first_index + len(placed)), placed[-1].next_offset if placed else hole.first_offset)
    if found != (hole.next_index, Offset(hole.next_offset)):
        raise BadEntry(f"entries {hole.first_index} to {hole.next_index - 1} are wanted, not {len(placed)} others")
    position, log_index = hole.position, hole.first_index
    pieces: list[Buffer] = []
    for entry, *_ in placed:
        head = frames.frame_header(entry.payload, position, log_index, entry.term, _NOTHING_SYNCED, entry.kind)
        pieces += (head, entry.payload)
        position += FRAME_BYTES + len(entry.payload)
        log_index = LogIndex(log_index + 1)
    is_at_end = hole.end == segment.size
    if position != hole.end and not is_at_end:
        raise BadEntry(f"{position - hole.position} bytes do not fit into a hole of {hole.end - hole.position}")
    try:
        written = os.pwrite(segment.fd, b"".join(pieces), hole.position)
        sync_file(segment.fd)
    except OSError as error:
        raise as_write_error(error) from error
    if written != position - hole.position:
        raise DiskFull(f"the disk took {written} of {position - hole.position} bytes; make room")
    segment.mended(hole, position if is_at_end else segment.size)
