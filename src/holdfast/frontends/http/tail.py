"""A topic as a stream of server-sent events that a slow reader cannot make expensive.

Nothing is queued for a reader: it has a position in each partition, and what it gets next is made when its connection
takes more, of what `event_cache.py` keeps or of what is stored. A reader that stands still costs one piece of at most a
few hundred kilobytes, however far the log runs ahead of it and however large its batches are.

    id: 0-41                                   partition and offset, for Last-Event-ID
    data: {"partition":0,"offset":41,...}      the message

    event: gap                                 messages that cannot be read any more
    data: {"partition":0,"from":5,"to":9,"reason":"damaged_data"}

    event: end                                 the stream is over and will not go on: the topic is gone
    data: {"error":{...}}

In a cluster a stream shows what the node it comes from has, as it gets it: late where that node is behind or
cut off, never wrong. Only where it begins is asked of the others.

A topic of several partitions is resumed from all of them, so its ids list every partition, the
message's own first. That can be long, so not every event has one: a reader that resumes may see a few
events again, and misses none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from holdfast.broker.outgoing import piece_bytes
from holdfast.frontends.http.errors import error_body
from holdfast.frontends.http.event_cache import Piece, Place
from holdfast.frontends.http.exchange import NO_STORE, Request, Response
from holdfast.frontends.http.params import OptionalIntParam, PlaceParam, shown
from holdfast.frontends.http.read import STALE, STALE_HEADER, message
from holdfast.frontends.http.services import Services, Woken
from holdfast.model.errors import BadValue, DamagedData, HoldfastError, OffsetOutOfRange, TopicNotFound, Unavailable
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import MIB, STALE_AFTER_MS
from holdfast.model.topics import Topic

EVENT_STREAM_TYPE: Final = "text/event-stream"
# Proxies and firewalls drop connections that are silent for a minute, some for half of one.
KEEP_ALIVE_S: Final = 15.0
# What is read and decoded at once, for all streams at one place.
_READ_BYTES: Final = MIB
_READ_MESSAGES: Final = 1000
# An event is held as it is made, and as it is written.
_COPIES: Final = 2
# Where an id lists all partitions, every so many events have one.
_EVENTS_PER_LONG_ID: Final = 32

FROM: Final = PlaceParam(
    name="from", default="latest", doc="where to begin: 'earliest', 'latest', an offset, or '-10m' (s, m, h, d) ago"
)
PARTITION: Final = OptionalIntParam(name="partition", doc="only this partition")

_encode = msgspec.json.Encoder().encode


async def tail(services: Services, request: Request) -> Response:
    broker = services.broker
    topic = services.delivers_from(request.params[0])
    partition = PARTITION.of(request.query)
    start, stale = FROM.of(request.query), STALE.of(request.query)
    partitions = [one.partition for one in broker.describe_topic(topic).partitions]
    numbers = partitions if partition is None else [partition]
    resumed = _positions(request.header(b"last-event-id"))
    positions = {
        number: resumed[number] if number in resumed else await broker.resolve_offset(topic, number, start, stale=stale)
        for number in numbers
    }
    headers = [(b"content-type", EVENT_STREAM_TYPE.encode()), NO_STORE, (b"x-accel-buffering", b"no")]
    if stale:
        headers.append((STALE_HEADER, b"%d" % max(broker.staleness_ms(topic, number) for number in numbers)))
    return Response(200, headers, stream=_events(services, request, topic, positions))


async def _events(
    services: Services, request: Request, topic: str, positions: dict[int, Offset]
) -> AsyncGenerator[bytes, None]:
    services.tails += 1
    followed = services.broker.backend.topic(TopicName(topic))
    try:
        yield b"retry: 1000\n\n"
        while not (services.stopping or request.gone.done()):
            idle = True
            for number in positions:
                await services.broker.turns.take()
                events, held = await _next_events(services, topic, number, positions, followed)
                if events:
                    idle = False
                    try:
                        yield events
                    finally:
                        services.broker.outgoing.hold(-held)
            if not idle:
                continue
            woken = await services.wait(request, topic, positions, KEEP_ALIVE_S)
            if woken in {Woken.READER_GONE, Woken.STOPPING}:
                return
            if woken is Woken.TIMEOUT:
                stale_ms = max(services.broker.staleness_ms(topic, number) for number in positions)
                yield b": nothing new\n\n" if stale_ms < STALE_AFTER_MS else b": cut off for %d ms\n\n" % stale_ms
    except Unavailable:
        return  # a stream that just ends is resumed, here or at another node
    except HoldfastError as error:
        yield b"event: end\ndata: %b\n\n" % _encode(error_body(error))
    finally:
        services.tails -= 1


async def _next_events(
    services: Services, topic: str, number: int, positions: dict[int, Offset], followed: Topic | None
) -> tuple[bytes, int]:
    """What comes next in one partition, or nothing, and how much is held for it; moves the position behind it."""
    outgoing = services.broker.outgoing
    piece = await _next_piece(services, topic, number, positions, followed)
    if not isinstance(piece, Piece):
        return piece, 0
    size = sum(map(len, piece.data))
    held = _COPIES * size if size > piece_bytes(services.tails) else 0
    if held and not outgoing.has_room(held):
        # A large message. Nothing of it is held while it waits for room.
        del piece
        await outgoing.room(held)
        try:
            piece = await _next_piece(services, topic, number, positions, followed)
        except BaseException:
            outgoing.hold(-held)
            raise
        if not isinstance(piece, Piece):
            outgoing.hold(-held)
            return piece, 0
    else:
        outgoing.hold(held)
    positions[number] = piece.next_offset
    services.broker.stats.count_delivery(len(piece.offsets), size)
    return _events_of(number, piece, positions), held


async def _next_piece(
    services: Services, topic: str, number: int, positions: dict[int, Offset], followed: Topic | None
) -> Piece | bytes:
    """What stands at the position of one partition; or that messages are gone, behind which the position is moved."""
    broker, cache = services.broker, services.events
    position = positions[number]
    _check_topic(services, topic, followed)
    start, end = broker.partition_range(topic, number)
    if position == end:
        return b""
    partition = PartitionId(TopicName(topic), number)
    place = Place(broker.backend.topic(partition.topic), number, position, len(broker.backend.cuts(partition)))
    bytes_max = piece_bytes(services.tails)
    piece = cache.find(place, bytes_max) if position < end else None
    if piece is None:
        try:
            # Beyond the end, it matters whether this node is behind or the log is another one.
            found, _ = await broker.read(topic, number, position, _READ_MESSAGES, _READ_BYTES, stale=position < end)
        except OffsetOutOfRange as error:
            # Expired while the reader was slow, or another topic of the same name: its start is what is there.
            positions[number] = start
            return _gap(number, position, start, error)
        except DamagedData as error:
            next_offset = getattr(error, "next_offset", None)
            if next_offset is None:
                raise
            positions[number] = Offset(next_offset)
            return _gap(number, position, next_offset, error)
        _check_topic(services, topic, followed)
        if not found:
            return b""
        cache.keep(place, [one.offset for one in found], [_encode(message(one, number)) for one in found])
        piece = cache.find(place, bytes_max)
        assert piece is not None, "the newest are kept"
    return piece


def _check_topic(services: Services, topic: str, followed: Topic | None) -> None:
    """Offsets of a topic mean nothing in another one of its name. Raises `TopicNotFound`."""
    if services.broker.backend.topic(TopicName(topic)) not in (followed, None):
        raise TopicNotFound(f"topic {topic} was deleted and created again")


def _events_of(number: int, piece: Piece, positions: dict[int, Offset]) -> bytes:
    events: list[bytes] = []
    others = b"".join(b",%d-%d" % (other, at - 1) for other, at in positions.items() if other != number)
    for left, offset, data in zip(reversed(range(len(piece.data))), piece.offsets, piece.data, strict=True):
        if not others or left % _EVENTS_PER_LONG_ID == 0:
            events.append(b"id: %d-%d%b\n" % (number, offset, others))
        events.append(b"data: %b\n\n" % data)
    return b"".join(events)


def _gap(number: int, begin: int, end: int, error: HoldfastError) -> bytes:
    data = _encode({"partition": number, "from": begin, "to": end, "reason": error.code})
    return b"event: gap\ndata: %b\n\n" % data


def _positions(last_event_id: str) -> dict[int, Offset]:
    """By partition, the offset behind the last event that a reader saw."""
    positions: dict[int, Offset] = {}
    for part in last_event_id.split(",") if last_event_id else ():
        number, _, offset = part.partition("-")
        if not (number.isdecimal() and offset.removeprefix("-").isdecimal() and len(part) < 30):
            raise BadValue(f"Last-Event-ID must be an id of this stream, as 0-41, not {shown(last_event_id)}")
        positions[int(number)] = Offset(max(0, int(offset) + 1))
    return positions
