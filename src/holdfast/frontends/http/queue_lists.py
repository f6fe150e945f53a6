"""Everything that numbered queues hold: their ids, their messages, the pointers of their clients.

Without a `limit` an answer has all there is, and is written while it is read: no more than a piece of it is in memory.
With one it is a page, with `next` to go on from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, NamedTuple

import msgspec

from holdfast.broker import queue_names
from holdfast.frontends.http import queue_schema as schema
from holdfast.frontends.http.errors import decoded
from holdfast.frontends.http.exchange import JSON_TYPE, NO_STORE, Request, Response, json_response, json_text
from holdfast.frontends.http.queue_calls import value_fields
from holdfast.frontends.http.services import Services
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import HTTP_READ_BYTES_MAX, KIB
from holdfast.model.messages import StoredMessage

_queues_decoder: Final = msgspec.json.Decoder(schema.QueuesWanted)
_messages_decoder: Final = msgspec.json.Decoder(schema.MessagesWanted)
_pointers_decoder: Final = msgspec.json.Decoder(schema.PointersWanted)
_encode: Final = msgspec.json.Encoder().encode

# What is read and written at once.
_PIECE_BYTES: Final = 256 * KIB
_PIECE_MESSAGES: Final = 1000


async def get_all_queues(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_queues_decoder, await request.body())
    await services.broker.backend.catch_up_cursors()
    ids = [number for number in services.queues.ids() if number > (wanted.after or 0)]
    if wanted.limit is None:
        return json_response(schema.Queues(ids))
    page = ids[: wanted.limit]
    following = page[-1] if len(ids) > len(page) else None
    return json_text(b'{"queue_ids":%b,"next":%b}' % (_encode(page), _encode(following)))


async def next_queue(services: Services, request: Request) -> Response:
    return json_response(schema.NextQueue(await services.queues.next_number()))


# --- messages -----------------------------------------------------------------------------------------


class _Stretch(NamedTuple):
    """A part of a queue, as long as it was when it was asked for."""

    queue_id: int
    topic: TopicName
    begin: Offset
    end: Offset


async def get_all_messages(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_messages_decoder, await request.body())
    stretches = await _stretches(services, wanted)
    if wanted.limit is None:
        head = [(b"content-type", JSON_TYPE.encode()), NO_STORE]
        return Response(200, head, stream=_listed(b"messages", _written(services, stretches)))
    found: list[bytes] = []
    size = 0
    last: schema.MessagePlace | None = None
    async for queue_id, messages in _messages(services, stretches, wanted.limit + 1):
        for message in messages:
            if len(found) == wanted.limit or size > HTTP_READ_BYTES_MAX:
                return json_text(b'{"messages":[%b],"next":%b}' % (b",".join(found), _encode(last)))
            found.append(_listed_message(queue_id, message))
            size += len(found[-1])
            last = schema.MessagePlace(queue_id, message.offset + 1)
    return json_text(b'{"messages":[%b],"next":null}' % b",".join(found))


async def _stretches(services: Services, wanted: schema.MessagesWanted) -> list[_Stretch]:
    backend = services.broker.backend
    await backend.catch_up_cursors()
    if wanted.queue_id is not None:
        await services.queues.find(wanted.queue_id)
    ids = services.queues.ids() if wanted.queue_id is None else [wanted.queue_id]
    after = wanted.after
    found = []
    for number in ids:
        if after is not None and number < after.queue_id:
            continue
        topic = queue_names.topic_of(number)
        partition = PartitionId(topic, 0)
        try:
            await backend.catch_up(partition)
            begin, end = backend.start_offset(partition), backend.end_offset(partition)
        except TopicNotFound:
            continue  # deleted in this moment
        if after is not None and number == after.queue_id:
            begin = Offset(max(begin, after.message_id))
        if begin < end:
            found.append(_Stretch(number, topic, begin, end))
    return found


async def _messages(
    services: Services, stretches: list[_Stretch], messages_max: int
) -> AsyncIterator[tuple[int, list[StoredMessage]]]:
    """Pieces of the stretches in their order, until there are so many messages."""
    broker = services.broker
    for queue_id, topic, begin, end in stretches:
        offset = begin
        while offset < end and messages_max > 0:
            count = min(end - offset, messages_max, _PIECE_MESSAGES)
            try:
                messages, offset = await broker.read(topic, 0, offset, count, _PIECE_BYTES)
            except TopicNotFound:
                break  # deleted meanwhile
            except (OffsetOutOfRange, DamagedData):
                # What expired meanwhile is gone, and what is damaged is said where somebody reads it.
                following = broker.backend.next_readable(PartitionId(topic, 0), offset)
                if following <= offset:
                    raise
                offset = following
                continue
            messages_max -= len(messages)
            yield queue_id, messages


async def _written(services: Services, stretches: list[_Stretch]) -> AsyncIterator[bytes]:
    messages_max = sum(stretch.end - stretch.begin for stretch in stretches)
    async for queue_id, messages in _messages(services, stretches, messages_max):
        yield b",".join(_listed_message(queue_id, message) for message in messages)


def _listed_message(queue_id: int, message: StoredMessage) -> bytes:
    return b'{"message_id":%d,"queue_id":%d,%b}' % (message.offset + 1, queue_id, value_fields(message))


async def _listed(field: bytes, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """`pieces` as the one list of an object."""
    before = b'{"%b":[' % field
    async for piece in pieces:
        yield before + piece
        before = b","
    yield b"]}" if before == b"," else before + b"]}"


# --- pointers -----------------------------------------------------------------------------------------


async def get_all_pointers(services: Services, request: Request) -> Response:
    request.require_type(JSON_TYPE)
    wanted = decoded(_pointers_decoder, await request.body())
    backend = services.broker.backend
    await backend.catch_up_cursors()
    # A processor's output may be what is read of a queue: its cursors are the queue's.
    queues = {services.broker.delivers_from(queue_names.topic_of(number)): number for number in services.queues.ids()}
    places = []
    for topic, cursor in backend.cursors():
        number, client = queues.get(topic), queue_names.client_of(cursor)
        if number is not None and client is not None:
            places.append((number, client, topic, cursor))
    places.sort(key=lambda place: place[:2])
    if wanted.after is not None:
        places = [place for place in places if place[:2] > (wanted.after.queue_id, wanted.after.client_id)]
    page = places if wanted.limit is None else places[: wanted.limit]

    async def written() -> AsyncIterator[bytes]:
        for begin in range(0, len(page), _PIECE_MESSAGES):
            pointers = []
            for queue_id, client, topic, cursor in page[begin : begin + _PIECE_MESSAGES]:
                position = (backend.cursor(topic, cursor) or {}).get(0)
                if position is not None:
                    pointers.append(_encode(schema.Pointer(queue_id, client, position)))
            if pointers:
                yield b",".join(pointers)

    if wanted.limit is None:
        return Response(200, [(b"content-type", JSON_TYPE.encode()), NO_STORE], stream=_listed(b"pointers", written()))
    following = schema.PointerPlace(*page[-1][:2]) if len(places) > len(page) else None
    listed = b",".join([piece async for piece in written()])
    return json_text(b'{"pointers":[%b],"next":%b}' % (listed, _encode(following)))
