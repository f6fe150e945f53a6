"""Publishes to partitions that another node leads: sent there, in order, and sent again while nothing was stored.

Each partition has a lane. While its leader is known, batches leave at once and many are under way; while there
is none, they wait in the lane, in order. A batch that was refused takes its place again, and nothing is sent until
what else is under way to the same node has come back: others that are refused take their places as well, and a batch
that comes meanwhile does not overtake them. The node that refused is asked again after a pause, which grows, and with
one batch until it takes something; another node that leads is asked at once. A batch whose fate is not known, because
the leader was lost, is sent again only if its messages have ids: the leader recognises those. A batch whose future
is cancelled is not sent any more, nor again.

A node that is being taken out hears nothing any more of groups it is out of, and who leads them now. What is published
through it is offered to one of the others after the other, until somebody takes it, or until this node is told.

That leaves what a lane cannot help: a leader that refuses a batch may take the next one, which is under way already.
Who needs their order to hold through that has one batch under way at a time, as the client has, and as a text
connection has that publishes with ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast.backends.cluster.replica import Replica, still_leads
from holdfast.backends.cluster.requests import Method, PublishReply, PublishRequest, encode
from holdfast.broker.results import refuse, stored_behind
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import (
    HoldfastError,
    LeaderChanged,
    NotLeader,
    OutcomeUnknown,
    ShuttingDown,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import FORWARDED_BYTES_MAX, FORWARDED_BYTES_PER_PARTITION_MAX
from holdfast.model.messages import BatchPublished

# So long a publish waits for a leader before it is refused.
PATIENCE_S: Final = 5.0
# A leader that has a batch answers sooner than this, or is as good as lost.
_REPLY_S: Final = 10.0
_PAUSE_S: Final = 0.01
# The longest pause before a node that refused a batch is asked again.
_PAUSE_S_MAX: Final = 0.2
# Fewer than a link takes at once; the others wait their turn.
_UNDER_WAY_MAX: Final = 256

_decode_reply = msgspec.msgpack.Decoder(PublishReply).decode


class Peers(Protocol):
    def is_up(self, node: str) -> bool: ...

    async def request(
        self, node: str, method: int, body: bytes, timeout_s: float, leads: Callable[[], bool] | None = None
    ) -> memoryview: ...


PublishHere = Callable[[PartitionId, bytearray], asyncio.Future[BatchPublished]]


class Held:
    """How many bytes the lanes of a node hold together."""

    def __init__(self) -> None:
        self.bytes = 0


class _Item(NamedTuple):
    number: int
    batch: bytearray
    has_ids: bool
    deadline: float
    published: asyncio.Future[BatchPublished]
    # Where the partition ended, as far as this node knew, when the batch came.
    end: Offset
    # Whether a leader that was lost may have stored it.
    may_be_stored: bool = False


class Lane:
    """What one node publishes to one partition that it does not lead."""

    def __init__(
        self,
        partition: PartitionId,
        replica: Replica,
        peers: Peers,
        publish_here: PublishHere,
        no_quorum: Callable[[Replica], HoldfastError],
        leaves: Callable[[], bool] = lambda: False,
        all_held: Held | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._partition = partition
        self._patience_s = patience_s
        self._replica = replica
        self._peers = peers
        self._publish_here = publish_here
        self._no_quorum = no_quorum
        # Whether this node is being taken out of the cluster.
        self._leaves = leaves
        self._refusals = 0
        # Why nothing is sent any more.
        self._ended: HoldfastError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Item] = []
        # With the node that has it; none is this one.
        self._under_way: dict[asyncio.Task[None], tuple[_Item, str]] = {}
        # The node that refused something, while it still has others.
        self._refused_by: str | None = None
        # When a node that refused may be asked again, and the pause that led there.
        self._pauses: dict[str, tuple[float, float]] = {}
        # The bytes of each batch that is held, by its number.
        self._sizes: dict[int, int] = {}
        self._held, self._all_held = Held(), all_held or Held()
        self._next_number = 0
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._under_way

    def forward(self, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        """Have the leader store it. Raises `Unavailable` where too much waits already."""
        if self._held.bytes + len(batch) > FORWARDED_BYTES_PER_PARTITION_MAX:
            raise Unavailable(f"too much waits for the leader of {self._partition}; try again in a moment")
        if self._all_held.bytes + len(batch) > FORWARDED_BYTES_MAX:
            raise Unavailable("too much waits on this node for the leaders of its partitions; try again in a moment")
        published: asyncio.Future[BatchPublished] = self._loop.create_future()
        self._next_number += 1
        self._hold(self._next_number, len(batch))
        deadline = self._loop.time() + self._patience_s
        self._waiting.append(_Item(self._next_number, batch, has_ids, deadline, published, self._replica.end))
        if self._pump is None:
            self._send_waiting()
            if self._waiting:
                self._pump = self._loop.create_task(self._pump_on())
        return published

    def _arrived(self, task: asyncio.Task[None]) -> None:
        item, _ = self._under_way.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(item, LeaderChanged(f"this may be stored or not: {error!r}"))
        if self._refused_by is not None and all(node != self._refused_by for _, node in self._under_way.values()):
            self._refused_by = None
        if self._waiting:
            self._send_waiting()

    def close(self, error: HoldfastError) -> None:
        """Nobody waits any longer; what is under way may arrive all the same."""
        if self._pump is not None:
            self._pump.cancel()
        for task, (item, _) in list(self._under_way.items()):
            task.cancel()
            self._refuse_finally(item._replace(may_be_stored=True), error)
        for item in self._waiting:
            self._refuse_finally(item, error)
        self._waiting.clear()

    def end(self, error: HoldfastError) -> None:
        """Send nothing any more. What waits was not stored; of what is under way, the answers tell."""
        self._ended = error
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self._refuse_finally(item, error)

    async def _pump_on(self) -> None:
        """Try again every few milliseconds until nothing waits."""
        while self._waiting:
            await asyncio.sleep(_PAUSE_S)
            self._send_waiting()
            self._give_up()
        self._pump = None

    def _give_up(self) -> None:
        """Refuse what has waited for too long, and drop what the publisher has cancelled."""
        now = self._loop.time()
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if item.published.cancelled():
                self._release(item)
            elif item.deadline < now:
                self._refuse_finally(item, self._no_quorum(self._replica))
            else:
                self._waiting.append(item)

    def _refuse_finally(self, item: _Item, error: HoldfastError) -> None:
        if item.may_be_stored and not isinstance(error, OutcomeUnknown):
            # The error is about the last try only.
            error = LeaderChanged(f"this may be stored or not: {error.message}; send it again with its id")
        self._fail(item, error)

    def _send_waiting(self) -> None:
        if self._refused_by is not None:
            return
        leader = self._whom_to_ask()
        is_here = self._replica.leads
        if not is_here and (leader is None or leader == self._replica.node or not self._peers.is_up(leader)):
            return
        node = "" if is_here else leader or ""
        not_before, pause_s = self._pauses.get(node, (0.0, 0.0))
        if self._loop.time() < not_before:
            return
        if pause_s:
            # It has refused, so one batch tests whether it takes them now.
            room = 0 if any(asked == node for _, asked in self._under_way.values()) else 1
        else:
            room = max(0, _UNDER_WAY_MAX - len(self._under_way))
        for item in self._taken(room):
            task = self._loop.create_task(self._store_here(item) if is_here else self._send(item, node))
            self._under_way[task] = item, node
            task.add_done_callback(self._arrived)

    def _taken(self, room: int) -> list[_Item]:
        """The first that wait. What the publisher cancelled is kept somewhere else and would overtake others there."""
        taken: list[_Item] = []
        looked_at = 0
        while len(taken) < room and looked_at < len(self._waiting):
            item = self._waiting[looked_at]
            looked_at += 1
            if item.published.cancelled():
                self._release(item)
            else:
                taken.append(item)
        del self._waiting[:looked_at]
        return taken

    def _whom_to_ask(self) -> str | None:
        leader = self._replica.leader_node
        if not self._leaves():
            return leader
        voters = {node_of(voter) for voter in self._replica.raft.members.voters}
        others = sorted(voters - {self._replica.node}, key=lambda node: (node != leader, node))
        there = [node for node in others if self._peers.is_up(node)]
        return there[self._refusals % len(there)] if there else None

    async def _store_here(self, item: _Item) -> None:
        """This node has become the leader meanwhile."""
        try:
            published = await self._publish_here(self._partition, bytearray(item.batch))
        except HoldfastError as error:
            self._settle_error(item, "", error)
        else:
            self._done(item, published)

    async def _send(self, item: _Item, leader: str) -> None:
        request = PublishRequest(self._partition.topic, self._partition.number, item.batch)  # type: ignore[arg-type]
        try:
            # A node that is being taken out does not hear who leads.
            leads = None if self._leaves() else still_leads(leader, self._replica)
            body = await self._peers.request(leader, Method.PUBLISH, encode(request), _REPLY_S, leads)
        except HoldfastError as error:
            # Plain `Unavailable` is the link's: it was lost, and with it the answer.
            lost = type(error) is Unavailable
            self._settle_error(item, leader, LeaderChanged(f"{leader} was lost before it answered") if lost else error)
            return
        reply = _decode_reply(body)
        offsets = None if reply.offsets is None else [Offset(offset) for offset in reply.offsets]
        self._done(
            item,
            BatchPublished(
                partition=self._partition.number,
                base_offset=Offset(reply.base_offset),
                count=reply.count,
                duplicates=reply.duplicates,
                offsets=offsets,
            ),
        )

    def _settle_error(self, item: _Item, node: str, error: HoldfastError) -> None:
        nothing_stored = isinstance(error, NotLeader | ShuttingDown)
        if nothing_stored or (item.has_ids and isinstance(error, LeaderChanged)):
            item = item._replace(may_be_stored=item.may_be_stored or not nothing_stored)
            if self._refused_by is None:
                # Once for all that were under way to one node: the next one is asked then, and not one further on.
                self._refusals += 1
            if self._ended is not None:
                self._refuse_finally(item, self._ended)
                return
            self._waiting.append(item)
            self._waiting.sort(key=lambda waiting: waiting.number)
            if self._refused_by != node:
                self._pause(node)
            self._refused_by = node
            if self._pump is None:
                self._pump = self._loop.create_task(self._pump_on())
        else:
            self._pauses.clear()
            self._refuse_finally(item, error)

    def _pause(self, node: str) -> None:
        """Do not ask `node` again at once: it refuses as long as it is no settled leader."""
        _, pause_s = self._pauses.get(node, (0.0, 0.0))
        pause_s = min(_PAUSE_S_MAX, 2 * pause_s or _PAUSE_S)
        self._pauses[node] = self._loop.time() + pause_s, pause_s

    def _hold(self, number: int, size: int) -> None:
        self._sizes[number] = size
        self._held.bytes += size
        self._all_held.bytes += size

    def _release(self, item: _Item) -> None:
        size = self._sizes.pop(item.number, 0)
        self._held.bytes -= size
        self._all_held.bytes -= size

    def _done(self, item: _Item, published: BatchPublished) -> None:
        self._pauses.clear()
        self._release(item)
        if item.may_be_stored:
            published = stored_behind(published, item.end)
        if not item.published.done():
            item.published.set_result(published)

    def _fail(self, item: _Item, error: HoldfastError) -> None:
        self._release(item)
        refuse(item.published, error)


class Lanes:
    """The lanes of all partitions that this node has published to without leading them."""

    def __init__(self, peers: Peers, no_quorum: Callable[[Replica], HoldfastError], leaves: Callable[[], bool]) -> None:
        self._peers = peers
        self._no_quorum = no_quorum
        self._leaves = leaves
        self._lanes: dict[PartitionId, Lane] = {}
        self._held = Held()
        self.publish_here: PublishHere | None = None

    def is_empty(self, partition: PartitionId) -> bool:
        """Whether nothing waits that a new publish would overtake."""
        lane = self._lanes.get(partition)
        return lane is None or lane.is_empty

    def forward(
        self, partition: PartitionId, replica: Replica, batch: bytearray, *, has_ids: bool
    ) -> asyncio.Future[BatchPublished]:
        lane = self._lanes.get(partition)
        if lane is None:
            assert self.publish_here is not None, "the broker says first how it publishes"
            lane = Lane(partition, replica, self._peers, self.publish_here, self._no_quorum, self._leaves, self._held)
            self._lanes[partition] = lane
        return lane.forward(batch, has_ids=has_ids)

    def forget_topic(self, name: TopicName) -> None:
        for partition in [partition for partition in self._lanes if partition.topic == name]:
            self._lanes.pop(partition).close(TopicNotFound(f"topic {name} was deleted"))

    def end(self, error: HoldfastError) -> None:
        """This node has no leaders to send anything to any more."""
        for lane in self._lanes.values():
            lane.end(error)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close(ShuttingDown("the broker is shutting down"))
        self._lanes.clear()
