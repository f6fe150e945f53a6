"""Where the results of one partition go: dead letters, then the output topic, then the cursor.

Each step is durable before the next begins, and each waits out a broker that cannot store at the moment.
The cursor moves last, so a crash at any point repeats messages and loses none; what it repeats has the
same id again and is recognised by the output topic, wherever that is led. Ids are remembered for minutes and
a broker can be down for days: `recent` therefore gives the end of the output log, to compare with what is read
first. Dead letters go first, so that once an output is found, every failure before it is on record too.

The node that led the partition before may have had one of these steps under way. Each step waits for the one
before it, so whatever still arrives of it follows on what is stored; and the cursor only moves forward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.broker.broker import Broker
from holdfast.broker.processing import (
    COMMIT_MESSAGES_MAX,
    PROCESSOR_CURSOR,
    GaveUp,
    Origin,
    Outcome,
    Transformed,
    backoff_ms,
    dead_letter,
    dead_topic,
    output,
    output_id,
    processed_topic,
)
from holdfast.broker.reign import Reign
from holdfast.model.errors import (
    CallerError,
    DamagedData,
    NotFound,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
    Unavailable,
    WorldError,
)
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import MIB
from holdfast.model.messages import NewMessage, StoredMessage
from holdfast.model.topics import Topic, TopicConfig
from holdfast.processors.pool import LogEvent

# One publish is one batch: far below the largest batch, large enough to share a sync.
PUBLISH_BYTES_MAX: Final = 4 * MIB
_READ_BYTES: Final = 1 * MIB

Ready = tuple[StoredMessage, Outcome]
Done = TypeVar("Done")


class StageStats(msgspec.Struct):
    """Counters since the start, over all partitions of a stage.

    `repeated` were in the output topic already; `skipped` are offsets that expired or were damaged
    before they were read; `restarts` are partitions that began again at their cursor after an error.
    """

    stored: int = 0
    dropped: int = 0
    dead: int = 0
    repeated: int = 0
    skipped: int = 0
    waits: int = 0
    restarts: int = 0


class Outputs:
    """The way out of the stage for one partition, while this node leads it."""

    def __init__(
        self, broker: Broker, topic: Topic, partition: int, reign: Reign, stats: StageStats, log: LogEvent
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._reign = reign
        self._origin = Origin(topic.name, topic.created_ms, partition)
        self._processed = processed_topic(topic.name)
        self._dead = dead_topic(topic.name)
        self._stats = stats
        self._log = log

    async def open(self) -> None:
        """Make the output topic if it is not there, know what was stored anywhere, and wait until that is possible."""

        async def catch_up() -> None:
            await ensure_processed(self._broker, self._topic)
            await self._broker.backend.catch_up_cursors()
            await self._broker.backend.catch_up(PartitionId(self._processed, self._origin.partition))

        await self._until_taken(catch_up)

    def is_output_of(self, message: StoredMessage, recent: dict[str, TimestampMs]) -> bool:
        """Whether one of the `recent` outputs was made from this message.

        An output is never older than its message: an id that was used again after the dedupe window
        does not make a new message look like an old one.
        """
        stored_ms = recent.get(output_id(self._origin, message))
        return stored_ms is not None and stored_ms >= message.timestamp_ms

    async def recent(self) -> dict[str, TimestampMs]:
        """The newest outputs by id, as many as a crash can leave ahead of the cursor."""
        number = self._origin.partition
        start, end = self._broker.partition_range(self._processed, number)
        offset = Offset(max(start, end - COMMIT_MESSAGES_MAX))
        found: dict[str, TimestampMs] = {}
        while offset < end:
            try:
                messages, offset = await self._broker.read(
                    self._processed, number, offset, COMMIT_MESSAGES_MAX, _READ_BYTES, stale=True
                )
            except DamagedData as damage:
                offset = Offset(damage.next_offset)
                continue
            found.update((message.id, message.timestamp_ms) for message in messages)
        return found

    async def store(self, ready: Sequence[Ready]) -> None:
        """Make the results durable and move the cursor past their messages."""
        outputs: list[tuple[StoredMessage, NewMessage]] = []
        for message, outcome in ready:
            if isinstance(outcome, GaveUp):
                await self._bury(message, outcome)
            elif isinstance(outcome, Transformed):
                outputs.append((message, output(self._origin, message, outcome.value)))
        for chunk in _chunks(outputs):
            await self._publish(chunk)
        await self.move_cursor(Offset(ready[-1][0].offset + 1))

    async def move_cursor(self, offset: Offset, *, only_forward: bool = True) -> None:
        """Durable on return."""
        backend, positions = self._broker.backend, {self._origin.partition: offset}

        async def move() -> None:
            moved = backend.set_cursor(self._topic.name, PROCESSOR_CURSOR, positions, only_forward=only_forward)
            # The backend owns its future: a stage that is cancelled must not cancel it.
            await asyncio.shield(moved)

        await self._until_taken(move)

    async def _publish(self, chunk: Sequence[tuple[StoredMessage, NewMessage]]) -> None:
        messages = [new for _, new in chunk]

        async def publish() -> int:
            await ensure_processed(self._broker, self._topic)
            published = await self._broker.publish(self._processed, messages, partition=self._origin.partition)
            return sum(one.duplicate for one in published)

        try:
            repeated = await self._until_taken(publish)
        except CallerError as error:
            # The broker refuses a message and with it the whole publish: find out which.
            if len(chunk) == 1:
                await self._bury(chunk[0][0], GaveUp(f"the output was refused: {error.message}", 1))
                return
            for one in chunk:
                await self._publish([one])
            return
        self._stats.stored += len(messages) - repeated
        self._stats.repeated += repeated

    async def _bury(self, message: StoredMessage, failure: GaveUp) -> None:
        try:
            await self._publish_dead(dead_letter(self._origin, message, failure))
        except CallerError:
            await self._publish_dead(dead_letter(self._origin, message, failure, with_value=False))
        self._stats.dead += 1
        self._log(
            "processor_dead_letter",
            topic=self._topic.name,
            partition=self._origin.partition,
            offset=message.offset,
            attempts=failure.attempts,
            error=failure.error,
        )

    async def _publish_dead(self, letter: NewMessage) -> None:
        async def publish() -> None:
            # Without the topic's retention: a letter is the only trace of a message that nobody received.
            config = TopicConfig(partitions=self._topic.config.partitions)
            letters = await _ensured(self._broker, self._dead, config)
            await self._broker.publish(
                self._dead, [letter], partition=self._origin.partition % letters.config.partitions
            )

        await self._until_taken(publish)

    async def _until_taken(self, attempt: Callable[[], Awaitable[Done]]) -> Done:
        """Try until the broker takes it; `TopicNotFound` once the topic itself is gone.

        A broker that is leaving takes nothing more: that is not waited for.
        """
        failures = 0
        while True:
            topic = self._broker.backend.topic(self._topic.name)
            if topic is None or topic.created_ms != self._topic.created_ms:
                raise TopicNotFound(f"topic {self._topic.name} was deleted")
            try:
                await self._reign.confirm()
                return await attempt()
            except ShuttingDown:
                raise
            except (WorldError, NotFound) as error:
                failures += 1
                self._stats.waits += 1
                delay_ms = backoff_ms(failures)
                self._log(
                    "processor_output_waits",
                    topic=self._topic.name,
                    partition=self._origin.partition,
                    error=error.message,
                    retry_in_ms=delay_ms,
                )
            await asyncio.sleep(delay_ms / 1000)


async def ensure_processed(broker: Broker, topic: Topic) -> None:
    """Make the output topic of a topic if it is not there; `Unavailable` if that is not possible now."""
    name = processed_topic(topic.name)
    outputs = await _ensured(broker, name, topic.config)
    if outputs.config.partitions != topic.config.partitions:
        raise Unavailable(
            f"{name} has {outputs.config.partitions} partitions and {topic.name}"
            f" has {topic.config.partitions}: delete {name}, it is made again"
        )


async def _ensured(broker: Broker, name: TopicName, config: TopicConfig) -> Topic:
    if (topic := broker.backend.topic(name)) is not None:
        return topic
    try:
        await broker.create_topic(name, config)
    except TopicExists:
        pass  # another partition of the topic, another node, or a subscriber, was faster
    except CallerError as error:
        raise Unavailable(f"{name} cannot be made: {error.message}") from error
    if (topic := broker.backend.topic(name)) is None:
        raise Unavailable(f"{name} is not there yet")
    return topic


def _chunks(
    outputs: Sequence[tuple[StoredMessage, NewMessage]],
) -> Iterator[list[tuple[StoredMessage, NewMessage]]]:
    """In order, each as many messages as one publish should carry."""
    chunk: list[tuple[StoredMessage, NewMessage]] = []
    chunk_bytes = 0
    for one in outputs:
        if chunk and chunk_bytes + len(one[1].value) > PUBLISH_BYTES_MAX:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(one)
        chunk_bytes += len(one[1].value)
    if chunk:
        yield chunk
