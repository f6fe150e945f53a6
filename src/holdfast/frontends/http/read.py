"""Messages out of one partition, as JSON or as the stored batches, and offsets by time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.frontends.http import schema
from holdfast.frontends.http.accept import prefers
from holdfast.frontends.http.exchange import BATCHES_TYPE, JSON_TYPE, NO_STORE, Request, Response, json_response
from holdfast.frontends.http.params import IntParam, PlaceParam, TextParam, partition_number, whole_number
from holdfast.frontends.http.services import Services, Woken
from holdfast.model.ids import Offset
from holdfast.model.limits import (
    HTTP_READ_BYTES_MAX,
    HTTP_READ_MESSAGES_DEFAULT,
    HTTP_READ_MESSAGES_MAX,
    LONG_POLL_MS_MAX,
    MIB,
)
from holdfast.model.messages import StoredMessage
from holdfast.wire.record_batch import header

T = TypeVar("T", bound=Sequence[object])

OFFSET: Final = PlaceParam(
    name="offset", default="earliest", doc="where to begin: 'earliest', 'latest', an offset, or '-10m' (s, m, h, d) ago"
)
MAX: Final = IntParam(
    name="max",
    default=HTTP_READ_MESSAGES_DEFAULT,
    minimum=1,
    maximum=HTTP_READ_MESSAGES_MAX,
    doc="the most messages to answer with",
)
MAX_BYTES: Final = IntParam(
    name="max_bytes",
    default=MIB,
    minimum=1,
    maximum=HTTP_READ_BYTES_MAX,
    doc="about how many bytes to answer with; a single message or batch may be larger",
)
WAIT_MS: Final = IntParam(
    name="wait_ms",
    default=0,
    minimum=0,
    maximum=LONG_POLL_MS_MAX,
    doc="how long to wait for the first message where there is none",
)
TIMESTAMP: Final = TextParam(
    name="timestamp", example="1789000000000", doc="milliseconds since 1970 (UTC), 'earliest' or 'latest'"
)


async def read(services: Services, request: Request) -> Response:
    topic, partition = request.params[0], partition_number(request.params[1])
    bytes_max = MAX_BYTES.of(request.query)
    messages_max = MAX.of(request.query)
    wait_s = WAIT_MS.of(request.query) / 1000
    broker = services.broker
    offset = await broker.resolve_offset(topic, partition, OFFSET.of(request.query))

    if prefers(request.header(b"accept"), (JSON_TYPE, BATCHES_TYPE)) == BATCHES_TYPE:
        batches = await _read_or_wait(
            services, request, wait_s, offset, lambda: broker.read_batches(topic, partition, offset, bytes_max)
        )
        return _batches_response(services, topic, partition, offset, batches)

    async def messages() -> list[StoredMessage]:
        return (await broker.read(topic, partition, offset, messages_max, bytes_max))[0]

    found = await _read_or_wait(services, request, wait_s, offset, messages)
    next_offset = found[-1].offset + 1 if found else offset
    broker.stats.count_delivery(len(found), sum(len(one.value) for one in found))
    return json_response(schema.Messages([message(one) for one in found], next_offset))


async def _read_or_wait(
    services: Services, request: Request, wait_s: float, offset: Offset, read_once: Callable[[], Awaitable[T]]
) -> T:
    """What is there, or what comes within `wait_s`."""
    found = await read_once()
    if found or not wait_s:
        return found
    topic, partition = request.params[0], partition_number(request.params[1])
    if await services.wait(request, topic, {partition: offset}, wait_s) is Woken.DATA:
        return await read_once()
    return found


def _batches_response(
    services: Services, topic: str, partition: int, offset: Offset, batches: Sequence[memoryview]
) -> Response:
    next_offset = header(batches[-1]).next_offset if batches else offset
    count = sum(header(batch).record_count for batch in batches)
    services.broker.stats.count_delivery(count, sum(map(len, batches)))
    start, end = services.broker.partition_range(topic, partition)
    headers = [
        (b"content-type", BATCHES_TYPE.encode()),
        NO_STORE,
        (b"holdfast-next-offset", b"%d" % next_offset),
        (b"holdfast-start-offset", b"%d" % start),
        (b"holdfast-end-offset", b"%d" % end),
    ]
    return Response(200, headers, b"".join(batches))


async def offset_at(services: Services, request: Request) -> Response:
    topic, partition = request.params[0], partition_number(request.params[1])
    when = TIMESTAMP.of(request.query)
    if when in {"earliest", "latest"}:
        offset = await services.broker.resolve_offset(topic, partition, when)
    else:
        offset = await services.broker.offset_at(topic, partition, whole_number(when, TIMESTAMP.name))
    return json_response(schema.OffsetAnswer(offset))


def message(stored: StoredMessage, partition: int | msgspec.UnsetType = msgspec.UNSET) -> schema.Message:
    """A stored message in the words of the interface: text where it is text, base64 where it is not."""
    value: str | msgspec.UnsetType = msgspec.UNSET
    value_bytes: bytes | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType | None = None
    key_bytes: bytes | msgspec.UnsetType = msgspec.UNSET
    try:
        value = stored.value.decode()
    except UnicodeDecodeError:
        value_bytes = stored.value
    if stored.key is not None:
        try:
            key = stored.key.decode()
        except UnicodeDecodeError:
            key, key_bytes = msgspec.UNSET, stored.key
    headers, headers_bytes = _headers(stored) if stored.headers else ({}, msgspec.UNSET)
    return schema.Message(
        partition=partition,
        offset=stored.offset,
        timestamp=stored.timestamp_ms,
        id=stored.id,
        key=key,
        key_base64=key_bytes,
        value=value,
        base64=value_bytes,
        headers=headers,
        headers_base64=headers_bytes,
    )


def _headers(stored: StoredMessage) -> tuple[dict[str, str], dict[str, bytes] | msgspec.UnsetType]:
    texts: dict[str, str] = {}
    others: dict[str, bytes] = {}
    for name, content in stored.headers:
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError:
            others[name] = content
    return texts, others or msgspec.UNSET
