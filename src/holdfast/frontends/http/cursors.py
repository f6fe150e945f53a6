"""Cursors: a named reader's place, kept by the broker."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.cursors import CursorRead
from holdfast.frontends.http import schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, Request, Response, json_response, no_content
from holdfast.frontends.http.params import FlagParam, PlaceParam
from holdfast.frontends.http.publish import finished
from holdfast.frontends.http.read import MAX, MAX_BYTES, WAIT_MS, message, size_of_messages
from holdfast.frontends.http.services import Services, Woken
from holdfast.model.ids import Offset

FROM: Final = PlaceParam(
    name="from", default="earliest", doc="where the cursor begins if this read makes it: as `offset` elsewhere"
)
AUTO_ACK: Final = FlagParam(name="auto_ack", doc="acknowledge in the same step: messages are lost if this answer is")

_ack_decoder: Final = msgspec.json.Decoder(schema.Ack)
_seek_decoder: Final = msgspec.json.Decoder(schema.Seek)


async def list_cursors(services: Services, request: Request) -> Response:
    return json_response(schema.Cursors(services.broker.cursors()))


async def list_topic_cursors(services: Services, request: Request) -> Response:
    return json_response(schema.Cursors(services.broker.cursors(request.params[0])))


async def describe_cursor(services: Services, request: Request) -> Response:
    topic, name = request.params
    return json_response(services.broker.describe_cursor(topic, name))


async def read_cursor(services: Services, request: Request) -> Response:
    topic, name = request.params
    broker = services.broker
    source = services.delivers_from(topic)
    start, auto_ack = FROM.of(request.query), AUTO_ACK.of(request.query)
    messages_max, bytes_max = MAX.of(request.query), MAX_BYTES.of(request.query)
    wait_s = WAIT_MS.of(request.query) / 1000

    async def read(room: int) -> CursorRead:
        return await broker.read_cursor(topic, name, start=start, messages_max=messages_max, bytes_max=room)

    async def read_once() -> tuple[list[schema.Message], dict[int, Offset]]:
        found = await services.read_in_room(read, _size_of, bytes_max)
        if auto_ack and found.ack:
            await broker.ack_cursor(topic, name, found.ack)
        broker.stats.count_delivery(len(found.messages), sum(len(stored.value) for _, stored in found.messages))
        return [message(stored, partition) for partition, stored in found.messages], found.ack

    messages, ack = await read_once()
    if not messages and wait_s:
        positions = {one.partition: one.offset for one in broker.describe_cursor(topic, name).partitions}
        if await services.wait(request, source, positions, wait_s) is Woken.DATA:
            messages, ack = await read_once()
    return json_response(schema.CursorMessages(messages, {str(number): offset for number, offset in ack.items()}))


def _size_of(found: CursorRead) -> int:
    return size_of_messages([stored for _, stored in found.messages])


async def ack_cursor(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    topic, name = request.params
    offsets = decoded(_ack_decoder, await request.body()).offsets
    await finished(services.broker.ack_cursor(topic, name, {p: Offset(o) for p, o in offsets.items()}))
    return json_response(services.broker.describe_cursor(topic, name))


async def seek_cursor(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    topic, name = request.params
    seek = decoded(_seek_decoder, await request.body())
    services.delivers_from(topic)
    return json_response(await services.broker.seek_cursor(topic, name, seek.to, seek.partition))


async def delete_cursor(services: Services, request: Request) -> Response:
    topic, name = request.params
    await services.broker.delete_cursor(topic, name)
    return no_content()
