"""The calls of the HTTP interface, with names and types; what each call means stands in docs/http.md.

Every call here may be sent twice without harm, except where it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.addresses import Addresses
from holdfast.client.connection import BATCHES, Request, Response
from holdfast.client.descriptions import BatchResults, BrokerInfo, CursorList, OffsetAnswer, TopicList
from holdfast.client.errors import AnswerLost
from holdfast.client.pool import Pool
from holdfast.client.retry import call
from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.errors import RemoteError
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.messages import BatchPublished
from holdfast.model.names import path_part, place_name, topic_name
from holdfast.model.topics import CursorDescription, TopicDescription

Place = str | int

T = TypeVar("T")
_encode = msgspec.json.encode


class _Groups(msgspec.Struct):
    groups: list[GroupDescription]


class Stored(NamedTuple):
    """Batches as they are stored; `created_ms` tells their topic from another of its name, where it is known."""

    batches: bytes
    created_ms: int | None


class Api:
    """One broker, or several that are one, behind a pool of connections."""

    def __init__(self, pool: Pool, timeout_s: float) -> None:
        self._pool = pool
        self.timeout_s = timeout_s

    @property
    def addresses(self) -> Addresses:
        return self._pool.addresses

    # --- topics -----------------------------------------------------------------------------------

    async def info(self) -> BrokerInfo:
        return _decoded(await self._call(Request("GET", "/v1/info")), BrokerInfo)

    async def create_topic(
        self, topic: str, *, partitions: int | None, retention_ms: int | None, retention_bytes: int | None
    ) -> TopicDescription:
        fields = {
            "topic": topic_name(topic),
            "partitions": partitions,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
        }
        body = _encode({name: value for name, value in fields.items() if value is not None})
        response = await self._call_once(Request("POST", "/v1/topics", body), done_before="topic_exists")
        return await self.describe(topic) if response is None else _decoded(response, TopicDescription)

    async def topics(self) -> list[TopicDescription]:
        return _decoded(await self._call(Request("GET", "/v1/topics")), TopicList).topics

    async def describe(self, topic: str) -> TopicDescription:
        return _decoded(await self._call(Request("GET", _topic_path(topic))), TopicDescription)

    async def describe_or_create(self, topic: str) -> TopicDescription:
        """For readers that may come before the first writer."""
        try:
            return await self.describe(topic)
        except RemoteError as error:
            if error.code != "topic_not_found" or not (await self.info()).auto_create:
                raise
        try:
            return await self.create_topic(topic, partitions=None, retention_ms=None, retention_bytes=None)
        except RemoteError as error:
            if error.code != "topic_exists":
                raise
        return await self.describe(topic)

    async def delete_topic(self, topic: str) -> None:
        await self._call_once(Request("DELETE", _topic_path(topic)), done_before="topic_not_found")

    # --- messages ---------------------------------------------------------------------------------

    async def publish_batch(
        self, to: PartitionId, batch: bytearray, budget_s: float, *, resend: bool
    ) -> BatchPublished:
        """Store one record batch; it is stored whole or not at all."""
        path = f"{_topic_path(to.topic)}/partitions/{to.number}/batches"
        response = await call(self._pool, Request("POST", path, batch, BATCHES), budget_s, resend=resend, stores=True)
        return _decoded(response, BatchResults).results[0]

    async def offset_at(self, topic: str, partition: int, timestamp: Place) -> Offset:
        path = f"{_topic_path(topic)}/partitions/{partition}/offsets?{urlencode({'timestamp': timestamp})}"
        return _decoded(await self._call(Request("GET", path)), OffsetAnswer).offset

    async def read(self, topic: str, partition: int, offset: int, bytes_max: int, wait_s: float) -> bytes:
        """Stored batches as they are; the first may begin before `offset`."""
        request = read_request(topic, partition, offset, bytes_max, wait_s)
        return (await call(self._pool, request, self.timeout_s + wait_s, wait_s=wait_s)).body

    async def stored(self, topic: str, partition: int, offset: int, bytes_max: int, wait_s: float) -> Stored:
        """As `read`, with what the answer says of the topic it is from."""
        request = read_request(topic, partition, offset, bytes_max, wait_s)
        response = await call(self._pool, request, self.timeout_s + wait_s, wait_s=wait_s)
        created_ms = response.headers.get(b"holdfast-topic-created-ms")
        return Stored(response.body, None if created_ms is None else int(created_ms))

    # --- cursors ----------------------------------------------------------------------------------

    async def cursors(self, topic: str | None) -> list[CursorDescription]:
        path = "/v1/cursors" if topic is None else f"{_topic_path(topic)}/cursors"
        return _decoded(await self._call(Request("GET", path)), CursorList).cursors

    async def cursor(self, topic: str, name: str) -> CursorDescription:
        return _decoded(await self._call(Request("GET", _cursor_path(topic, name))), CursorDescription)

    async def make_cursor(self, topic: str, name: str, start: Place) -> None:
        """Make the cursor at `start` unless it is there: a read does both in one step and moves nothing."""
        query = urlencode({"max": 1, "from": start})
        await self._call(Request("GET", f"{_cursor_path(topic, name)}/messages?{query}"))

    async def seek(self, topic: str, name: str, to: Place, partition: int | None) -> CursorDescription:
        fields = {"to": to} if partition is None else {"to": to, "partition": partition}
        response = await self._call(Request("PUT", _cursor_path(topic, name), _encode(fields)))
        return _decoded(response, CursorDescription)

    async def ack(self, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets is done; the broker never moves a cursor back."""
        body = _encode({"offsets": {str(partition): offset for partition, offset in offsets.items()}})
        await self._call(Request("POST", f"{_cursor_path(topic, name)}/ack", body))

    async def delete_cursor(self, topic: str, name: str) -> None:
        await self._call_once(Request("DELETE", _cursor_path(topic, name)), done_before="cursor_not_found")

    # --- the cluster ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        return _decoded(await self._call(Request("GET", "/v1/cluster")), ClusterDescription)

    async def groups(self, topic: str) -> list[GroupDescription]:
        path = f"/v1/cluster/groups?{urlencode({'topic': topic_name(topic)})}"
        return _decoded(await self._call(Request("GET", path)), _Groups).groups

    async def transfer(self, topic: str | None, partition: int | None, to: str) -> None:
        """Asking twice does no harm: who leads already goes on leading."""
        fields = {"topic": None if topic is None else topic_name(topic), "partition": partition, "to": to}
        body = _encode({name: value for name, value in fields.items() if value is not None})
        await self._call(Request("POST", "/v1/cluster/transfer", body))

    async def members(self) -> MembersDescription:
        return _decoded(await self._call(Request("GET", "/v1/cluster/members")), MembersDescription)

    async def change_member(self, node: str, change: str, **fields: str) -> MembersDescription:
        """Asking twice does no harm: what is decided already is not decided again."""
        path = f"/v1/cluster/members/{quote(node, safe='')}"
        request = Request("POST", path, _encode({"change": change, **fields}))
        return _decoded(await self._call(request), MembersDescription)

    # --- calls that are described elsewhere ---------------------------------------------------------

    async def ask(self, request: Request, shape: type[T]) -> T:
        """Send what may be sent twice; the answer as that type, or nothing where it has no body."""
        response = await self._call(request)
        return _decoded(response, shape) if response.body else msgspec.convert(None, shape)

    async def ask_once(self, request: Request, *, done_before: str) -> None:
        """Send what works only once, as `_call_once`."""
        await self._call_once(request, done_before=done_before)

    async def _call(self, request: Request) -> Response:
        return await call(self._pool, request, self.timeout_s)

    async def _call_once(self, request: Request, *, done_before: str) -> Response | None:
        """Send what works only once; `None` if the first try got lost and the second was told `done_before`.

        Without this, a topic that was created just before the connection broke would be reported as
        somebody else's.
        """
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        try:
            return await call(self._pool, request, self.timeout_s, resend=False)
        except AnswerLost:
            pass
        try:
            return await call(self._pool, request, max(0.0, deadline - asyncio.get_running_loop().time()))
        except RemoteError as error:
            if error.code != done_before:
                raise
            return None


def read_request(topic: str, partition: int, offset: int, bytes_max: int, wait_s: float) -> Request:
    """Ask for stored batches as they are."""
    query = f"offset={offset}&max_bytes={bytes_max}&wait_ms={int(wait_s * 1000)}"
    return Request("GET", f"{_topic_path(topic)}/partitions/{partition}/messages?{query}", accept=BATCHES)


def _topic_path(topic: str) -> str:
    return f"/v1/topics/{path_part(topic_name(topic))}"


def _cursor_path(topic: str, name: str) -> str:
    return f"{_topic_path(topic)}/cursors/{quote(place_name(name), safe=':')}"


def _decoded(response: Response, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(response.body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError("bad_answer", f"the broker's answer is not understood: {error}", response.status) from error
