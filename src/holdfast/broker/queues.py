"""Numbered queues: topics of one partition under small numbers, for clients that append one value and read the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.broker import queue_names
from holdfast.broker.queue_making import QueueMaking, is_queue
from holdfast.broker.queue_reads import QueueReads
from holdfast.broker.results import failure, refuse
from holdfast.model import names
from holdfast.model.errors import (
    HoldfastError,
    NotAQueue,
    QueueNotFound,
    TooLarge,
    TopicNotFound,
)
from holdfast.model.ids import Offset, TopicName
from holdfast.model.limits import MIB
from holdfast.model.messages import NewMessage, Published
from holdfast.model.topics import Topic

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

# What is gathered of one turn of the loop before it is appended.
_GATHERED_BYTES_MAX: Final = 4 * MIB


class _Append(NamedTuple):
    value: bytes
    id: str | None
    done: asyncio.Future[Published]


class Queues:
    """All a front end may do with queues. `session` is a name that no other broker has, nor this one before."""

    def __init__(self, broker: Broker, session: str) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._making = QueueMaking(broker, session)
        self._appends: dict[int, list[_Append]] = {}
        self._appends_bytes = 0
        self._findings: set[asyncio.Task[None]] = set()
        self.reads = QueueReads(broker, self, session)

    # --- which there are ----------------------------------------------------------------------------

    async def create(self, request_id: str | None = None) -> int:
        """The number of a new queue. With the id of a request that was answered before, the same queue again."""
        return await self._making.make(request_id)

    async def next_number(self) -> int:
        """What the next queue will get, as far as has been decided by now."""
        return await self._making.next_number()

    def ids(self) -> list[int]:
        """Of all queues that are known here, in their order."""
        found = (queue_names.queue_id_of(topic.name) for topic in self._backend.topics() if is_queue(topic))
        return sorted(number for number in found if number is not None)

    async def find(self, queue_id: int) -> Topic:
        """The topic of a queue, made through whichever node. Raises `QueueNotFound`, `NotAQueue`."""
        name = queue_names.topic_of(queue_id)
        if self._backend.topic(name) is None:
            await self._backend.catch_up_cursors()
        return self._found(queue_id)

    def _found(self, queue_id: int) -> Topic:
        topic = self._backend.topic(queue_names.topic_of(queue_id))
        if topic is None:
            raise QueueNotFound(f"there is no queue {queue_id}; POST /create_queue makes one and answers with its id")
        if not is_queue(topic):
            raise NotAQueue(
                f"topic {topic.name} has {topic.config.partitions} partitions, a queue has one; read it as a topic"
            )
        return topic

    async def read_from(self, queue_id: int) -> TopicName:
        """The topic that readers of a queue get: the queue's own, or what a processor makes of it."""
        topic = await self.find(queue_id)
        delivered = self._broker.delivers_from(topic.name)
        if self._backend.topic(delivered) is None:
            raise TopicNotFound(f"there is no topic {delivered}, from which queue {queue_id} is read")
        return delivered

    # --- appending ----------------------------------------------------------------------------------

    def append(self, queue_id: int, value: bytes, message_id: str | None) -> asyncio.Future[Published]:
        """Append a value, with all that this turn of the loop brings for its queue; with an id, once."""
        if len(value) > self._broker.message_bytes_max:
            raise TooLarge(f"value: it has {len(value)} bytes; at most {self._broker.message_bytes_max} are allowed")
        if message_id is not None:
            names.message_id(message_id)
        loop = asyncio.get_running_loop()
        if not self._appends:
            loop.call_soon(self._flush)
        done: asyncio.Future[Published] = loop.create_future()
        self._appends.setdefault(queue_id, []).append(_Append(value, message_id, done))
        self._appends_bytes += len(value)
        if self._appends_bytes > _GATHERED_BYTES_MAX:
            self._flush()
        return done

    def _flush(self) -> None:
        gathered, self._appends = self._appends, {}
        self._appends_bytes = 0
        for queue_id, appends in gathered.items():
            if self._is_known(queue_id):
                self._append_all(queue_id, appends)
            else:
                finding = asyncio.ensure_future(self._append_found(queue_id, appends))
                self._findings.add(finding)
                finding.add_done_callback(self._findings.discard)

    async def _append_found(self, queue_id: int, appends: list[_Append]) -> None:
        try:
            await self.find(queue_id)
        except HoldfastError as error:
            for each in appends:
                refuse(each.done, error)
        else:
            self._append_all(queue_id, appends)

    def _is_known(self, queue_id: int) -> bool:
        try:
            return self._backend.topic(queue_names.topic_of(queue_id)) is not None
        except HoldfastError:
            return False  # nobody could tell yet; whoever looks for it is told so

    def _append_all(self, queue_id: int, appends: list[_Append]) -> None:
        for publish, part in (
            (self._publish_values, [each for each in appends if each.id is None]),
            (self._publish_messages, [each for each in appends if each.id is not None]),
        ):
            try:
                if part:
                    publish(self._found(queue_id).name, part)
            except Exception as error:  # noqa: BLE001 - whoever waits is told, also of a bug
                for each in part:
                    refuse(each.done, error)

    def _publish_values(self, topic: TopicName, appends: list[_Append]) -> None:
        publishing = self._broker.publish_values(topic, [each.value for each in appends])
        publishing.offset.add_done_callback(lambda done: _settle_run(appends, done))

    def _publish_messages(self, topic: TopicName, appends: list[_Append]) -> None:
        messages = [NewMessage(value=each.value, id=each.id) for each in appends]
        self._broker.publish(topic, messages, 0).add_done_callback(lambda done: _settle_each(appends, done))


def _settle_run(appends: list[_Append], done: asyncio.Future[Offset]) -> None:
    error = failure(done)
    for place, each in enumerate(appends):
        if error is not None:
            refuse(each.done, error)
        elif not each.done.done():
            base = done.result()
            # Of what is only kept, none has an offset.
            offset = base if base < 0 else Offset(base + place)
            each.done.set_result(Published(partition=0, offset=offset))


def _settle_each(appends: list[_Append], done: asyncio.Future[list[Published]]) -> None:
    error = failure(done)
    if error is not None:
        for each in appends:
            refuse(each.done, error)
        return
    for each, published in zip(appends, done.result(), strict=True):
        if not each.done.done():
            each.done.set_result(published)
