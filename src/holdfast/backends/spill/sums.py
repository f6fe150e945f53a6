"""The end of a line: the sum of everything before it, so that a bit that flips costs one line.

`,"crc":"` and eight hexadecimal digits of CRC32C, then `"}` and the line break. Sums are made and compared in bulk.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from crc32c import crc32c

_SUM: Final = b',"crc":"'
_END: Final = b'"}\n'
# Bytes of a line's end: the sum with its name, and the brace.
_TAIL_BYTES: Final = len(_SUM) + 8 + len(_END) - 1
_HEX: Final = re.compile(rb"[0-9a-f]+\Z")


def summed(head: bytes, rests: Sequence[bytes]) -> bytes:
    """Lines that begin alike, each with the sum of what is in it."""
    parts: list[bytes] = [_SUM] * (4 * len(rests))
    parts[0::4] = rests
    parts[2::4] = _digits(map(crc32c, rests, repeat(crc32c(head))))
    parts[3::4] = [_END + head] * len(rests)
    parts[-1] = _END
    return head + b"".join(parts)


def summed_pairs(heads: Sequence[bytes], rests: Sequence[bytes]) -> bytes:
    """Lines of two parts each."""
    parts: list[bytes] = [_SUM] * (5 * len(rests))
    parts[0::5] = heads
    parts[1::5] = rests
    parts[3::5] = _digits(map(crc32c, rests, map(crc32c, heads)))
    parts[4::5] = [_END] * len(rests)
    return b"".join(parts)


def _digits(sums: Iterable[int]) -> list[bytes]:
    made = array("I", sums)
    if sys.byteorder == "little":
        made.byteswap()
    return made.tobytes().hex(",", 4).encode().split(b",")


def match(lines: list[bytes]) -> bool:
    """Whether all lines have the sums they tell. What stands around these is not looked at: see `fault`."""
    told = b"".join([line[-10:-2] for line in lines])
    if len(told) != 8 * len(lines) or not _HEX.match(told):
        return False
    sums = array("I", bytes.fromhex(told.decode()))
    if sys.byteorder == "little":
        sums.byteswap()
    return array("I", map(crc32c, [line[:-_TAIL_BYTES] for line in lines])) == sums


def fault(line: bytes) -> str | None:
    """What is wrong with the end of a line."""
    told = line[-10:-2]
    if line[-_TAIL_BYTES:-10] != _SUM or line[-2:] != _END[:-1] or not _HEX.match(told):
        return "it does not end with its sum"
    return None if crc32c(line[:-_TAIL_BYTES]) == int(told, 16) else "its sum does not match"


def whole_bytes(data: bytes) -> int:
    """How much of what a crash left is whole lines: up to the end of the last good one."""
    end = data.rfind(b"\n") + 1
    while end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        if fault(data[begin : end - 1]) is None:
            return end
        end = begin
    return 0
