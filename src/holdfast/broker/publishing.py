"""The way in: admit, find the partition, recognise resends, build the batch, append.

Everything up to the append happens in the call itself, so messages of one caller get their offsets in the
order of its calls. What is still open then is only when they are durable, which the returned future says.

Of a large request that happens in parts, with others on the event loop in between (`publish_large` and the like), and
then all of a partition is appended in one step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.broker import admit, client_batches, results
from holdfast.broker.backend import Backend
from holdfast.broker.client_batches import Prepared, Timed
from holdfast.broker.dedupe_windows import DedupeWindows
from holdfast.broker.in_turns import InTurns
from holdfast.broker.open_topics import OpenTopics
from holdfast.broker.recognising import Recognised
from holdfast.broker.results import Gathered, then
from holdfast.broker.stamped import StampedAppends
from holdfast.broker.stats import BrokerStats
from holdfast.model import names
from holdfast.model.errors import HoldfastError, NotLeader, ShuttingDown, TopicNotFound
from holdfast.model.ids import NO_OFFSET, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import MESSAGES_AT_ONCE_MAX
from holdfast.model.messages import BatchPublished, NewMessage, Published
from holdfast.model.pauses import Paused, in_parts, without_pauses
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import batch_builder, push_batch, record_batch, stamps
from holdfast.wire.equal_lines import EqualLines
from holdfast.wire.push_batch import Pushed


class Publishing(NamedTuple):
    """Values on their way: the i-th of them gets `offset + i` once the future is done."""

    partition: int
    offset: asyncio.Future[Offset]


class PushedPart(NamedTuple):
    """What became of some messages of a push, given with their places in it."""

    places: Sequence[int]
    fate: BatchPublished | BaseException


PushLosable = Callable[[PartitionId, bytearray], BatchPublished]
# Says, once it is kept, in how many bytes. None: some of it is for the store itself. Raises like `Backend.forward`.
KeepPushed = Callable[[Topic, Pushed], asyncio.Future[int] | None]


class Settings(NamedTuple):
    message_bytes_max: int
    auto_create: bool
    dedupe_ids_max: int
    dedupe_age_ms_max: int


class Publisher:
    """Puts messages into partitions of one backend."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        stats: BrokerStats,
        now_ms: Callable[[], TimestampMs],
        steady_ms: Callable[[], int],
        create_topic: Callable[[TopicName, TopicConfig], Awaitable[None]],
        in_turns: InTurns,
    ) -> None:
        self._backend = backend
        self._in_turns = in_turns
        self._settings = settings
        self._stats = stats
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._windows = DedupeWindows(
            backend, steady_ms, ids_max=settings.dedupe_ids_max, age_ms_max=settings.dedupe_age_ms_max
        )
        self.topics = OpenTopics(backend, self._windows, create_topic, auto_create=settings.auto_create)
        self._stamped = StampedAppends(backend, stats)
        # The last forwarded batches that are not appended yet, where one of those before them was large.
        self._forwarded: dict[PartitionId, asyncio.Future[None]] = {}
        # Takes what may be lost, at once; none where everything is stored as it should be.
        self.push_losable: PushLosable | None = None
        # Takes a push whose store would not take any of it now; none where there is no such thing.
        self.keep_pushed: KeepPushed | None = None

    # --- values only ------------------------------------------------------------------------------

    def publish_values(self, topic_text: str, values: Sequence[bytes]) -> Publishing:
        """Store messages that are nothing but a value, all in one partition."""
        admit.check_values(values, self._settings.message_bytes_max)
        topic = self.topics.open(topic_text)
        if topic is None:
            name = TopicName(topic_text)
            return Publishing(
                0, self.topics.gates.behind(name, lambda: self._append_values(PartitionId(name, 0), values))
            )
        partition = self.topics.partition_for_values(topic)
        return Publishing(partition.number, self._append_values(partition, values))

    def _append_values(self, partition: PartitionId, values: Sequence[bytes]) -> asyncio.Future[Offset]:
        now_ms = self._now_ms()
        batch = values.batch(now_ms) if isinstance(values, EqualLines) else batch_builder.build_values(values, now_ms)
        if not self._is_elsewhere(partition):
            return self._stats.count_stored(self._backend.append(partition, batch), len(values), len(batch))
        promise: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        counted = self._counted(len(batch))
        forwarded = self._backend.forward(partition, batch, has_ids=False)
        then(forwarded, promise, lambda published: counted(published).base_offset)
        return promise

    # --- keys, ids, headers -----------------------------------------------------------------------

    def publish(
        self,
        topic_text: str,
        messages: Sequence[NewMessage],
        partition: int | None = None,
        *,
        may_be_lost: bool = False,
    ) -> asyncio.Future[list[Published]]:
        """Store messages; all are checked before the first is stored. See `Broker.publish` for `may_be_lost`."""
        admit.check_messages(messages, self._settings.message_bytes_max)
        needs_windows = any(message.id is not None for message in messages)
        topic = self.topics.open(topic_text, needs_windows=needs_windows)
        if topic is None:
            name = TopicName(topic_text)
            append = functools.partial(self._append_messages, messages=messages, partition=partition)
            return self.topics.gates.behind(name, lambda: append(self.topics.existing(name), may_be_lost=may_be_lost))
        return self._append_messages(topic, messages, partition, may_be_lost=may_be_lost)

    def publish_large(
        self, topic_text: str, messages: Sequence[NewMessage], partition: int | None = None
    ) -> asyncio.Future[list[Published]]:
        """The same for a caller that waits for the answer before it publishes again: others go on meanwhile.

        Messages of one partition become one batch all the same.
        """
        if len(messages) <= MESSAGES_AT_ONCE_MAX:
            return self.publish(topic_text, messages, partition)
        admit.check_messages(messages, self._settings.message_bytes_max)
        return self._in_turns.begin(self._publish_in_turns(topic_text, messages, partition))

    async def _publish_in_turns(
        self, topic_text: str, messages: Sequence[NewMessage], partition: int | None
    ) -> list[Published]:
        topic = await self._opened(topic_text, needs_windows=any(message.id is not None for message in messages))
        return await (await self._in_turns.run(self._appending_messages(topic, messages, partition)))

    async def _opened(self, topic_text: str, *, needs_windows: bool) -> Topic:
        topic = self.topics.open(topic_text, needs_windows=needs_windows)
        return await self.topics.behind_gate(TopicName(topic_text)) if topic is None else topic

    def _append_messages(
        self,
        topic: Topic,
        messages: Sequence[NewMessage],
        partition: int | None,
        *,
        may_be_lost: bool = False,
    ) -> asyncio.Future[list[Published]]:
        return without_pauses(self._appending_messages(topic, messages, partition, may_be_lost=may_be_lost))

    def _appending_messages(
        self,
        topic: Topic,
        messages: Sequence[NewMessage],
        partition: int | None,
        *,
        times_ms: Sequence[TimestampMs] | None = None,
        is_due: bool = False,
        may_be_lost: bool = False,
    ) -> Paused[asyncio.Future[list[Published]]]:
        if partition is not None:
            admit.check_partition(topic, partition)
        gathered = Gathered(len(messages))
        anywhere: int | None = None
        groups: dict[int, list[int]] = {}
        for part in in_parts(range(len(messages))):
            for place in part:
                number = partition if partition is not None else admit.partition_of(topic, messages[place])
                if number is None:
                    anywhere = self.topics.any_partition(topic) if anywhere is None else anywhere
                    number = anywhere
                groups.setdefault(number, []).append(place)
            if len(part) < len(messages):
                yield
        for number, places in groups.items():
            if gathered.has_failed:
                # The less of it is stored, the more often the answer can be that nothing is.
                gathered.abandon(len(places))
            elif may_be_lost and self.push_losable is not None:
                self._push_losable(self.push_losable, PartitionId(topic.name, number), messages, places, gathered)
            else:
                group = PartitionId(topic.name, number), messages, places, gathered, times_ms
                yield from self._appending_group(*group, is_due=is_due)
        return gathered.future

    def _push_losable(
        self,
        push: PushLosable,
        partition: PartitionId,
        messages: Sequence[NewMessage],
        places: list[int],
        gathered: Gathered,
    ) -> None:
        batch = batch_builder.build_batch([messages[place] for place in places], self._now_ms())
        try:
            taken = push(partition, batch)
        except HoldfastError as error:
            gathered.fail(len(places), error)
            return
        self._stats.count_publish(len(places), len(batch))
        for place, result in zip(places, results.spread(taken), strict=True):
            gathered.settle(place, result)

    def _appending_group(
        self,
        partition: PartitionId,
        messages: Sequence[NewMessage],
        places: Sequence[int],
        gathered: Gathered,
        times_ms: Sequence[TimestampMs] | None = None,
        *,
        is_due: bool = False,
    ) -> Paused[None]:
        """Append those of `messages` that belong to one partition, less the ones that are there already."""
        window, reign = self._windows.of(partition), self._backend.reign(partition)
        topic = self._backend.topic(partition.topic)
        has_ids = any(messages[place].id is not None for place in places)
        if self._is_elsewhere(partition, is_due=is_due) or (has_ids and window is None):
            # Another node leads, or this one has only just begun to.
            if is_due:
                gathered.fail(len(places), NotLeader(f"this node does not lead {partition} yet"))
            else:
                yield from self._forwarding_group(partition, messages, places, gathered, times_ms)
            return
        is_void = functools.partial(self._backend.is_void, partition)
        recognised = Recognised(messages, gathered, partition.number, window, is_void)
        try:
            for part in in_parts(places):
                recognised.look_at(part, self._steady_ms())
                if len(part) < len(places):
                    recognised.reserve()
                    yield
            self._stats.duplicates += len(places) - len(recognised.fresh)
            if not recognised.fresh:
                return
            agreed_ms = self._windows.agreed_ms(partition) if has_ids else None
            batch = yield from self._building(messages, recognised.fresh, times_ms, agreed_ms)
            if self._backend.topic(partition.topic) != topic:
                raise TopicNotFound(f"topic {partition.topic} was deleted while the request was worked on")
            if self._is_elsewhere(partition, is_due=is_due) or (has_ids and self._backend.reign(partition) != reign):
                # During a pause: another leader may have stored what was found to be new here. The window may be the
                # same again, with what that leader stored.
                raise NotLeader(f"the leader of {partition} changed while the request was worked on; send it again")
            appended = self._backend.append(partition, batch)
        except HoldfastError as error:
            recognised.give_up(error)
            return
        except BaseException:
            recognised.give_up(ShuttingDown("the broker stopped before this was stored"))
            raise
        self._stats.count_stored(appended, len(recognised.fresh), len(batch))
        recognised.appended(appended, self._steady_ms())

    # --- pushed, as columns -----------------------------------------------------------------------

    def publish_pushed(
        self, topic_text: str, pushed: Pushed, *, may_be_lost: bool = False
    ) -> asyncio.Future[list[PushedPart]]:
        """Store pushed messages; all are checked before the first is stored. Each partition's part has its own fate."""
        admit.check_pushed(pushed, self._settings.message_bytes_max)
        topic = self.topics.open(topic_text, needs_windows=True)
        append = functools.partial(self._append_pushed, pushed=pushed, may_be_lost=may_be_lost)
        if topic is None:
            name = TopicName(topic_text)
            return self.topics.gates.behind(name, lambda: append(self.topics.existing(name)))
        return append(topic)

    def publish_large_push(
        self, topic_text: str, pushed: Pushed, *, may_be_lost: bool = False
    ) -> asyncio.Future[list[PushedPart]]:
        """The same for callers that wait for the answer before they push again: others go on meanwhile."""
        if len(pushed.names) <= MESSAGES_AT_ONCE_MAX:
            return self.publish_pushed(topic_text, pushed, may_be_lost=may_be_lost)
        admit.check_pushed(pushed, self._settings.message_bytes_max)
        return self._in_turns.begin(self._publish_pushed_in_turns(topic_text, pushed, may_be_lost=may_be_lost))

    async def _publish_pushed_in_turns(self, topic_text: str, pushed: Pushed, *, may_be_lost: bool) -> list[PushedPart]:
        topic = await self._opened(topic_text, needs_windows=True)
        return await (await self._in_turns.run(self._appending_pushed(topic, pushed, may_be_lost=may_be_lost)))

    def _append_pushed(self, topic: Topic, pushed: Pushed, *, may_be_lost: bool) -> asyncio.Future[list[PushedPart]]:
        return without_pauses(self._appending_pushed(topic, pushed, may_be_lost=may_be_lost))

    def _appending_pushed(
        self, topic: Topic, pushed: Pushed, *, may_be_lost: bool
    ) -> Paused[asyncio.Future[list[PushedPart]]]:
        if self.keep_pushed is not None and not may_be_lost:
            kept = self.keep_pushed(topic, pushed)
            if kept is not None:
                return self._kept(kept, len(pushed.names))
        places = admit.places_of(topic, pushed.names)
        parts: list[asyncio.Future[BatchPublished]] = []
        for number, each in places.items():
            partition = PartitionId(topic.name, number)
            parts.append((yield from self._appending_part(partition, pushed.only(each), may_be_lost=may_be_lost)))
        promise: asyncio.Future[list[PushedPart]] = asyncio.get_running_loop().create_future()

        def settle(fates: list[BatchPublished | BaseException]) -> None:
            if not promise.done():
                promise.set_result(list(map(PushedPart, places.values(), fates)))

        results.when_all(parts, settle)
        return promise

    def _kept(self, kept: asyncio.Future[int], count: int) -> asyncio.Future[list[PushedPart]]:
        promise: asyncio.Future[list[PushedPart]] = asyncio.get_running_loop().create_future()

        def settled(size: int) -> list[PushedPart]:
            self._stats.count_publish(count, size)
            # Of whichever partitions: none of it has a place yet.
            return [PushedPart(range(count), results.regular(-1, NO_OFFSET, count))]

        then(kept, promise, settled)
        return promise

    def _appending_part(
        self, partition: PartitionId, pushed: Pushed, *, may_be_lost: bool
    ) -> Paused[asyncio.Future[BatchPublished]]:
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        try:
            if may_be_lost and self.push_losable is not None:
                batch = push_batch.build(pushed, self._now_ms())
                promise.set_result(self._counted(len(batch))(self.push_losable(partition, batch)))
            elif self._is_elsewhere(partition):
                batch = push_batch.build(pushed, self._now_ms())
                then(self._backend.forward(partition, batch, has_ids=True), promise, self._counted(len(batch)))
            else:
                places = range(len(pushed.names))
                messages: list[NewMessage] = []
                for some in in_parts(places):
                    messages += pushed.only(some).messages()
                    if len(some) < len(places):
                        yield
                gathered = Gathered(len(places))
                yield from self._appending_group(partition, messages, places, gathered)
                then(gathered.future, promise, lambda each: results.summary(partition.number, each))
        except HoldfastError as error:
            results.refuse(promise, error)
        return promise

    def _building(
        self,
        messages: Sequence[NewMessage],
        places: Sequence[int],
        times_ms: Sequence[TimestampMs] | None,
        agreed_ms: TimestampMs | None = None,
    ) -> Paused[bytearray]:
        """Some of the messages, with the times that their senders gave them, or else that of now.

        Ids are forgotten by the agreed time, so they must not seem older because this node's clock is behind.
        """
        some, now_ms = [messages[place] for place in places], self._now_ms()
        arrived_ms = now_ms if agreed_ms is None else max(now_ms, agreed_ms)
        if times_ms is None and arrived_ms == now_ms:
            return batch_builder.building_batch(some, now_ms)
        times = [now_ms if times_ms is None else times_ms[place] for place in places]
        return batch_builder.building_timed(some, times, arrived_ms)

    def _forwarding_group(
        self,
        partition: PartitionId,
        messages: Sequence[NewMessage],
        places: Sequence[int],
        gathered: Gathered,
        times_ms: Sequence[TimestampMs] | None,
    ) -> Paused[None]:
        """Have the partition's leader do the same; it knows which ids it has."""
        batch = yield from self._building(messages, places, times_ms)
        counted = self._counted(len(batch))
        has_ids = all(messages[place].id is not None for place in places)
        try:
            published = self._backend.forward(partition, batch, has_ids=has_ids)
        except HoldfastError as error:
            gathered.fail(len(places), error)
            return

        def settle(done: asyncio.Future[BatchPublished]) -> None:
            error = results.failure(done)
            if error is not None:
                gathered.fail(len(places), error)
                return
            stored = counted(done.result())
            for place, result in zip(places, results.spread(stored), strict=True):
                gathered.settle(place, result)

        published.add_done_callback(settle)

    def _counted(self, size: int) -> Callable[[BatchPublished], BatchPublished]:
        """Counts a batch of that size when it is known which of its messages are new."""

        def count(published: BatchPublished) -> BatchPublished:
            self._stats.duplicates += published.duplicates
            if published.duplicates < published.count:
                self._stats.count_publish(published.count - published.duplicates, size)
            return published

        return count

    # --- whole batches ----------------------------------------------------------------------------

    def publish_batches(
        self, topic_text: str, number: int, batches: Sequence[record_batch.Buffer]
    ) -> asyncio.Future[list[BatchPublished]]:
        """Store batches that a client built; they stay as they are unless some of it is there already."""
        prepared = [self._prepared(batch) for batch in batches]
        needs_windows = any(each.with_ids is not None for each in prepared)
        topic = self.topics.open(topic_text, needs_windows=needs_windows)
        partition = PartitionId(TopicName(topic_text), number)
        if topic is not None:
            admit.check_partition(topic, number)
            if not needs_windows and not self._is_elsewhere(partition):
                return self._append_batches(partition, prepared)
        return results.one_by_one(
            functools.partial(self._append_when_open, topic, partition, each) for each in prepared
        )

    def publish_large_batches(
        self, topic_text: str, number: int, batches: Sequence[record_batch.Buffer]
    ) -> asyncio.Future[list[BatchPublished]]:
        """The same for a caller that waits for the answer before it publishes again: others go on meanwhile."""
        if sum(record_batch.header(batch).record_count for batch in batches) <= MESSAGES_AT_ONCE_MAX:
            return self.publish_batches(topic_text, number, batches)
        return self._in_turns.begin(self._publish_batches_in_turns(topic_text, number, batches))

    async def _publish_batches_in_turns(
        self, topic_text: str, number: int, batches: Sequence[record_batch.Buffer]
    ) -> list[BatchPublished]:
        prepared = [await self._in_turns.run(self._preparing(batch)) for batch in batches]
        needs_windows = any(each.with_ids is not None for each in prepared)
        topic = await self._opened(topic_text, needs_windows=needs_windows)
        admit.check_partition(topic, number)
        partition = PartitionId(topic.name, number)
        if not needs_windows and not self._is_elsewhere(partition):
            return await self._append_batches(partition, prepared)
        begun: list[asyncio.Future[BatchPublished]] = []
        for each in prepared:
            try:
                begun.append(await self._in_turns.run(self._appending_batch(partition, *each)))
            except HoldfastError as error:
                if not begun:
                    raise
                return await results.all_of(begun, [error])
        return await results.all_of(begun, [])

    def publish_forwarded(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """Store a batch whose turn it is; where this node does not lead, that is `NotLeader`."""
        if names.is_internal(partition.topic) or stamps.is_stamped(batch):
            if self.topics.is_closed:
                raise ShuttingDown("the broker is shutting down")
            return self._append_own(partition, batch)
        before = self._forwarded.get(partition)
        if before is None and record_batch.header(batch).record_count <= MESSAGES_AT_ONCE_MAX:
            prepared = self._prepared(batch)
            topic = self.topics.open(partition.topic, needs_windows=prepared.with_ids is not None)
            return self._append_when_open(topic, partition, prepared, is_due=True)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._forwarded[partition] = begun
        return self._in_turns.begin(self._publish_forwarded_in_turns(partition, batch, before, begun))

    async def _publish_forwarded_in_turns(
        self,
        partition: PartitionId,
        batch: bytearray,
        before: asyncio.Future[None] | None,
        begun: asyncio.Future[None],
    ) -> BatchPublished:
        """Nodes send on what may not be overtaken, so what comes behind a large batch waits until that is appended."""
        try:
            prepared = await self._in_turns.run(self._preparing(batch))
            if before is not None:
                await asyncio.shield(before)
            await self._opened(partition.topic, needs_windows=prepared.with_ids is not None)
            published = await self._in_turns.run(self._appending_batch(partition, *prepared, is_due=True))
        finally:
            if not begun.done():
                begun.set_result(None)
            if self._forwarded.get(partition) is begun:
                del self._forwarded[partition]
        return await published

    def publish_own(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """Store a batch that the broker made: of an internal topic, or of a transaction, with its stamp.

        One with a stamp is stored once, however often it comes. One without may be stored twice where a leader is lost.
        """
        if self._is_elsewhere(partition) or self._backend.reign(partition) is None:
            return self._backend.forward(partition, batch, has_ids=True)
        return self._append_own(partition, batch)

    def _append_own(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        if stamps.is_stamped(batch):
            return asyncio.ensure_future(self._stamped.append(partition, batch))
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        count = record_batch.extent(batch)[0]
        then(
            self._backend.append(partition, batch),
            promise,
            lambda offset: results.regular(partition.number, offset, count),
        )
        return promise

    def _append_when_open(
        self, topic: Topic | None, partition: PartitionId, prepared: Prepared, *, is_due: bool = False
    ) -> asyncio.Future[BatchPublished]:
        def start() -> asyncio.Future[BatchPublished]:
            return without_pauses(self._appending_batch(partition, *prepared, is_due=is_due))

        return start() if topic is not None else self.topics.gates.behind(partition.topic, start)

    def _append_batches(self, partition: PartitionId, prepared: list[Prepared]) -> asyncio.Future[list[BatchPublished]]:
        """Store batches without ids, in a partition that is led here."""
        batches = [each.batch for each in prepared]
        counts = [each.messages_count for each in prepared]
        appended = self._backend.append_all(partition, batches)
        self._stats.count_stored(appended, sum(counts), sum(map(len, batches)))
        promise: asyncio.Future[list[BatchPublished]] = asyncio.get_running_loop().create_future()
        then(appended, promise, lambda offset: results.run(partition.number, offset, counts))
        return promise

    def checked_batch(self, batch: record_batch.Buffer) -> int:
        """Check a batch that a client built; returns how many messages it has."""
        return client_batches.checked(batch, self._settings.message_bytes_max, self._now_ms())[0]

    def _preparing(self, batch: record_batch.Buffer) -> Paused[Prepared]:
        return client_batches.preparing(batch, self._settings.message_bytes_max, self._now_ms())

    def _prepared(self, batch: record_batch.Buffer) -> Prepared:
        return client_batches.prepared(batch, self._settings.message_bytes_max, self._now_ms())

    def _appending_batch(
        self,
        partition: PartitionId,
        count: int,
        batch: bytearray,
        with_ids: Timed | None,
        *,
        is_due: bool = False,
    ) -> Paused[asyncio.Future[BatchPublished]]:
        topic = self.topics.existing(partition.topic)
        admit.check_partition(topic, partition.number)
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        is_elsewhere = not is_due and self._is_elsewhere(partition)
        if is_elsewhere:
            # As it came: whoever leads takes it apart.
            has_ids = with_ids is not None and all(each.id is not None for each in with_ids.messages)
            then(self._backend.forward(partition, batch, has_ids=has_ids), promise, self._counted(len(batch)))
        elif with_ids is None:
            appended = self._backend.append(partition, batch)
            self._stats.count_stored(appended, count, len(batch))
            then(appended, promise, lambda offset: results.regular(partition.number, offset, count))
        else:
            messages, times_ms = with_ids
            appending = self._appending_messages(topic, messages, partition.number, times_ms=times_ms, is_due=is_due)
            published = yield from appending
            then(published, promise, lambda each: results.summary(partition.number, each))
        return promise

    def _is_elsewhere(self, partition: PartitionId, *, is_due: bool = False) -> bool:
        """Whether it has to go through `forward`: another node leads, or what waits there is before it."""
        return not self._backend.leads(partition) or (not is_due and self._backend.has_waiting(partition))

    # --- topics and windows -----------------------------------------------------------------------

    async def warm_windows(self) -> None:
        """Know the ids of partitions that other nodes lead, should this one have to lead them next."""
        await self._windows.warm()

    async def ask_time(self) -> None:
        """Learn what time it is by the clocks of a majority, by which messages with ids are stamped."""
        await self._windows.ask_time()
