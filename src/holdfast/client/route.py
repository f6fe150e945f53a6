"""Which partition of a topic a message goes to, and the lanes that lead there.

The partition is chosen once, before the first try: a resend must reach the partition that may already
have the message, because that is where its id is known. A key picks the partition, else the user's id
does, else whole batches take turns.

Until the number of a topic's partitions is known, publishes wait in the order they were made and are
handed to their lanes in that order, in one go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from zlib import crc32

from holdfast.client.api import Api
from holdfast.client.encoding import IdMaker
from holdfast.client.errors import another
from holdfast.client.lane import Lane
from holdfast.model.errors import HoldfastError, RemoteError
from holdfast.model.ids import PartitionId, TopicName


class Route:
    """What is known of one topic's partitions."""

    def __init__(self, api: Api, ids: IdMaker, topic: TopicName) -> None:
        self.partitions = 1
        # The store is away, and the broker does not know how the topic is divided. It chooses the partition of each
        # message when it stores it, whatever partition it was sent to. A resend might reach another partition, which
        # does not know its id.
        self.is_assumed = False
        self._known = False
        self._api = api
        self._ids = ids
        self._topic = topic
        self._lanes: dict[int, Lane] = {}
        self._turn = -1
        self._waiting: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._finding_out: asyncio.Task[None] | None = None

    async def submit(self, hand_over: Callable[[], None]) -> None:
        """Run `hand_over` now, or once the partitions are known, behind all that came before it."""
        if self._known:
            hand_over()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((hand_over, turn))
        if self._finding_out is None:
            self._finding_out = asyncio.create_task(self._find_out(), name=f"partitions of {self._topic}")
        await turn

    def lane(self, partition: int) -> Lane:
        if partition not in self._lanes:
            self._lanes[partition] = Lane(self._api, self._ids, PartitionId(self._topic, partition))
        return self._lanes[partition]

    def partition_of(self, key: bytes | None, id: str | None) -> int | None:
        """The partition that a key or a user's id asks for; `None` if there is neither."""
        if key is not None:
            return crc32(key) % self.partitions
        if id is not None:
            return crc32(id.encode()) % self.partitions
        return None

    def next_turn(self) -> int:
        self._turn = (self._turn + 1) % self.partitions
        return self._turn

    def gathering_turn(self) -> int:
        """The partition whose turn it is; it stays so while publishes are still gathering for it."""
        current = self._lanes.get(self._turn)
        return self._turn if current is not None and current.gathering else self.next_turn()

    def forget(self) -> None:
        """Ask again before the next publish: the topic is not what it was."""
        self._known = False

    async def drain(self) -> None:
        """Wait until everything that was handed over is answered."""
        if self._finding_out is not None:
            await asyncio.wait((self._finding_out,))
        for lane in list(self._lanes.values()):
            await lane.drain()

    async def _find_out(self) -> None:
        try:
            self.partitions, self._known, self.is_assumed = await self._count()
        except BaseException as error:
            self._refuse_waiting(error)
            if not isinstance(error, HoldfastError):
                raise
            return
        finally:
            self._finding_out = None
        try:
            while self._waiting:
                hand_over, turn = self._waiting[0]
                if not turn.done():
                    hand_over()
                    turn.set_result(None)
                self._waiting.popleft()
        except BaseException as error:
            self._refuse_waiting(error)
            raise

    def _refuse_waiting(self, error: BaseException) -> None:
        while self._waiting:
            _, turn = self._waiting.popleft()
            if turn.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                turn.cancel()
            else:
                turn.set_exception(another(error))

    async def _count(self) -> tuple[int, bool, bool]:
        """How many partitions to count with, whether that is certain, and whether it is only assumed."""
        try:
            topic = await self._api.describe(self._topic)
            return len(topic.partitions), not topic.assumed, topic.assumed
        except RemoteError as error:
            if error.code != "topic_not_found":
                raise
            # The first publish makes the topic, with one partition, or is told that it must be created.
            return 1, False, False
