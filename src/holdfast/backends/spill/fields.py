"""A value as a field of a line: as it is where that is JSON on one line, else as text, else as base64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

PAYLOAD: Final = b'"payload":'
_CONTROL: Final = bytes(range(32))
_JSON_BEGINS: Final = frozenset(bytes([byte]) for byte in b'{["-0123456789tfn')

encode: Final = msgspec.json.Encoder().encode
_decode_values: Final = msgspec.json.Decoder(list[Raw]).decode


def are_json(values: list[bytes]) -> bool:
    """Whether all values are JSON on one line, written so that it comes back as it was."""
    joined = b",".join(values)
    if joined[:1] not in _JSON_BEGINS:
        return False
    try:
        # A comma in the wrong place could make other values of the same bytes: they are compared.
        if list(map(bytes, _decode_values(b"[" + joined + b"]"))) != values:
            return False
        joined.decode()
    except (ValueError, RecursionError):
        return False
    return len(joined.translate(None, _CONTROL)) == len(joined)


def are_on_one_line(values: Sequence[bytes]) -> bool:
    """The same of values that are known to be JSON: between its words it may have no other control characters."""
    joined = b"".join(values)
    return not (b"\n" in joined or b"\t" in joined or b"\r" in joined)


def field(value: bytes) -> bytes:
    """The name and the content of a value's field."""
    if are_json([value]):
        return PAYLOAD + value
    try:
        return b'"payload_text":' + encode(value.decode())
    except UnicodeDecodeError:
        return b'"payload_base64":' + encode(value)
