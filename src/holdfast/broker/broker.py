"""The broker as front ends see it: topics, publishing, reading, cursors and subscriptions.

One object on one event loop. It knows no socket, file or clock; the backend below it decides where
messages live, the front ends above it decide how they travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from holdfast.broker import admit
from holdfast.broker.backend import Backend
from holdfast.broker.callbacks import Callbacks
from holdfast.broker.cursors import CursorRead, Cursors
from holdfast.broker.delivery_marks import DELIVERED, DeliveryMarks
from holdfast.broker.follower import Follower
from holdfast.broker.in_turns import InTurns
from holdfast.broker.making_topics import TopicMaking
from holdfast.broker.outgoing import Outgoing
from holdfast.broker.places import parse_place
from holdfast.broker.popping import BeforeTaking, Popped, Pops, at_once
from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.broker.publishing import KeepPushed, Publisher, Publishing, PushedPart, PushLosable, Settings
from holdfast.broker.stats import BrokerStats
from holdfast.broker.turns import Turns
from holdfast.model import names
from holdfast.model.cluster import ClusterDescription, GroupDescription
from holdfast.model.errors import BadCursorName, BadValue, TopicNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import DEDUPE_AGE_MS_MAX, DEDUPE_IDS_MAX, MESSAGE_BYTES_MAX, STALE_AFTER_MS
from holdfast.model.messages import BatchPublished, NewMessage, Published, StoredMessage
from holdfast.model.topics import CursorDescription, Topic, TopicConfig, TopicDescription
from holdfast.wire import record_batch
from holdfast.wire.push_batch import Pushed

OnTopic = Callable[[Topic], None]


class Broker:
    """All a front end may do."""

    def __init__(
        self,
        backend: Backend,
        *,
        now_ms: Callable[[], TimestampMs],
        steady_ms: Callable[[], int] | None = None,
        auto_create: bool = True,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        dedupe_ids_max: int = DEDUPE_IDS_MAX,
        dedupe_age_ms_max: int = DEDUPE_AGE_MS_MAX,
        delivers_from: Callable[[TopicName], TopicName] = lambda name: name,
        on_skip: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.backend = backend
        self.stats = BrokerStats()
        self.auto_create = auto_create
        self.message_bytes_max = message_bytes_max
        self.cursor_claims = Cursors(backend)
        self._now_ms = now_ms
        self._delivers_from = delivers_from
        self._making = TopicMaking(backend, delivers_from)
        self._on_skip = on_skip
        settings = Settings(message_bytes_max, auto_create, dedupe_ids_max, dedupe_age_ms_max)
        # For readers that are sent messages, however they are connected, and for large requests.
        self.turns = Turns()
        # Also for parts of the broker that make batches themselves.
        in_turns = InTurns(self.turns)
        steady_ms = steady_ms or now_ms
        self.publisher = Publisher(backend, settings, self.stats, now_ms, steady_ms, self._making.make, in_turns)
        self.pops = Pops(self)
        self.callbacks = Callbacks(self, now_ms)
        self.outgoing = Outgoing()
        self.delivery_marks = DeliveryMarks(backend, now_ms)
        self.delivery_marks.watch()
        backend.publish_with(self.publisher.publish_forwarded)
        backend.watch_deletions(self.publisher.topics.forget)

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(self, name: str, config: TopicConfig, maker: str = "") -> TopicDescription:
        """Raises `TopicExists`, `BadTopicName`, `BadValue`."""
        topic_name = names.topic_name(name)
        config.checked()
        await self._making.make(topic_name, config, maker)
        return self.describe_topic(topic_name)

    async def delete_topic(self, name: str) -> None:
        """What subscribers read goes with it: a new topic of that name begins empty on both ends."""
        # Of a topic that was made anew through another node, a node that is behind would delete the one before.
        await self.backend.catch_up_cursors()
        topic = self._topic(name)
        delivered = self._delivers_from(topic.name)
        for each in (topic.name, delivered) if delivered != topic.name else (topic.name,):
            if self.backend.topic(each) is not None:
                await self.backend.delete_topic(each)

    def topics(self) -> list[TopicDescription]:
        shown = [topic for topic in self.backend.topics() if not names.is_internal(topic.name)]
        return [self._described(topic) for topic in sorted(shown, key=lambda topic: topic.name)]

    def describe_topic(self, name: str) -> TopicDescription:
        return self._described(self._topic(name))

    def delivers_from(self, name: str) -> TopicName:
        """The topic whose messages subscribers of `name` get: itself, or what its processor makes of it."""
        return self._delivers_from(names.topic_name(name))

    async def ensure_topic(self, name: str, *, is_promised: bool = False) -> Topic:
        """The topic, created if it is missing and topics may be created by use.

        `is_promised`: it is for acknowledged messages, which are not kept out by how many topics there are.
        """
        checked = names.topic_name(name)
        if self.backend.topic(checked) is None and self.auto_create:
            await (self._making.make_promised(checked) if is_promised else self.publisher.topics.ensure(checked))
        return self._topic(checked)

    # --- publishing -------------------------------------------------------------------------------

    def publish_values(self, topic: str, values: Sequence[bytes]) -> Publishing:
        """The hot road: no keys, ids or headers; all values go to one partition, in order."""
        return self.publisher.publish_values(topic, values)

    def publish(
        self, topic: str, messages: Sequence[NewMessage], partition: int | None = None, *, may_be_lost: bool = False
    ) -> asyncio.Future[list[Published]]:
        """Messages with keys, ids and headers; the results come in their order once all are durable.
        `may_be_lost` (qos 0): where there is a spill, they are acknowledged before they are anywhere but in memory.
        """
        return self.publisher.publish(topic, messages, partition, may_be_lost=may_be_lost)

    def publish_large(
        self, topic: str, messages: Sequence[NewMessage], partition: int | None = None
    ) -> asyncio.Future[list[Published]]:
        """The same for one request that may have very many, and waits for its answer: others go on meanwhile."""
        return self.publisher.publish_large(topic, messages, partition)

    def spill_with(self, push_losable: PushLosable, keep_pushed: KeepPushed) -> None:
        """There is a spill: for what may be lost, and for pushes that the store would not take now."""
        self.publisher.push_losable, self.publisher.keep_pushed = push_losable, keep_pushed

    def publish_batches(
        self, topic: str, partition: int, batches: Sequence[record_batch.Buffer]
    ) -> asyncio.Future[list[BatchPublished]]:
        """Record batches that a client built; all are checked before the first is stored."""
        return self.publisher.publish_batches(topic, partition, batches)

    def publish_large_batches(
        self, topic: str, partition: int, batches: Sequence[record_batch.Buffer]
    ) -> asyncio.Future[list[BatchPublished]]:
        """The same for one request that may have very many messages, and waits for its answer."""
        return self.publisher.publish_large_batches(topic, partition, batches)

    def publish_pushed(
        self, topic: str, pushed: Pushed, *, may_be_lost: bool = False
    ) -> asyncio.Future[list[PushedPart]]:
        """Messages of a push, as columns; what became of each partition's part, once all of that is known."""
        return self.publisher.publish_pushed(topic, pushed, may_be_lost=may_be_lost)

    def publish_large_push(
        self, topic: str, pushed: Pushed, *, may_be_lost: bool = False
    ) -> asyncio.Future[list[PushedPart]]:
        """The same for requests that may have very many, and wait for their answers."""
        return self.publisher.publish_large_push(topic, pushed, may_be_lost=may_be_lost)

    # --- reading ----------------------------------------------------------------------------------

    async def read_batches(
        self, topic: str, partition: int, offset: Offset, bytes_max: int, *, stale: bool = False
    ) -> Sequence[memoryview]:
        """Stored batches as they are, the first one holding `offset`.

        What is stored never changes, so only an answer that ends with "no more" can be out of date: that is made
        sure of first. `stale` takes what is known here, also where nobody can tell what is missing.
        """
        checked = self._partition(topic, partition)
        if not stale:
            is_cut_off = self.backend.staleness_ms(checked) > STALE_AFTER_MS
            if is_cut_off or offset >= self.backend.end_offset(checked):
                await self.backend.catch_up(checked)
        elif offset > self.backend.end_offset(checked):
            return []
        return await self.backend.read(checked, offset, bytes_max)

    def staleness_ms(self, topic: str, partition: int) -> int:
        """How old a stale read of a partition may be."""
        return self.backend.staleness_ms(self._partition(topic, partition))

    async def read(
        self, topic: str, partition: int, offset: Offset, messages_max: int, bytes_max: int, *, stale: bool = False
    ) -> tuple[list[StoredMessage], Offset]:
        """Messages from `offset` on, and the offset to go on with."""
        messages: list[StoredMessage] = []
        bytes_left = bytes_max
        for batch in await self.read_batches(topic, partition, offset, bytes_max, stale=stale):
            wanted = messages_max - len(messages)
            if wanted <= 0 or bytes_left <= 0:
                break
            found = record_batch.decode(
                batch,
                partition,
                start=offset,
                messages_max=wanted,
                bytes_max=bytes_left,
                is_epoch_told=self.backend.delivers_where_led,
            )
            messages += found
            if len(found) < record_batch.header(batch).record_count:
                bytes_left -= sum(len(message.value) for message in found)
            else:
                bytes_left -= len(batch)
        return messages, Offset(messages[-1].offset + 1) if messages else offset

    async def wait_for(self, topic: str, positions: Mapping[int, Offset], timeout_s: float) -> bool:
        """Wait until some partition has a message at its position; False when the time is up."""
        follower = self.follow(topic, positions)
        try:
            async with asyncio.timeout(timeout_s):
                await follower.wait()
        except TimeoutError:
            return False
        finally:
            follower.close()
        return True

    def follow(self, topic: str, positions: Mapping[int, Offset], *, place: CursorName | None = None) -> Follower:
        """A reader of exactly this topic's log from these positions on; close it when done.

        `place`: the cursor it goes on from, should only the node that leads deliver, and this one come to lead.
        """
        checked = self._topic(topic)
        for number in positions:
            admit.check_partition(checked, number)
        place = place if self.backend.delivers_where_led else None
        is_young = self.delivery_marks.is_young
        return Follower(self.backend, checked.name, positions, self.stats, self._on_skip, place, is_young)

    def end_positions(self, topic: str) -> dict[int, Offset] | None:
        """The end of every partition now; `None` if there is no such topic, or its end is not known here yet."""
        known = self.backend.topic(TopicName(topic))
        if known is None or names.is_internal(topic):
            return None
        partitions = [PartitionId(known.name, number) for number in range(known.config.partitions)]
        if not all(map(self.backend.is_current, partitions)):
            return None
        return {partition.number: self.backend.end_offset(partition) for partition in partitions}

    async def positions(self, topic: str, where: str | int) -> dict[int, Offset]:
        """The same place in every partition of a topic."""
        numbers = range(self._topic(topic).config.partitions)
        return {number: await self.resolve_offset(topic, number, where) for number in numbers}

    async def resolve_offset(self, topic: str, partition: int, where: str | int, *, stale: bool = False) -> Offset:
        """`earliest`, `latest`, an offset or a time ago (`-10m`) as an offset; `stale` as for `read_batches`."""
        place = parse_place(where)
        if place.word != "earliest" and not stale:
            await self.backend.catch_up(self._partition(topic, partition))
        start, end = self.partition_range(topic, partition)
        if place.offset is not None:
            return Offset(place.offset)
        if place.ago_ms is not None:
            return await self.offset_at(topic, partition, self._now_ms() - place.ago_ms)
        return start if place.word == "earliest" else end

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> Offset:
        """The first message of that time or later; the end if there is none."""
        return await self.backend.offset_at(self._partition(topic, partition), TimestampMs(timestamp_ms))

    def partition_range(self, topic: str, partition: int) -> tuple[Offset, Offset]:
        """The first offset that is there, and the one the next message will get."""
        checked = self._partition(topic, partition)
        return self.backend.start_offset(checked), self.backend.end_offset(checked)

    # --- cursors: they belong to what a topic delivers ----------------------------------------------

    def cursors(self, topic: str | None = None) -> list[CursorDescription]:
        wanted = None if topic is None else {self._topic(topic).name, self._delivered(topic).name}
        found = []
        for topic_name, name in sorted(self.backend.cursors()):
            known = self.backend.topic(topic_name)
            if known is None or names.is_internal(topic_name):
                continue
            if (wanted is None or topic_name in wanted) and name != DELIVERED:
                found.append(self.cursor_claims.describe(known, name))
        return found

    def describe_cursor(self, topic: str, name: str) -> CursorDescription:
        """A reader's place; of a topic with a processor also that of the processor itself, and of earlier readers."""
        delivered, own, cursor = self._delivered(topic), self._topic(topic), names.place_name(name)
        if own != delivered and self.cursor_claims.positions(delivered, cursor) is None:
            return self.cursor_claims.describe(own, cursor)
        return self.cursor_claims.describe(delivered, cursor)

    async def open_cursor(self, topic: str, name: str, start: str | int | Mapping[int, Offset]) -> dict[int, Offset]:
        """Where a named reader stands; one that is new stands at `start`, durably."""
        await self.backend.catch_up_cursors()
        delivered, cursor = self._delivered(topic), names.cursor_name(name)
        positions = self.cursor_claims.positions(delivered, cursor)
        if positions is not None:
            # It may be that another connection is making it right now.
            await self.backend.set_cursor(delivered.name, cursor, {})
            return positions
        if isinstance(start, str | int):
            positions = await self.positions(delivered.name, start)
        else:
            positions = dict(start)
        await self.cursor_claims.make(delivered, cursor, positions)
        return positions

    async def read_cursor(
        self,
        topic: str,
        name: str,
        *,
        start: str | int = "earliest",
        messages_max: int,
        bytes_max: int,
    ) -> CursorRead:
        """What a named reader has not acknowledged yet, as much as is there now."""
        delivered = self._delivered(topic)
        positions = await self.open_cursor(topic, name, start)
        follower = self.follow(delivered.name, positions)
        messages: list[tuple[int, StoredMessage]] = []
        ack: dict[int, Offset] = {}
        bytes_left = bytes_max
        is_current = False
        try:
            while len(messages) < messages_max and bytes_left > 0:
                delivery = await follower.poll(bytes_left)
                if delivery is None:
                    if is_current:
                        break
                    # "No more" is only said when it is true on every node.
                    for number in positions:
                        await self.backend.catch_up(PartitionId(delivered.name, number))
                    is_current = True
                    continue
                bytes_left -= sum(map(len, delivery.batches))
                for batch in delivery.batches:
                    taken = record_batch.decode(
                        batch,
                        delivery.partition,
                        start=delivery.offset,
                        messages_max=messages_max - len(messages),
                        is_epoch_told=self.backend.delivers_where_led,
                    )
                    messages += [(delivery.partition, message) for message in taken]
                    if taken:
                        ack[delivery.partition] = Offset(taken[-1].offset + 1)
        finally:
            follower.close()
        return CursorRead(messages, ack)

    def ack_cursor(self, topic: str, name: str, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        """Everything below these offsets is done; never moves backwards."""
        delivered, cursor = self._delivered(topic), names.cursor_name(name)
        behind = [
            partition
            for partition in (PartitionId(delivered.name, number) for number in positions)
            if positions[partition.number] > self.backend.end_offset(partition)
        ]
        if behind or self.backend.cursor(delivered.name, cursor) is None:
            # The reader may have been told more by another node than this one knows yet.
            return asyncio.ensure_future(self._ack_after_catching_up(delivered, cursor, positions, behind))
        return self.cursor_claims.advance(delivered, cursor, positions)

    async def _ack_after_catching_up(
        self, topic: Topic, name: CursorName, positions: Mapping[int, Offset], behind: Sequence[PartitionId]
    ) -> None:
        await self.backend.catch_up_cursors()
        for partition in behind:
            if 0 <= partition.number < topic.config.partitions:
                await self.backend.catch_up(partition)
        await self.cursor_claims.advance(topic, name, positions)

    async def pop(
        self,
        topic: str,
        group: str,
        name: str | None,
        *,
        messages_max: int,
        bytes_max: int,
        before: Popped | None = None,
        before_taking: BeforeTaking = at_once,
    ) -> Popped:
        """Take the next messages for a group, of one partition name or of all; `before` is what it popped in vain.

        `before_taking` is told how many bytes they have. If it raises, they are not taken.
        """
        looked_at = None if before is None else before.looked_at
        return await self.pops.pop(
            self._delivered(topic),
            group,
            name,
            messages_max=messages_max,
            bytes_max=bytes_max,
            looked_at=looked_at,
            before_taking=before_taking,
        )

    async def seek_cursor(
        self, topic: str, name: str, to: str | int, partition: int | None = None
    ) -> CursorDescription:
        """Move a named reader anywhere, or make it there."""
        delivered, cursor = self._delivered(topic), names.moved_name(name)
        if partition is None:
            positions = await self.positions(delivered.name, to)
        else:
            positions = {partition: await self.resolve_offset(delivered.name, partition, to)}
        await self.cursor_claims.seek(delivered, cursor, positions)
        return self.cursor_claims.describe(delivered, cursor)

    async def delete_cursor(self, topic: str, name: str) -> None:
        # Of a topic that has no processor any more, the place of the one it had goes like any other.
        description = self.describe_cursor(topic, name if name == PROCESSOR_CURSOR else names.cursor_name(name))
        if description.name == PROCESSOR_CURSOR and description.topic != self._delivers_from(description.topic):
            raise BadCursorName(f"{name} is where the processor of {topic} stands; the broker moves it")
        self.cursor_claims.evict((description.topic, description.name))
        await self.backend.delete_cursor(description.topic, description.name)

    # --- the cluster ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        return await self.backend.cluster()

    def groups(self, topic: str | None = None) -> list[GroupDescription]:
        return self.backend.describe_groups(None if topic is None else self._topic(topic).name)

    async def transfer(self, topic: str | None, partition: int | None, node: str) -> None:
        """Have a node lead a partition; without a topic, the control group. Raises `BadValue`, `NoQuorum`."""
        if topic is not None and partition is not None:
            await self.backend.transfer(self._partition(topic, partition), node)
        elif topic is None and partition is None:
            await self.backend.transfer(None, node)
        else:
            raise BadValue("topic and partition belong together; without both, the control group is meant")

    # --- life -------------------------------------------------------------------------------------

    def on_topic(self, callback: OnTopic) -> None:
        """Call back for every topic there is and every one that is created from now on."""
        self.backend.watch_topics(callback)

    def ready_problem(self) -> str | None:
        """Why publishes are not taken now; `None` if they are."""
        return "the broker is shutting down" if self.publisher.topics.is_closed else self.backend.problem()

    async def stand_by(self) -> None:
        """One round of getting ready to lead what other nodes lead now."""
        await self.publisher.warm_windows()

    async def ask_time(self) -> None:
        """One round of learning what time it is by the clocks of a majority, where this node leads."""
        await self.publisher.ask_time()

    def refuse_publishes(self, but_for: Callable[[TopicName], bool] = lambda name: False) -> None:
        """The first step of leaving: nothing new is taken, but for what finishes what was taken before."""
        self.publisher.topics.close(but_for)

    # --- inner ------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self.backend.topic(TopicName(name))
        if topic is None or names.is_internal(name):
            raise TopicNotFound(f"there is no topic {names.topic_name(name)}; publish to it or create it")
        return topic

    def _partition(self, topic: str, number: int) -> PartitionId:
        checked = self._topic(topic)
        admit.check_partition(checked, number)
        return PartitionId(checked.name, number)

    def _delivered(self, topic: str) -> Topic:
        return self._topic(self.delivers_from(topic))

    def _described(self, topic: Topic) -> TopicDescription:
        partitions = [
            self.backend.describe_partition(PartitionId(topic.name, number))
            for number in range(topic.config.partitions)
        ]
        return TopicDescription(
            topic=topic.name,
            created_ms=topic.created_ms,
            retention_ms=topic.config.retention_ms,
            retention_bytes=topic.config.retention_bytes,
            messages=sum(partition.end_offset - partition.start_offset for partition in partitions),
            size_bytes=sum(partition.size_bytes for partition in partitions),
            delivers_from=self._delivers_from(topic.name),
            partitions=partitions,
            assumed=topic.is_assumed,
        )
