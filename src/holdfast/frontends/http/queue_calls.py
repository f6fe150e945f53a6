"""Numbered queues: create one, append a value, read the next one.

`/append` and `/read` are what a client does all day, so both can go the short way (`short_way.py`): their `begin_`
functions do all the work, and the handlers wait for what those began.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import body_error, decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response, json_text
from holdfast.frontends.http.services import Services
from holdfast.model.messages import Published, StoredMessage

_create_decoder: Final = msgspec.json.Decoder(schema.CreateQueue)
_decode_append: Final = msgspec.json.Decoder(schema.Append).decode
_decode_read: Final = msgspec.json.Decoder(schema.Read).decode
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_encode: Final = msgspec.json.Encoder().encode

_NOTHING: Final = b'{"message_id":null,"value":null}'


async def create_queue(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_create_decoder, await request.body())
    return json_response(schema.CreatedQueue(await services.queues.create(wanted.request_id)))


async def append(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    done, response_of = begin_append(services, await request.body())
    return response_of(await asyncio.shield(done))


async def read(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    done, response_of = begin_read(services, await request.body())
    return response_of(await asyncio.shield(done))


def begin_append(services: Services, body: bytes) -> tuple[asyncio.Future[Published], Callable[[Published], Response]]:
    try:
        wanted = _decode_append(body)
        value = bytes(wanted.value)
        if not value.isdigit():
            # The text as it was sent, less its blanks: decoding it would round its numbers.
            value = msgspec.json.format(value, indent=-1)
            value.decode()
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None
    return services.queues.append(wanted.queue_id, value, wanted.id), _appended


def _appended(published: Published) -> Response:
    if published.duplicate or published.buffered:
        message_id = None if published.buffered else published.offset + 1
        return json_response(schema.Appended(message_id, published.duplicate, published.buffered))
    return json_text(b'{"message_id":%d}' % (published.offset + 1))


def begin_read(
    services: Services, body: bytes
) -> tuple[asyncio.Future[StoredMessage | None], Callable[[StoredMessage | None], Response]]:
    try:
        wanted = _decode_read(body)
    except (ValueError, RecursionError) as error:
        raise body_error(error, body) from None
    return services.queues.reads.read(wanted.queue_id, wanted.client_id, wanted.request_id), _was_read


def _was_read(message: StoredMessage | None) -> Response:
    if message is None:
        return json_text(_NOTHING)
    return json_text(b'{"message_id":%d,%b}' % (message.offset + 1, value_fields(message)))


def value_fields(message: StoredMessage) -> bytes:
    """A message's value as fields of JSON: as it is where it is JSON, else as a text that says what it is."""
    value = message.value
    if value.isdigit() and (value[0] != 48 or value == b"0"):
        return b'"value":%b' % value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return b'"value":"%b","encoding":"base64"' % base64.b64encode(value)
    try:
        _check_json(value)
    except (ValueError, RecursionError):
        return b'"value":%b,"encoding":"text"' % _encode(text)
    return b'"value":%b' % value
