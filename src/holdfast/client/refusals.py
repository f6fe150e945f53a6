"""What an answer with an error says, and whether a broker said it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from holdfast.client.connection import Response
from holdfast.model.errors import RemoteError

# Of no broker: something at its address, or in between, answers in words of its own.
_FOREIGN: Final = "http_"


class ErrorBody(msgspec.Struct):
    """Codes of brokers are lower-case words; others who answer with such an object have other ones."""

    code: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
    message: str
    next_offset: int | None = None


class _ErrorAnswer(msgspec.Struct):
    error: ErrorBody


_decode_error = msgspec.json.Decoder(_ErrorAnswer).decode


def error_body(response: Response) -> ErrorBody:
    """What the broker says went wrong; also where something in front of it answers in another format."""
    try:
        return _decode_error(response.body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = response.body[:200].decode("utf-8", "replace").strip()
        return ErrorBody(code=f"{_FOREIGN}{response.status}", message=f"answered {response.status}: {text}")


def remote_error(response: Response) -> RemoteError:
    body = error_body(response)
    return RemoteError(body.code, body.message, response.status, body.next_offset)


def is_foreign(error: ErrorBody | RemoteError) -> bool:
    """Whether no broker said so: it tells nothing of what a broker would say, or has done."""
    return error.code.startswith(_FOREIGN)
