"""Whether batches came as they were sent. Executors that have the compiled `crc32c` check; others trust TCP's sums."""

from __future__ import annotations

import struct
from typing import Final

try:
    from crc32c import crc32c
except ImportError:  # an executor that has only what the driver sent it: Python files
    crc32c = None  # type: ignore[assignment]

_LENGTH_PREFIX_BYTES: Final = 12
# length at 8, CRC at 17; the CRC covers everything from 21 on.
_LENGTH_AND_CRC: Final = struct.Struct(">8xi5xI")
_CRC_FROM: Final = 21


def batches_match(data: bytearray) -> bool:
    """Whether these are whole batches, each with the sum it says."""
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        if size - position < _LENGTH_AND_CRC.size:
            return False
        batch_length, crc = _LENGTH_AND_CRC.unpack_from(view, position)
        end = position + _LENGTH_PREFIX_BYTES + batch_length
        if batch_length <= 0 or end > size:
            return False
        if crc32c is not None and crc32c(view[position + _CRC_FROM : end]) != crc:
            return False
        position = end
    return True
