"""Whether batches came as they were sent, and all of them.

Executors that have the compiled `crc32c` check sums; others trust those of TCP.
"""

from __future__ import annotations

import struct
from typing import Final

try:
    from crc32c import crc32c
except ImportError:  # an executor that has only what the driver sent it: Python files
    crc32c = None  # type: ignore[assignment]

_LENGTH_PREFIX_BYTES: Final = 12
# base offset at 0, length at 8, CRC at 17, which covers everything from 21 on, last offset delta at 23.
_HEAD: Final = struct.Struct(">qi5xI2xi")
_CRC_FROM: Final = 21


def fault_in(data: bytearray, start: int, end: int) -> str | None:
    """What is wrong with batches that should hold each offset from `start` up to, not including, `end`; none: nothing.

    They are whole, each has the sum it says, and none is missing between them: what is left out here nobody would miss.
    """
    view = memoryview(data)
    position, size, reached = 0, len(view), start
    while position < size:
        if size - position < _HEAD.size:
            return "sent half a batch"
        base_offset, batch_length, crc, last_offset_delta = _HEAD.unpack_from(view, position)
        batch_end = position + _LENGTH_PREFIX_BYTES + batch_length
        if batch_length <= 0 or batch_end > size:
            return "sent half a batch"
        if crc32c is not None and crc32c(view[position + _CRC_FROM : batch_end]) != crc:
            return "sent bytes that do not match their checksum"
        # Only the first one may begin before what was asked for.
        if base_offset > reached or (position and base_offset != reached):
            return f"sent batches that go on at offset {base_offset} and not at {reached}"
        position, reached = batch_end, base_offset + last_offset_delta + 1
    if reached != end or (size and reached <= start):
        return f"says that offset {end} is next, behind batches from {start} on that end at {reached}"
    return None
