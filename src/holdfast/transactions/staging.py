"""Taking in what a transaction is made of: durable like every message, and seen by nobody until it is committed.

Nothing is remembered of a stage but the piece itself and the receipt that its writer holds. A stage that is tried again
makes a second piece; the commit names one of them, and the other one is swept away.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.broker import admit
from holdfast.broker.broker import Broker
from holdfast.model import names
from holdfast.model.errors import (
    BadValue,
    StagingFull,
    TooLarge,
    TooManyWriters,
    TopicExists,
    TransactionCommitted,
    Unavailable,
)
from holdfast.model.ids import PartitionId, TimestampMs, TopicName, WriterName
from holdfast.model.limits import (
    BATCHES_PER_STAGE_MAX,
    CURSOR_NAME_BYTES_MAX,
    MIB,
    NUMBER_MAX,
    STAGED_PIECE_BYTES_MAX,
    TRANSACTION_PARTITIONS,
    WRITERS_MAX,
)
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.model.topics import Topic, TopicConfig
from holdfast.model.transactions import StageReceipt
from holdfast.transactions.settings import Settings, TransactionStats
from holdfast.transactions.writers import Writers
from holdfast.wire import batch_builder, record_batch
from holdfast.wire.transactions import (
    DEAD_CURSOR,
    DECISIONS,
    STAGED,
    Piece,
    Receipt,
    encode_receipt,
    partition_of,
    staged_batch,
)

_NONCE_BYTES: Final = 8
# What is committed behind a piece that nobody commits cannot be deleted before that expires: disk has its bound, too.
_SIZE_FACTOR_MAX: Final = 4
# So much is checked before others get the loop.
_CHECKED_BYTES: Final = MIB


class Staging:
    """Stores pieces and gives receipts for them."""

    def __init__(
        self,
        broker: Broker,
        writers: Writers,
        settings: Settings,
        stats: TransactionStats,
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._writers = writers
        self._settings = settings
        self._stats = stats
        self._now_ms = now_ms
        # Messages without a key go to one partition after the other.
        self._turn = itertools.count()

    async def stage_batches(
        self,
        writer: str,
        number: int,
        topic: str,
        partition: int,
        batches: Sequence[record_batch.Buffer],
        attempt: str = "",
    ) -> StageReceipt:
        """Record batches that a client built, for one partition."""
        known = await self._admitted(writer, number, topic, attempt)
        admit.check_partition(known, partition)
        size = sum(map(len, batches))
        if size > STAGED_PIECE_BYTES_MAX:
            raise TooLarge(f"the batches have {size} bytes; stage at most {STAGED_PIECE_BYTES_MAX} in one request")
        if len(batches) > BATCHES_PER_STAGE_MAX:
            raise TooLarge(
                f"{len(batches)} batches; stage at most {BATCHES_PER_STAGE_MAX} in one request: fill them more"
            )
        count = await self._checked_count(batches)
        return await self._store(WriterName(writer), number, known, partition, batches, count, attempt)

    async def _checked_count(self, batches: Sequence[record_batch.Buffer]) -> int:
        """How many messages the batches have; all of them are looked at, so others get their turn in between."""
        count = unpaused = 0
        for batch in batches:
            count += self._broker.publisher.checked_batch(batch)
            unpaused += len(batch)
            if unpaused >= _CHECKED_BYTES:
                unpaused = 0
                await asyncio.sleep(0)
        return count

    async def stage_messages(
        self,
        writer: str,
        number: int,
        topic: str,
        messages: Sequence[NewMessage],
        partition: int | None = None,
        attempt: str = "",
    ) -> list[StageReceipt]:
        """Messages with keys, ids and headers; a receipt for each partition they go to."""
        admit.check_messages(messages, self._broker.message_bytes_max)
        known = await self._admitted(writer, number, topic, attempt)
        if partition is not None:
            admit.check_partition(known, partition)
        anywhere = next(self._turn) % known.config.partitions
        groups: dict[int, list[NewMessage]] = {}
        for message in messages:
            place = partition if partition is not None else admit.partition_of(known, message)
            groups.setdefault(anywhere if place is None else place, []).append(message)
        now_ms = self._now_ms()
        return [
            await self._store(
                WriterName(writer),
                number,
                known,
                place,
                [batch_builder.build_batch(group, now_ms)],
                len(group),
                attempt,
            )
            for place, group in groups.items()
        ]

    async def _admitted(self, writer: str, number: int, topic: str, attempt: str) -> Topic:
        checked = names.writer_name(writer)
        check_number(number)
        if len(attempt) > CURSOR_NAME_BYTES_MAX or (attempt and not attempt.isprintable()):
            raise BadValue(f"attempt has at most {CURSOR_NAME_BYTES_MAX} printable characters")
        await self.ensure_topics()
        state = self._writers.state(checked)
        if number == state.number:
            raise TransactionCommitted(
                f"number {number} of {checked} is committed, with what was staged for it then, and takes nothing more: "
                f"these messages are not stored. If they are others, use the next number, {number + 1}"
            )
        if number < state.number:
            raise TransactionCommitted(
                f"a writer's numbers only go up, and {checked} has committed {state.number}: nothing is staged for "
                f"{number}, whether it was committed or skipped. Use a number above {state.number}"
            )
        self.check_has_room(checked)
        partition = PartitionId(STAGED, partition_of(checked))
        size = self._backend.describe_partition(partition).size_bytes
        live = size - (self._backend.cursor(STAGED, DEAD_CURSOR) or {}).get(partition.number, 0)
        most = self._settings.staged_bytes_max
        if live >= most or size >= _SIZE_FACTOR_MAX * most:
            raise StagingFull(
                f"{live} bytes are staged beside {checked}'s, and {size - live} that are committed wait behind some of "
                f"them; {most} and {_SIZE_FACTOR_MAX * most} together are the most: "
                "try again when some of it is committed, dropped or expired"
            )
        return await self._broker.ensure_topic(topic)

    def check_has_room(self, writer: WriterName) -> None:
        """Raises `TooManyWriters` for one more."""
        if not self._writers.is_known(writer) and self._writers.count() >= WRITERS_MAX:
            raise TooManyWriters(
                f"there are {WRITERS_MAX} writers already, with those that were forgotten while some of what they "
                "staged is there; forget more that write no more, or try again in an hour"
            )

    async def ensure_topics(self) -> None:
        """The internal topics are made when the first transaction comes."""
        for name in (STAGED, DECISIONS):
            if self._backend.topic(name) is None:
                with contextlib.suppress(TopicExists):  # another node was faster
                    await self._backend.create_topic(name, TopicConfig(partitions=TRANSACTION_PARTITIONS))

    async def _store(
        self,
        writer: WriterName,
        number: int,
        topic: Topic,
        partition: int,
        batches: Sequence[record_batch.Buffer],
        count: int,
        attempt: str,
    ) -> StageReceipt:
        now_ms = self._now_ms()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        piece = Piece(writer, number, attempt, topic.name, topic.token, partition, len(batches), nonce)
        place = PartitionId(STAGED, partition_of(writer))
        published = await asyncio.shield(
            self._broker.publisher.publish_own(place, staged_batch(piece, batches, now_ms))
        )
        check_is_placed(published)
        size = sum(map(len, batches))
        self._stats.staged_messages += count
        self._stats.staged_bytes += size
        receipt = Receipt(
            writer, number, published.base_offset, now_ms, topic.name, topic.token, partition, len(batches), nonce
        )
        return StageReceipt(
            receipt=encode_receipt(receipt, self.key()),
            topic=topic.name,
            partition=partition,
            count=count,
            bytes=size,
            expires_ms=TimestampMs(now_ms + self._settings.expiry_ms),
        )

    def key(self) -> str:
        """What receipts are made with: every node has it, and no client is told."""
        staged = self._backend.topic(TopicName(STAGED))
        if staged is None:
            raise Unavailable("the topic of staged data is being made; try again in a moment")
        return staged.token


def check_number(number: int) -> None:
    if not 0 <= number < NUMBER_MAX:
        raise BadValue(f"number must be 0 to {NUMBER_MAX - 1}, not {number}")


def check_is_placed(published: BatchPublished) -> None:
    """What is only kept for later cannot be named by a commit, nor decide anything now."""
    if published.buffered:
        raise Unavailable("the store cannot be reached, and transactions wait for it; try again later")
