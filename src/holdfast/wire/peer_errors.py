"""Errors as nodes send them to each other, so that they come out as what they were raised as.

The body of a refused reply is JSON: `{"code": …, "message": …, "status": …, "next_offset": …, "allowed": …}`, the
last two only for the errors that have them. A code that this node does not know becomes a `RemoteError` with it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model import errors, member_errors
from holdfast.model.errors import BadPeerFrame, DamagedData, HoldfastError, MethodNotAllowed, RemoteError


class _Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    status: int = 500
    next_offset: int = 0
    allowed: str = ""


_decoder = msgspec.json.Decoder(_Carried)
# Where a class and one that is derived from it share a code, the more exact one, which is defined later.
_CLASSES: Final[dict[str, type[HoldfastError]]] = {
    found.code: found
    for found in (*vars(errors).values(), *vars(member_errors).values())
    if isinstance(found, type) and issubclass(found, HoldfastError) and not issubclass(found, RemoteError)
}


def encode_error(error: HoldfastError) -> bytes:
    return msgspec.json.encode(
        _Carried(
            error.code,
            error.message,
            error.http_status,
            error.next_offset if isinstance(error, DamagedData) else 0,
            error.allowed if isinstance(error, MethodNotAllowed) else "",
        )
    )


def decode_error(body: bytes | bytearray | memoryview) -> HoldfastError:
    """The error a peer refused with; raises `BadPeerFrame` if the body is none."""
    try:
        carried = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadPeerFrame(f"a REPLY refuses without an error: {error}") from error
    kind = _CLASSES.get(carried.code)
    if kind is None:
        return RemoteError(carried.code, carried.message, carried.status)
    if issubclass(kind, DamagedData):
        return kind(carried.message, carried.next_offset)
    if issubclass(kind, MethodNotAllowed):
        return kind(carried.message, carried.allowed)
    return kind(carried.message)
