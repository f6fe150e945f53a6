"""Zigzag varints, as Kafka's record format uses them for lengths and deltas."""

from __future__ import annotations

from holdfast.model.errors import BadBatch

_VARINT_BITS_MAX = 63
# Lengths of keys, ids and most values, and most places in a batch, are below this.
_SMALL_END = 1024


def encode(value: int) -> bytes:
    """The zigzag varint of a signed number."""
    if 0 <= value < _SMALL_END:
        return _small[value]
    return _encode(value)


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position behind it; `BadBatch` if it does not end."""
    try:
        byte = data[position]
        position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position
        rest = byte & 0x7F
        shift = 7
        while True:
            byte = data[position]
            position += 1
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (rest >> 1) ^ -(rest & 1), position
            shift += 7
            if shift > _VARINT_BITS_MAX:
                raise BadBatch("a number in the batch is longer than 64 bits")
    except IndexError:
        raise BadBatch("the batch ends in the middle of a record") from None


_small = [_encode(value) for value in range(_SMALL_END)]
