"""What people hand over becomes messages: values as bytes, headers as pairs, ids where they are needed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from holdfast.model.errors import BadMessage, BadMessageId, TooLarge
from holdfast.model.ids import MessageId
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX
from holdfast.model.messages import Header, NewMessage
from holdfast.model.names import message_id
from holdfast.wire.record_batch import ID_HEADER

# What `publish` takes as a value: bytes, text, or anything that is JSON.
Value = Any
Headers = Mapping[str, str | bytes]

_encode_json = msgspec.json.Encoder().encode


def value_bytes(value: Value) -> bytes:
    """Bytes as they are, text as UTF-8, everything else as compact JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _utf8(value, "the value")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return _encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessage(f"a value is bytes, text or JSON; this {type(value).__name__} is none: {error}") from error


def new_message(
    value: Value, key: str | bytes | None = None, id: str | None = None, headers: Headers | None = None
) -> NewMessage:
    return NewMessage(
        value=value_bytes(value),
        key=key if key is None or isinstance(key, bytes) else _text_or_bytes(key, "the key"),
        id=None if id is None else _text_id(id),
        headers=_header_pairs(headers) if headers else (),
    )


def _header_pairs(headers: Headers) -> tuple[Header, ...]:
    if len(headers) > HEADERS_PER_MESSAGE_MAX:
        raise TooLarge(f"the message has {len(headers)} headers; at most {HEADERS_PER_MESSAGE_MAX} are allowed")
    for name in headers:
        _utf8(name, "a header's name")
        if name == ID_HEADER:
            raise BadMessage(f"the header {ID_HEADER} is where the id travels; give it as id=")
    return tuple(
        (name, content if isinstance(content, bytes) else _text_or_bytes(content, f"the header {name!r}"))
        for name, content in headers.items()
    )


def _text_id(given: object) -> MessageId:
    if not isinstance(given, str):
        raise BadMessageId(f"a message id must be text, not {type(given).__name__}")
    return message_id(given)


def _text_or_bytes(given: object, what: str) -> bytes:
    if isinstance(given, str):
        return _utf8(given, what)
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise BadMessage(f"{what} must be text or bytes, not {type(given).__name__}")


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(f"{what} is not valid text: {error.reason} at character {error.start}") from error


class IdMaker:
    """Ids that no other client makes: 64 random bits for the client, a number for the message.

    Cheaper than a UUID for every message, and short: the broker keeps each id for its dedupe window.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = count()

    def next(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def made(self, id: str | None) -> bool:
        """Whether an id came from here and not from the user."""
        return id is not None and id.startswith(self._prefix)
