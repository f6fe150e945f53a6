"""The same client without `await`, for scripts, notebooks and threads.

The asynchronous client runs on an event loop in a thread of its own, so this works where a loop already
runs, as in Jupyter, and several threads may share one client: what they publish at the same time travels
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType

from holdfast.client.api import Place
from holdfast.client.blocking_subscription import BlockingSubscription
from holdfast.client.client import TIMEOUT_S_DEFAULT, Client
from holdfast.client.descriptions import BrokerInfo
from holdfast.client.encoding import Headers, Value
from holdfast.client.limits import BUFFER_BYTES_DEFAULT, BUFFER_MESSAGES_DEFAULT
from holdfast.client.loop_thread import LoopThread
from holdfast.client.message import Message
from holdfast.client.results import PublishResults
from holdfast.client.transactions import BlockingTransaction
from holdfast.model.callbacks import CallbackDescription, CallbackFormat
from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, Published
from holdfast.model.topics import CursorDescription, TopicDescription
from holdfast.model.transactions import WriterDescription


class BlockingClient:
    """`Client` without `await`: the same methods with the same meaning."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S_DEFAULT) -> None:
        self._client = Client(url, timeout_s=timeout_s)
        self._thread = LoopThread()
        try:
            self.info()
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its subscriptions, wait for publishes that were begun, then hang up."""
        if not self._thread.is_running:
            return
        try:
            self._thread.run(self._client.close())
        finally:
            self._thread.stop()

    # --- publishing ---------------------------------------------------------------------------------

    def publish(
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
        return self._thread.run(
            self._client.publish(
                topic, value, key=key, id=id, headers=headers, partition=partition, retry_safe=retry_safe
            )
        )

    def publish_many(
        self,
        topic: str,
        messages: Sequence[Value | NewMessage],
        *,
        partition: int | None = None,
        retry_safe: bool = False,
    ) -> PublishResults:
        return self._thread.run(self._client.publish_many(topic, messages, partition=partition, retry_safe=retry_safe))

    # --- reading ------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        name: str | None = None,
        *,
        start: Place = "latest",
        buffer_bytes_max: int = BUFFER_BYTES_DEFAULT,
        buffer_messages_max: int = BUFFER_MESSAGES_DEFAULT,
    ) -> BlockingSubscription:
        """Follow a topic; what is published after `with` is entered, or after the first read, is delivered."""
        subscription = self._client.subscribe(
            topic, name, start=start, buffer_bytes_max=buffer_bytes_max, buffer_messages_max=buffer_messages_max
        )
        return BlockingSubscription(subscription, self._thread)

    def read(
        self,
        topic: str,
        partition: int = 0,
        offset: Place = "earliest",
        *,
        messages_max: int = 100,
        wait_s: float = 0.0,
    ) -> list[Message]:
        return self._thread.run(self._client.read(topic, partition, offset, messages_max=messages_max, wait_s=wait_s))

    def offset_at(self, topic: str, when: datetime | Place, partition: int = 0) -> Offset:
        return self._thread.run(self._client.offset_at(topic, when, partition))

    # --- topics -------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
    ) -> TopicDescription:
        return self._thread.run(
            self._client.create_topic(
                topic,
                partitions=partitions,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                exist_ok=exist_ok,
            )
        )

    def topics(self) -> list[TopicDescription]:
        return self._thread.run(self._client.topics())

    def describe(self, topic: str) -> TopicDescription:
        return self._thread.run(self._client.describe(topic))

    def delete_topic(self, topic: str) -> None:
        self._thread.run(self._client.delete_topic(topic))

    # --- cursors ------------------------------------------------------------------------------------

    def cursors(self, topic: str | None = None) -> list[CursorDescription]:
        return self._thread.run(self._client.cursors(topic))

    def cursor(self, topic: str, name: str) -> CursorDescription:
        return self._thread.run(self._client.cursor(topic, name))

    def seek(self, topic: str, name: str, to: Place, partition: int | None = None) -> CursorDescription:
        return self._thread.run(self._client.seek(topic, name, to, partition))

    def acknowledge(self, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        self._thread.run(self._client.acknowledge(topic, name, offsets))

    def delete_cursor(self, topic: str, name: str) -> None:
        self._thread.run(self._client.delete_cursor(topic, name))

    # --- callbacks ----------------------------------------------------------------------------------

    def subscribe_callback(
        self,
        topic: str,
        callback: str,
        *,
        name: str | None = None,
        start: Place = "latest",
        format: CallbackFormat = "numbered",
    ) -> CallbackDescription:
        return self._thread.run(self._client.subscribe_callback(topic, callback, name=name, start=start, format=format))

    def subscriptions(self, topic: str | None = None) -> list[CallbackDescription]:
        return self._thread.run(self._client.subscriptions(topic))

    def remove_subscription(self, topic: str, name: str) -> None:
        self._thread.run(self._client.remove_subscription(topic, name))

    # --- transactions -------------------------------------------------------------------------------

    def transaction(self, writer: str, number: int) -> BlockingTransaction:
        return BlockingTransaction(self._client.transaction(writer, number), self._thread)

    def writer(self, writer: str) -> WriterDescription:
        return self._thread.run(self._client.writer(writer))

    def writers(self) -> list[WriterDescription]:
        return self._thread.run(self._client.writers())

    def forget_writer(self, writer: str) -> None:
        self._thread.run(self._client.forget_writer(writer))

    # --- the cluster --------------------------------------------------------------------------------

    def cluster(self) -> ClusterDescription:
        return self._thread.run(self._client.cluster())

    def groups(self, topic: str) -> list[GroupDescription]:
        return self._thread.run(self._client.groups(topic))

    def transfer(self, topic: str | None = None, partition: int | None = None, *, to: str) -> None:
        self._thread.run(self._client.transfer(topic, partition, to=to))

    def members(self) -> MembersDescription:
        return self._thread.run(self._client.members())

    def remove_member(self, node: str, *, undo: bool = False) -> MembersDescription:
        return self._thread.run(self._client.remove_member(node, undo=undo))

    def drain_member(self, node: str, *, undo: bool = False) -> MembersDescription:
        return self._thread.run(self._client.drain_member(node, undo=undo))

    def replace_member(self, old: str, new: str) -> MembersDescription:
        return self._thread.run(self._client.replace_member(old, new))

    def info(self) -> BrokerInfo:
        return self._thread.run(self._client.info())


def connect_blocking(url: str, *, timeout_s: float = TIMEOUT_S_DEFAULT) -> BlockingClient:
    """A client without `await` for `holdfast://host:port`; checks that a broker answers."""
    return BlockingClient(url, timeout_s=timeout_s)
