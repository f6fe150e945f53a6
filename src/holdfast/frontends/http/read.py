"""Messages out of one partition, as JSON or as the stored batches, and offsets by time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.broker.places import parse_place
from holdfast.frontends.http import schema
from holdfast.frontends.http.accept import prefers
from holdfast.frontends.http.exchange import (
    BATCHES_TYPE,
    JSON_TYPE,
    NO_STORE,
    HeaderList,
    Request,
    Response,
    json_response,
)
from holdfast.frontends.http.params import FlagParam, IntParam, PlaceParam, TextParam, partition_number, whole_number
from holdfast.frontends.http.services import Services, Woken
from holdfast.model.errors import DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, TopicName
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
    doc="about how many bytes to answer with; a single message, or batch where batches are asked for, may be larger",
)
WAIT_MS: Final = IntParam(
    name="wait_ms",
    default=0,
    minimum=0,
    maximum=LONG_POLL_MS_MAX,
    doc="how long to wait for the first message where there is none",
)
STALE: Final = FlagParam(
    name="stale", doc="answer with what this node has, without asking the others; the answer says how old it may be"
)
STALE_HEADER: Final = b"holdfast-stale-ms"
# What an answer has of each message beside its value, key and headers.
_MESSAGE_BYTES: Final = 64
TIMESTAMP: Final = TextParam(
    name="timestamp", example="1789000000000", doc="milliseconds since 1970 (UTC), 'earliest' or 'latest'"
)


async def read(services: Services, request: Request) -> Response:
    topic, partition = request.params[0], partition_number(request.params[1])
    wait_s = WAIT_MS.of(request.query) / 1000
    stale = STALE.of(request.query)
    place = OFFSET.of(request.query)
    # What an offset means does not change, and reading there makes sure of what there is.
    is_offset = parse_place(place).offset is not None
    offset = await services.broker.resolve_offset(topic, partition, place, stale=stale or is_offset)
    reading = _Reading(services, request, topic, partition, offset, stale=stale)
    if prefers(request.header(b"accept"), (JSON_TYPE, BATCHES_TYPE)) == BATCHES_TYPE:
        return reading.batches_response(await reading.at_least_one(reading.batches, _size_of_batches, wait_s))
    return reading.messages_response(await reading.at_least_one(reading.messages, size_of_messages, wait_s))


class _Reading:
    """One read of a partition from an offset on, in either format."""

    def __init__(
        self, services: Services, request: Request, topic: str, partition: int, offset: Offset, *, stale: bool
    ) -> None:
        self._services = services
        self._request = request
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._stale = stale
        self._stale_ms = 0
        self._bytes_max = MAX_BYTES.of(request.query)
        self._messages_max = MAX.of(request.query)
        # Whether this node was found to show everything that was acknowledged before the request came.
        self._is_current = stale
        self._created_ms = self._topic_created_ms()

    async def at_least_one(
        self, read_once: Callable[[int], Awaitable[T]], size_of: Callable[[T], int], wait_s: float
    ) -> T:
        """What is there, or what comes within `wait_s`."""
        services = self._services
        found = await services.read_in_room(read_once, size_of, self._bytes_max)
        if found:
            return found
        self._is_current = True
        if wait_s:
            positions = {self._partition: self._offset}
            if await services.wait(self._request, self._topic, positions, wait_s) is Woken.DATA:
                return await services.read_in_room(read_once, size_of, self._bytes_max)
        return found

    async def batches(self, bytes_max: int) -> Sequence[memoryview]:
        """What is stored here from the offset on. Only an empty answer is confirmed: readers go on until one comes."""
        self._note_age()
        broker = self._services.broker
        return await broker.read_batches(self._topic, self._partition, self._offset, bytes_max, stale=self._stale)

    async def messages(self, bytes_max: int) -> list[StoredMessage]:
        """What there is from the offset on. Unless its limits cut it, everything that was acknowledged before is in it.

        One read of the backend may end anywhere: a cache may end before the log does, and the log may grow meanwhile.
        So an answer ends where its limits are reached, or at an end that was confirmed after the request came.
        """
        self._note_age()
        broker, topic, partition = self._services.broker, self._topic, self._partition
        found, offset = await broker.read(
            topic, partition, self._offset, self._messages_max, bytes_max, stale=self._stale
        )
        if self._is_current or not found:
            return found
        end: Offset | None = None
        bytes_left = bytes_max - sum(map(_size_of, found))
        while len(found) < self._messages_max and bytes_left > 0:
            if end is None and offset >= broker.partition_range(topic, partition)[1]:
                end = await broker.resolve_offset(topic, partition, "latest")
            if end is not None and offset >= end:
                self._is_current = True
                break
            try:
                more, offset = await broker.read(topic, partition, offset, self._messages_max - len(found), bytes_left)
            except (DamagedData, OffsetOutOfRange):
                break  # the next request, which begins there, is told
            for one in more:
                bytes_left -= _size_of(one)
                if bytes_left < 0:
                    break
                found.append(one)
            if not more:
                break
        return found

    def _note_age(self) -> None:
        # Before the read and not behind it: what came meanwhile only makes the answer newer.
        if self._stale:
            self._stale_ms = self._services.broker.staleness_ms(self._topic, self._partition)

    def _topic_created_ms(self) -> int | None:
        topic = self._services.broker.backend.topic(TopicName(self._topic))
        return None if topic is None else topic.created_ms

    @property
    def _headers(self) -> HeaderList:
        return [(STALE_HEADER, b"%d" % self._stale_ms)] if self._stale else []

    def messages_response(self, found: list[StoredMessage]) -> Response:
        next_offset = found[-1].offset + 1 if found else self._offset
        self._services.broker.stats.count_delivery(len(found), sum(len(one.value) for one in found))
        stale_ms = self._stale_ms if self._stale else msgspec.UNSET
        answer = schema.Messages([message(one) for one in found], next_offset, stale_ms)
        return json_response(answer, headers=self._headers)

    def batches_response(self, batches: Sequence[memoryview]) -> Response:
        next_offset = header(batches[-1]).next_offset if batches else self._offset
        count = sum(header(batch).record_count for batch in batches)
        broker = self._services.broker
        broker.stats.count_delivery(count, sum(map(len, batches)))
        start, end = broker.partition_range(self._topic, self._partition)
        headers = [
            (b"content-type", BATCHES_TYPE.encode()),
            NO_STORE,
            (b"holdfast-next-offset", b"%d" % next_offset),
            (b"holdfast-start-offset", b"%d" % start),
            (b"holdfast-end-offset", b"%d" % end),
            *self._headers,
        ]
        # Said only where it was the same topic before the read and behind it: then the batches are its own.
        if self._created_ms is not None and self._created_ms == self._topic_created_ms():
            headers.append((b"holdfast-topic-created-ms", b"%d" % self._created_ms))
        return Response(200, headers, b"".join(batches))


async def offset_at(services: Services, request: Request) -> Response:
    topic, partition = request.params[0], partition_number(request.params[1])
    broker = services.broker
    when, stale = TIMESTAMP.of(request.query), STALE.of(request.query)
    stale_ms = broker.staleness_ms(topic, partition) if stale else msgspec.UNSET
    if when in {"earliest", "latest"}:
        offset = await broker.resolve_offset(topic, partition, when, stale=stale)
    else:
        timestamp_ms = whole_number(when, TIMESTAMP.name)
        # It may be that the message is there, and only not here yet.
        await broker.resolve_offset(topic, partition, "latest", stale=stale)
        offset = await broker.offset_at(topic, partition, timestamp_ms)
    headers = [] if stale_ms is msgspec.UNSET else [(STALE_HEADER, b"%d" % stale_ms)]
    return json_response(schema.OffsetAnswer(offset, stale_ms), headers=headers)


def _size_of_batches(batches: Sequence[memoryview]) -> int:
    return sum(map(len, batches))


def size_of_messages(messages: Sequence[StoredMessage]) -> int:
    return sum(map(_size_of, messages))


def _size_of(stored: StoredMessage) -> int:
    """About how many bytes a message takes in an answer."""
    headers = sum(len(name) + len(content) for name, content in stored.headers)
    return _MESSAGE_BYTES + len(stored.value) + len(stored.key or b"") + headers


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
