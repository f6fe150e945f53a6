"""One of a pair whose partner may be any broker: alone below, and speaking packets of replication on its text port.

The broker below keeps topics and cursors as one that stands alone does. This wrapper puts a journal before it
(`pair.py`): a publish goes there, to the backup, and only then into its topic. It also decides who delivers: the one
that serves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.holding import PublishHere
from holdfast.backends.plain.intake import Intake
from holdfast.backends.plain.pair import Phase, PlainPair
from holdfast.backends.plain.settings import PlainSettings
from holdfast.broker.backend import Backend, NoMembers, Unwatch
from holdfast.broker.passing import PassingBackend
from holdfast.broker.processing import DEAD_SUFFIX, source_id
from holdfast.model.cluster import ClusterDescription, PairDescription
from holdfast.model.errors import HoldfastError, NotReplicable, TopicNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished, NewMessage, StoredMessage
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import record_batch
from holdfast.wire.replication import check_fits


class PlainBackend(NoMembers, PassingBackend):
    """Keeps the promises of `broker.backend.Backend` together with a partner."""

    why_no_members = "one of a pair has one partner, and no other nodes"

    def __init__(
        self,
        inner: Backend,
        directory: Path,
        settings: PlainSettings,
        *,
        is_synced: bool,
        message_bytes_max: int,
        now_ms: Callable[[], TimestampMs],
        delivers_from: Callable[[TopicName], TopicName],
        on_fatal: Callable[[HoldfastError], None],
    ) -> None:
        super().__init__(inner)
        self._deliveries = Deliveries(inner, delivers_from)
        self._watchers: dict[object, Callable[[], None]] = {}
        self._reign_watchers: list[Callable[[PartitionId], None]] = []
        # What ids begin with that are made here, for messages that come without one.
        self._stem = secrets.token_hex(6)
        self._made = 0
        self.pair = PlainPair(
            inner,
            directory,
            settings,
            self._deliveries,
            is_synced=is_synced,
            message_bytes_max=message_bytes_max,
            now_ms=now_ms,
            on_change=self._tell,
            on_fatal=on_fatal,
        )

    @property
    def intake(self) -> Intake:
        return self.pair.intake

    @property
    def delivers_where_led(self) -> bool:
        return True

    def start(self) -> None:
        """Look for the partner. Front ends must be listening: it may answer at once."""
        self.pair.start()

    async def stop(self) -> None:
        await self.pair.stop()

    # --- what a backup does not do ------------------------------------------------------------------------

    def problem(self) -> str | None:
        return self.inner.problem() or (None if self.pair.takes_publishes else self.pair.refusal().message)

    def leads(self, partition: PartitionId) -> bool:
        return self.pair.takes_publishes and self.inner.leads(partition)

    def has_waiting(self, partition: PartitionId) -> bool:
        return self.pair.is_holding or self.inner.has_waiting(partition)

    def reign(self, partition: PartitionId) -> int | None:
        reign = self.inner.reign(partition) if self.pair.phase is Phase.SERVING else None
        return None if reign is None else reign + self.pair.generation

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        """Held until it is known who serves. It is not passed on: a partner may have no packet for that."""
        return self.pair.hold(partition, batch)

    def publish_with(self, publish_here: PublishHere) -> None:
        super().publish_with(publish_here)
        self.pair.publish_with(publish_here)

    def is_void(self, partition: PartitionId, offset: Offset) -> bool:
        stretches = self.pair.note.void.get(partition.topic)
        return stretches is not None and any(first <= offset < behind for first, behind in stretches)

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool = False) -> None:
        if not of_internal:  # a plain pair has no internal topics
            self._reign_watchers.append(on_change)
            self.inner.watch_reigns(on_change)

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        token = object()
        unwatch = self.inner.watch(partition, on_commit)
        self._watchers[token] = on_commit

        def unwatch_both() -> None:
            unwatch()
            self._watchers.pop(token, None)

        return unwatch_both

    def _tell(self) -> None:
        """Whoever reads or processes where this broker leads has to look again."""
        for topic in self.inner.topics():
            for number in range(topic.config.partitions):
                for on_change in self._reign_watchers:
                    on_change(PartitionId(topic.name, number))
        for on_commit in list(self._watchers.values()):
            on_commit()

    # --- what a primary does besides ----------------------------------------------------------------------

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        if is_internal(name):
            raise NotReplicable("a plain pair has no transactions: its packets have no place for them")
        if config.partitions != 1:
            raise NotReplicable("a plain pair has topics of one partition: its packets say nothing of partitions")
        return await self.inner.create_topic(name, config, maker)

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        return self.append_all(partition, [batch])

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        found = [self._replicable(partition, batch) for batch in batches]
        messages = [message for each in found if each is not None for message in each]
        if not messages:
            return self.inner.append_all(partition, batches)
        return self.pair.publish(partition, messages, TimestampMs(record_batch.header(batches[0]).base_timestamp_ms))

    def _replicable(self, partition: PartitionId, batch: bytearray) -> list[NewMessage] | None:
        """The messages of a batch, each with an id; `None` for outputs of a processor, which the backup makes itself.

        Raises `NotReplicable` for what the backup could not have as it is.
        """
        topic = partition.topic
        if self.inner.topic(topic) is None:
            raise TopicNotFound(f"there is no topic {topic}")
        stored = record_batch.decode(batch, partition.number)
        if self._deliveries.is_output(topic):
            if all(source_id(message) is not None for message in stored):
                return None
            raise NotReplicable(f"{topic} holds what the processor of a plain pair makes; publish to the topic itself")
        if partition.number:
            raise NotReplicable("a plain pair has topics of one partition: its packets say nothing of partitions")
        has_ids = record_batch.has_ids(batch)
        records = record_batch.decode_records(batch) if has_ids else []
        ids = [record_batch.record_id(record) for record in records] or [None] * len(stored)
        # Why a message is dead stands in headers, which stay here; the message itself is kept by both.
        is_dead = topic.endswith(DEAD_SUFFIX)
        return [self._message(message, each, is_dead=is_dead) for message, each in zip(stored, ids, strict=True)]

    def _message(self, message: StoredMessage, given_id: str | None, *, is_dead: bool) -> NewMessage:
        if (message.key is not None or message.headers) and not is_dead:
            raise NotReplicable("a plain pair keeps ids and values: its packets have no place for keys and headers")
        check_fits(given_id, message.value)
        if given_id is None:
            self._made += 1
            given_id = f"{self._stem}-{self._made}"
        return NewMessage(value=message.value, id=given_id, headers=message.headers)

    def set_cursor(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool = False
    ) -> asyncio.Future[None]:
        stored = self.inner.set_cursor(topic, name, positions, only_forward=only_forward)
        moved = self._deliveries.moved_with(topic, name)
        if moved is not None and self.pair.serving is not None:
            # Reads see the new position at once: what is told a moment too early was delivered all the same.
            self.pair.serving.cursor_moved(moved)
        return stored

    # --- for people ---------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        return msgspec.structs.replace(await self.inner.cluster(), pair=self.described())

    def described(self) -> PairDescription:
        """How this broker stands."""
        pair, serving = self.pair, self.pair.serving
        is_backup = pair.note.role == "backup"
        held_from = pair.intake.marks.mark if serving is None else serving.delivered_below
        return PairDescription(
            role="backup" if is_backup else "primary" if pair.phase is Phase.SERVING else "joining",
            epoch=pair.note.reign.epoch,
            is_alone=serving is not None and serving.is_alone,
            partner=pair.settings.partner,
            partner_is_up=pair.link.is_up,
            replicas_held=max(0, pair.journal.end - max(held_from, pair.journal.start)),
            lag=None if serving is None else serving.sending.stored - serving.sending.confirmed,
            failovers=pair.failovers,
            last_gap_ms=int(pair.last_gap_s * 1000) if pair.failovers else None,
        )
