"""What a replicated log is made of: entries, most of them record batches, some of them for the group alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model.ids import Term

# Kinds of entries. Readers see the first one only; the others take a place in the log, but no offset.
KIND_BATCH: Final = 1
KIND_REIGN: Final = 2
KIND_MEMBERS: Final = 3
KIND_COMMAND: Final = 4

# In front of the body of every kind but the first: the offset the next message will get, and the body's CRC.
NOTE_HEAD_BYTES: Final = 12


class Entry(NamedTuple):
    """One entry as it travels between nodes; its index follows from where it stands.

    `payload` is a record batch that has its place, or `base offset u64 | crc u32 of the body | body`.
    """

    term: Term
    kind: int
    payload: bytes | bytearray | memoryview
