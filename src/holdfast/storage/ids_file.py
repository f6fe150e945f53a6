"""The ids of messages that retention has deleted: `expired.ids`, beside the segments of a partition.

The dedupe window outlives the messages in it. Before segments are deleted, the ids in them are added here, the newest
ones only, as many as a window holds. Numbers are big-endian::

    magic  8 bytes  "HFIDS001"
    crc    u32      CRC32C of the rest
    ids             msgpack: a list of [offset, milliseconds of its batch's newest time, id as bytes], by their offsets

The file is written anew each time, to `expired.ids.tmp`, which is synced and renamed, and so is its name. Crash cases:

- *before it has its name*: the old file, and segments that have the rest. The temporary file is deleted at start.
- *before the segments are deleted*: ids stand here and in segments. Whoever reads takes what is below the log's begin.
- *a full disk*: the segments go first, for they are the room that is needed. A crash at that moment loses their ids.
- *damage*: the ids are lost, which is told, and the next file begins anew.

All of it works on a directory that is open: what was deleted must not write into the next topic of its name.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from crc32c import crc32c

from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.messages import StoredId
from holdfast.storage.durable import sync_file

FILE: Final = "expired.ids"
_TEMPORARY: Final = f"{FILE}.tmp"
_MAGIC: Final = b"HFIDS001"
_CRC = struct.Struct(">I")
_HEAD_BYTES: Final = len(_MAGIC) + _CRC.size
_Row = tuple[int, int, bytes]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Row]).decode


class IdsDamaged(Exception):
    """The bytes are not what was written."""


def encode_ids(ids: Iterable[StoredId]) -> bytes:
    return _encode([(each.offset, each.timestamp_ms, each.id.encode("utf-8", "surrogateescape")) for each in ids])


def decode_ids(body: bytes | memoryview) -> list[StoredId]:
    """Raises `msgspec.MsgspecError` for what is no list of ids."""
    rows = _decode(body)
    return [
        StoredId(Offset(offset), TimestampMs(time_ms), text.decode("utf-8", "surrogateescape"))
        for offset, time_ms, text in rows
    ]


def read_ids(directory: int) -> list[StoredId]:
    """What the file in an open directory holds, none if there is no file. Raises `IdsDamaged`."""
    try:
        fd = os.open(FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return []
    with open(fd, "rb") as file:
        content = file.read()
    body = memoryview(content)[_HEAD_BYTES:]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : _HEAD_BYTES] != _CRC.pack(crc32c(body)):
        raise IdsDamaged(f"{FILE} is damaged")
    return decode_ids(body)


def write_ids(directory: int, ids: Sequence[StoredId]) -> None:
    """Replace the file in an open directory; durable on return. Raises `OSError`, and the old file stays."""
    body = encode_ids(ids)
    fd = os.open(_TEMPORARY, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640, dir_fd=directory)
    try:
        with open(fd, "r+b") as file:
            file.write(_MAGIC + _CRC.pack(crc32c(body)) + body)
            file.flush()
            sync_file(file.fileno())
        os.rename(_TEMPORARY, FILE, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        # On a full disk what is half written takes room that is needed.
        with suppress(OSError):
            os.unlink(_TEMPORARY, dir_fd=directory)
        raise
    os.fsync(directory)
