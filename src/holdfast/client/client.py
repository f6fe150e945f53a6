"""The client people see: one object for publishing, reading, subscribing and looking after topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType

from holdfast.client import callbacks
from holdfast.client.addresses import Addresses, parse_url
from holdfast.client.api import Api, Place
from holdfast.client.descriptions import BrokerInfo
from holdfast.client.encoding import Headers, Value
from holdfast.client.errors import ClientClosed
from holdfast.client.limits import BUFFER_BYTES_DEFAULT, BUFFER_MESSAGES_DEFAULT, CALL_CONNECTIONS_MAX, READ_BYTES_MAX
from holdfast.client.message import Message
from holdfast.client.pool import Pool
from holdfast.client.producer import Producer
from holdfast.client.results import PublishResults
from holdfast.client.starts import resolve
from holdfast.client.subscription import Subscription
from holdfast.client.transactions import Transaction, describe_writer, forget_writer, list_writers
from holdfast.model.callbacks import CallbackDescription, CallbackFormat
from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.errors import BadValue, RemoteError
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, Published
from holdfast.model.topics import CursorDescription, TopicDescription
from holdfast.model.transactions import WriterDescription
from holdfast.wire.record_batch import decode, split_batches

TIMEOUT_S_DEFAULT = 30.0


class Client:
    """A connection to a broker that mends itself. Use it with `async with`, on one event loop.

    Every call ends within `timeout_s`: with an answer, with the broker's own error (`RemoteError`) or
    with `ConnectionLost`, which says what was tried.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S_DEFAULT) -> None:
        if not timeout_s > 0:
            raise BadValue(f"timeout_s must be positive, not {timeout_s}")
        self._addresses = Addresses(parse_url(url))
        self._pool = Pool(self._addresses, CALL_CONNECTIONS_MAX)
        self._api = Api(self._pool, timeout_s)
        self._producer = Producer(self._api)
        self._subscriptions: set[Subscription] = set()
        self._closed = False

    async def __aenter__(self) -> Client:
        try:
            await self.info()
        except BaseException:
            await self.close(quietly=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(quietly=error is not None)

    async def close(self, *, quietly: bool = False) -> None:
        """Close its subscriptions, wait for publishes that were begun, then hang up."""
        self._closed = True
        try:
            for subscription in list(self._subscriptions):
                await subscription.close(quietly=quietly)
            await self._producer.drain()
        finally:
            await self._pool.close()

    # --- publishing ---------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: str | bytes | None = None,
        id: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        retry_safe: bool = True,
    ) -> Published:
        """Store one message; returns where it stands once it is durable.

        While its store is away a broker may keep messages and give them their places later: the result is then
        `buffered`, and its offset `NO_OFFSET`.

        `value` is bytes, text, or anything that is JSON. Without an `id` the message gets one, so that
        it can be sent again after a lost connection and is still stored once; `retry_safe=False` leaves
        that out, and a lost connection is then `OutcomeUnknown`. Calls made at the same time travel
        together.
        """
        self._check_open()
        return await self._producer.publish(
            topic, value, key=key, id=id, headers=headers, partition=partition, retry_safe=retry_safe
        )

    async def publish_many(
        self,
        topic: str,
        messages: Sequence[Value | NewMessage],
        *,
        partition: int | None = None,
        retry_safe: bool = False,
    ) -> PublishResults:
        """Store many messages in few batches; the results come in their order.

        The items are values as in `publish`, or `NewMessage` with key, id and headers. With ids (if one
        has an id, all get one; `retry_safe=True` gives them to all) the call is as safe as `publish`.
        Without, a connection that breaks while a batch is under way raises `PublishManyLost`, whose
        `results` say what is stored for certain.
        """
        self._check_open()
        return await self._producer.publish_many(topic, messages, partition=partition, retry_safe=retry_safe)

    # --- reading ------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        name: str | None = None,
        *,
        start: Place = "latest",
        buffer_bytes_max: int = BUFFER_BYTES_DEFAULT,
        buffer_messages_max: int = BUFFER_MESSAGES_DEFAULT,
    ) -> Subscription:
        """Follow a topic. With a `name` the broker keeps the position, which begins at `start`.

        `start` is `earliest`, `latest`, an offset, or how long ago (`-10m`); a name that is known goes
        on where it stands.
        """
        self._check_open()
        return Subscription(
            self._api,
            self._addresses,
            topic,
            name,
            start,
            buffer_bytes_max=buffer_bytes_max,
            buffer_messages_max=buffer_messages_max,
            opened=self._subscriptions,
        )

    async def read(
        self,
        topic: str,
        partition: int = 0,
        offset: Place = "earliest",
        *,
        messages_max: int = 100,
        wait_s: float = 0.0,
    ) -> list[Message]:
        """Messages of one partition from `offset` on; fewer than `messages_max` where the log ends.

        With `wait_s` an empty answer waits for the first message that long.
        """
        self._check_open()
        position = await resolve(self._api, topic, partition, offset)
        messages: list[Message] = []
        while len(messages) < messages_max:
            data = await self._api.read(topic, partition, position, READ_BYTES_MAX, 0.0 if messages else wait_s)
            found = [stored for batch in split_batches(data) for stored in decode(batch, partition)]
            messages += [Message(topic, partition, stored) for stored in found if stored.offset >= position]
            if not found:
                break
            position = found[-1].offset + 1
        return messages[:messages_max]

    async def offset_at(self, topic: str, when: datetime | Place, partition: int = 0) -> Offset:
        """The first message of that time (a `datetime`, or milliseconds since 1970) or later."""
        self._check_open()
        if isinstance(when, datetime):
            when = int(when.timestamp() * 1000)
        return await self._api.offset_at(topic, partition, when)

    # --- topics -------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
    ) -> TopicDescription:
        """Create a topic. With `exist_ok` one that is there is left as it is."""
        self._check_open()
        try:
            return await self._api.create_topic(
                topic, partitions=partitions, retention_ms=retention_ms, retention_bytes=retention_bytes
            )
        except RemoteError as error:
            if error.code != "topic_exists" or not exist_ok:
                raise
        return await self._api.describe(topic)

    async def topics(self) -> list[TopicDescription]:
        self._check_open()
        return await self._api.topics()

    async def describe(self, topic: str) -> TopicDescription:
        self._check_open()
        return await self._api.describe(topic)

    async def delete_topic(self, topic: str) -> None:
        """Messages and cursors go with it."""
        self._check_open()
        await self._api.delete_topic(topic)

    # --- cursors ------------------------------------------------------------------------------------

    async def cursors(self, topic: str | None = None) -> list[CursorDescription]:
        self._check_open()
        return await self._api.cursors(topic)

    async def cursor(self, topic: str, name: str) -> CursorDescription:
        self._check_open()
        return await self._api.cursor(topic, name)

    async def seek(self, topic: str, name: str, to: Place, partition: int | None = None) -> CursorDescription:
        """Move a cursor anywhere: `earliest`, `latest`, an offset, or `-10m`.

        A subscription that is open does not notice: it goes on where it reads.
        """
        self._check_open()
        return await self._api.seek(topic, name, to, partition)

    async def acknowledge(self, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """Move a cursor on: everything below these offsets, by partition, is done. It never moves back."""
        self._check_open()
        await self._api.ack(topic, name, offsets)

    async def delete_cursor(self, topic: str, name: str) -> None:
        self._check_open()
        await self._api.delete_cursor(topic, name)

    # --- callbacks ----------------------------------------------------------------------------------

    async def subscribe_callback(
        self,
        topic: str,
        callback: str,
        *,
        name: str | None = None,
        start: Place = "latest",
        format: CallbackFormat = "numbered",
    ) -> CallbackDescription:
        """Have the cluster connect to `callback`, a `Receiver`'s `HOST:PORT`, and deliver a topic there.

        It is durable, and survives the node it was made on. A name that is known goes on where it stands.
        """
        self._check_open()
        return await callbacks.subscribe_callback(self._api, topic, callback, name, start, format)

    async def subscriptions(self, topic: str | None = None) -> list[CallbackDescription]:
        """Those with a callback, and how each of them stands."""
        self._check_open()
        return await callbacks.list_subscriptions(self._api, topic)

    async def remove_subscription(self, topic: str, name: str) -> None:
        """Its cursor goes with it."""
        self._check_open()
        await callbacks.remove_subscription(self._api, topic, name)

    # --- transactions -------------------------------------------------------------------------------

    def transaction(self, writer: str, number: int) -> Transaction:
        """Messages that become visible together or not at all; `number` rises from one to the next of a writer."""
        self._check_open()
        return Transaction(self._api, writer, number)

    async def writer(self, writer: str) -> WriterDescription:
        """The last number that a writer of transactions has committed."""
        self._check_open()
        return await describe_writer(self._api, writer)

    async def writers(self) -> list[WriterDescription]:
        self._check_open()
        return await list_writers(self._api)

    async def forget_writer(self, writer: str) -> None:
        """For a writer that writes no more; its numbers begin anew."""
        self._check_open()
        await forget_writer(self._api, writer)

    # --- the cluster --------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        """The nodes, who leads, and who is how far behind, as the node sees it that answers."""
        self._check_open()
        return await self._api.cluster()

    async def groups(self, topic: str) -> list[GroupDescription]:
        """The group of each partition of a topic, as the node sees it that answers."""
        self._check_open()
        return await self._api.groups(topic)

    async def transfer(self, topic: str | None = None, partition: int | None = None, *, to: str) -> None:
        """Have the node `to` lead a partition, or the control group where no topic is given."""
        self._check_open()
        await self._api.transfer(topic, 0 if topic is not None and partition is None else partition, to)

    async def members(self) -> MembersDescription:
        """The nodes of the cluster with their places; those that have left are listed as removed."""
        self._check_open()
        return await self._api.members()

    async def remove_member(self, node: str, *, undo: bool = False) -> MembersDescription:
        """Have a node hand over what it leads and leave, or stay after all; `members` tells when that is done."""
        self._check_open()
        return await self._api.change_member(node, "keep" if undo else "remove")

    async def drain_member(self, node: str, *, undo: bool = False) -> MembersDescription:
        """Have a node lead nothing until that is undone; `members` tells when it does not any more."""
        self._check_open()
        return await self._api.change_member(node, "undrain" if undo else "drain")

    async def replace_member(self, old: str, new: str) -> MembersDescription:
        """Have the node `old` leave as soon as `new` votes everywhere."""
        self._check_open()
        return await self._api.change_member(old, "replace", by=new)

    async def info(self) -> BrokerInfo:
        """Who answers: version, node, addresses."""
        self._check_open()
        return await self._api.info()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")


def connect(url: str, *, timeout_s: float = TIMEOUT_S_DEFAULT) -> Client:
    """A client for `holdfast://host:port` or several addresses, `holdfast://a:8090,b:8090`.

    `async with connect(url) as broker` checks that a broker answers, for at most `timeout_s`.
    """
    return Client(url, timeout_s=timeout_s)
