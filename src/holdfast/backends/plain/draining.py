"""From the journal into the topics: what is committed becomes visible, and nothing else ever does.

Readers, subscribers, processors and dedupe windows see topics only. So nobody is shown, and no repeated id is answered
from, a message that the backup may not have.

Each message that is put into a topic has a header with the reign in which that was done and its place in the journal
(`holdfast-place: 3.5f0c….70`). Both rise within a topic. After a crash the last one tells what is in it already,
exactly, however long ago the crash was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from holdfast.backends.plain.journal import Entry, Journal
from holdfast.broker.backend import Backend
from holdfast.broker.results import refuse
from holdfast.consensus.plain_standing import NO_REIGN, Reign
from holdfast.model.errors import HoldfastError, LeaderChanged, TopicExists
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import Header, NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.wire import batch_builder, record_batch

log = structlog.get_logger("holdfast.pair")

PLACE_HEADER: Final = "holdfast-place"
# One turn: what is appended together is synced together.
_TURN_ENTRIES_MAX: Final = 2000
_READ_BYTES: Final = 1024 * 1024
_AGAIN_S: Final = 0.25

Place = tuple[Reign, int]
_NOWHERE: Final[Place] = (NO_REIGN, -1)


class Waiting(NamedTuple):
    """A publish whose entries are in the journal from `first` up to `behind`."""

    first: int
    behind: int
    partition: PartitionId
    messages: list[NewMessage]
    timestamp_ms: TimestampMs
    promise: asyncio.Future[Offset]


class Draining:
    """Puts entries into topics in their order, as far as it is told to."""

    def __init__(self, backend: Backend, journal: Journal, drained: int, on_drained: Callable[[], None]) -> None:
        self._backend = backend
        self._journal = journal
        self._on_drained = on_drained
        # Everything below is in its topic.
        self.drained = max(drained, journal.start)
        self._reign = NO_REIGN
        self._limit = self.drained
        self._waiting: deque[Waiting] = deque()
        self._skips: Callable[[int], bool] = lambda position: False
        # The place of the last message of each topic.
        self._last: dict[TopicName, Place] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        backend.watch_deletions(self._forget)

    # --- of a primary ---------------------------------------------------------------------------------

    def start(self, reign: Reign, skips: Callable[[int], bool], on_done: Callable[[asyncio.Task[None]], None]) -> None:
        """From now on, in this reign; `skips` says which entries are in their topics already, out of the row."""
        assert self._task is None
        self._reign = reign
        self._skips = skips
        self._last.clear()
        self._limit = self.drained
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(on_done)

    async def stop(self, error: HoldfastError) -> None:
        """Nothing more goes into the topics, and nobody knows what becomes of what waits."""
        self.fail(error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        self._waiting.clear()

    def fail(self, error: HoldfastError) -> bool:
        """Nobody waits for what is in the journal any more; whether somebody did."""
        failed = [each for each in self._waiting if not each.promise.done()]
        for each in failed:
            refuse(each.promise, error)
        return bool(failed)

    def wait_for(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def drain_to(self, position: int) -> None:
        """Everything below is committed."""
        if position > self._limit:
            self._limit = position
            self._work.set()

    async def _run(self) -> None:
        while True:
            self._work.clear()
            while self.drained < self._limit:
                turn = self._next_turn()
                if not turn:
                    break
                try:
                    await self._put(turn)
                except HoldfastError as error:
                    # In the journal it is safe; what of it reached the topics is looked up again. There may be no room
                    # for another topic: somebody can delete one as long as this process lives.
                    log.warning("cannot_drain", problem=error.message, hint="it is tried again")
                    self._last.clear()
                    await asyncio.sleep(_AGAIN_S)
                    continue
                self.drained = turn[-1].behind
                while self._waiting and self._waiting[0].behind <= self.drained:
                    self._waiting.popleft()
                self._on_drained()
            await self._work.wait()

    def _next_turn(self) -> list[Waiting]:
        """Publishes that are at hand, or else what the journal has before them."""
        turn: list[Waiting] = []
        entries = 0
        position = self.drained
        for each in self._waiting:
            if each.first != position or each.behind > self._limit or entries >= _TURN_ENTRIES_MAX:
                break
            turn.append(each)
            entries += len(each.messages)
            position = each.behind
        if turn:
            return turn
        end = min(self._limit, self._waiting[0].first if self._waiting else self._limit)
        return [waiting_of(entry) for entry in self._journal.read(position, _READ_BYTES, end)]

    async def _put(self, turn: Sequence[Waiting]) -> None:
        appended: list[tuple[Waiting, asyncio.Future[Offset]]] = []
        try:
            for each in turn:
                topic = each.partition.topic
                last = await self._last_place(topic)
                if last is None:
                    await self._create(topic)
                    last = _NOWHERE
                if self._skips(each.first) or (self._reign, each.first) <= last:
                    refuse(
                        each.promise, LeaderChanged("it is stored, but its place was lost; send it again, with its id")
                    )
                    continue
                future = self._backend.append(each.partition, _tagged(each, self._reign))
                self._last[topic] = (self._reign, each.behind - 1)
                appended.append((each, future))
        finally:
            if appended:
                await asyncio.wait([future for _, future in appended])
        for each, future in appended:
            base = future.result()
            if not each.promise.done():
                each.promise.set_result(base)

    # --- of a backup ----------------------------------------------------------------------------------

    async def put_delivered(self, entries: Sequence[Entry], reign: Reign) -> None:
        """Entries that were delivered elsewhere: they are history here, for readers and for ids that come again."""
        self._reign, self._skips = reign, lambda position: False
        try:
            await self._put([waiting_of(entry) for entry in entries])
        except HoldfastError:
            self._last.clear()
            raise

    # --- topics ---------------------------------------------------------------------------------------

    def has_topic(self, topic: TopicName) -> bool:
        return self._backend.topic(topic) is not None

    def _forget(self, topic: TopicName) -> None:
        self._last.pop(topic, None)

    async def _last_place(self, topic: TopicName) -> Place | None:
        """The place of the last message of a topic; `None` if there is no such topic."""
        if self._backend.topic(topic) is None:
            self._last.pop(topic, None)
            return None
        if topic not in self._last:
            self._last[topic] = await last_place(self._backend, topic)
        return self._last[topic]

    async def _create(self, topic: TopicName) -> None:
        with contextlib.suppress(TopicExists):
            await self._backend.create_topic(topic, TopicConfig())


def _tagged(waiting: Waiting, reign: Reign) -> bytearray:
    """One batch: after a crash either all of it is in its topic, or nothing."""
    messages = []
    for position, message in enumerate(waiting.messages, waiting.first):
        place: Header = (PLACE_HEADER, b"%d.%b.%d" % (reign.epoch, reign.owner.encode(), position))
        # A dead letter has the headers of the message that it was, whose place is another one.
        headers = [header for header in message.headers if header[0] != PLACE_HEADER]
        messages.append(NewMessage(value=message.value, id=message.id, headers=[*headers, place]))
    return batch_builder.build_batch(messages, waiting.timestamp_ms)


def waiting_of(entry: Entry) -> Waiting:
    """An entry nobody waits for."""
    promise: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
    message = NewMessage(value=entry.value, id=entry.message_id)
    partition = PartitionId(entry.topic, 0)
    return Waiting(entry.position, entry.position + 1, partition, [message], entry.timestamp_ms, promise)


async def last_place(backend: Backend, topic: TopicName) -> Place:
    """Where the last message of a topic stood in the journal; before everything if it never did."""
    partition = PartitionId(topic, 0)
    end = backend.end_offset(partition)
    if end <= backend.start_offset(partition):
        return _NOWHERE
    place: Place | None = None
    for batch in await backend.read(partition, Offset(end - 1), 1):
        for record in record_batch.decode_records(batch):
            place = place_of(record.headers)
    return place or _NOWHERE


def place_of(headers: Sequence[Header]) -> Place | None:
    for name, value in headers:
        if name == PLACE_HEADER:
            epoch, owner, position = [*value.split(b"."), b"", b""][:3]
            if epoch.isdigit() and position.isdigit():
                return Reign(int(epoch), owner.decode("ascii", "replace")), int(position)
    return None
