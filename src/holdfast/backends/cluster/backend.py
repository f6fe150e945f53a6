"""The cluster backend: every partition is a Raft group, and its Raft log is the partition's log.

A node without peers is a cluster of one: the same code and the same files, with nobody to ask. The parts: `groups`
does what the consensus of each group says, `control` applies what the nodes have agreed on (topics, cursors,
nodes), `forwarding` brings publishes to leaders elsewhere, `confirming` makes reads current, `upkeep` spreads
leaders and lets newcomers in. This class keeps the promises of `broker.backend.Backend` with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster import removal, retention, status
from holdfast.backends.cluster.appending import Appending
from holdfast.backends.cluster.clocks import Clocks
from holdfast.backends.cluster.commands import Command, Outcome
from holdfast.backends.cluster.configurations import known_at_start
from holdfast.backends.cluster.confirming import Confirming
from holdfast.backends.cluster.control import CONTROL, Control
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.cursor_calls import CursorCalls
from holdfast.backends.cluster.expired_ids import ExpiredIds
from holdfast.backends.cluster.forwarding import Lanes, PublishHere
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.joining import Joining
from holdfast.backends.cluster.log_shapes import shape_of
from holdfast.backends.cluster.mending import Mending
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.opening import Opening
from holdfast.backends.cluster.operating import Operating
from holdfast.backends.cluster.pace import USUAL_PACE, Pace
from holdfast.backends.cluster.pairing import Pairing
from holdfast.backends.cluster.proposals import Proposals
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.retention import Retention, voters_of
from holdfast.backends.cluster.serving import Serving
from holdfast.backends.cluster.shrinking import Shrinking
from holdfast.backends.cluster.sync_policy import SyncPolicy
from holdfast.backends.cluster.topic_changes import TopicChanges
from holdfast.backends.cluster.topic_files import TopicFiles
from holdfast.backends.cluster.topics import Topics
from holdfast.backends.cluster.upkeep import Upkeep
from holdfast.broker.backend import NothingVoid, Unwatch
from holdfast.consensus.partner import PairSettings
from holdfast.consensus.replica_names import replica_id
from holdfast.consensus.timing import DEFAULT_ELECTIONS, ElectionSettings
from holdfast.model.errors import (
    DamagedData,
    DiskFull,
    HoldfastError,
    NoQuorum,
    OutcomeUnknown,
    ReadFailed,
    ShuttingDown,
    StorageFailed,
)
from holdfast.model.ids import LogIndex, Offset, PartitionId, Term, TimestampMs, TopicName
from holdfast.model.limits import DEDUPE_AGE_MS_MAX, DEDUPE_IDS_MAX, PARTITIONS_MAX, SEGMENT_BYTES_DEFAULT
from holdfast.model.member_errors import NodeRemoved
from holdfast.model.messages import BatchPublished, StoredId
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig
from holdfast.model.waiting import NOBODY, RetentionWait
from holdfast.storage.directory import DataDirectory
from holdfast.wire.push_batch import PushedBatch

log = structlog.get_logger("holdfast.cluster")

# A node that starts waits so long for what it missed before it serves what it has.
_CATCH_UP_S: Final = 3.0
_HAND_OVER_S: Final = 1.0


class ClusterBackend(Operating, CursorCalls, NothingVoid):
    """Keeps the promises of `broker.backend.Backend` together with the nodes it knows."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        sync: SyncPolicy,
        now_ms: Callable[[], TimestampMs],
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        default_retention: TopicConfig | None = None,
        retention_wait: RetentionWait = NOBODY,
        partitions_max: int = PARTITIONS_MAX,
        dedupe_ids_max: int = DEDUPE_IDS_MAX,
        dedupe_age_ms_max: int = DEDUPE_AGE_MS_MAX,
        listen: tuple[str, int] | None = None,
        peers: Mapping[str, str] | None = None,
        pair: PairSettings | None = None,
        join: str | None = None,
        elections: ElectionSettings = DEFAULT_ELECTIONS,
        pace: Pace = USUAL_PACE,
        on_fatal: Callable[[HoldfastError], None] = lambda error: None,
        on_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self.neighbours = Neighbours(
            directory, listen=listen, peers=peers or {}, pair=pair, join=join, elections=elections, pace=pace
        )
        self.neighbours.on_replaced = on_replaced
        self.neighbours.on_too_old = self._fail
        self._pair = pair
        self._pace = pace
        self.pairing: Pairing | None = None
        self._directory = directory
        self.sync_policy = sync
        self._now_ms = now_ms
        self._files = TopicFiles(directory, segment_bytes, now_ms)
        self._partitions_max = partitions_max
        self._default_retention = default_retention or TopicConfig()
        self.retention_wait = retention_wait
        self._expired_ids = ExpiredIds(ids_max=dedupe_ids_max, age_ms_max=dedupe_age_ms_max)
        self._on_fatal = on_fatal
        self._failure: HoldfastError | None = None
        self.forwarded_batches = 0
        self.groups: Groups
        self.topics_here: Topics
        self.control: Control
        self.upkeep: Upkeep
        self._proposals: Proposals
        self._changes: TopicChanges
        self._appending: Appending
        self._lanes: Lanes
        self._mending: Mending
        self.clocks: Clocks
        self.retention: Retention
        self._confirming: Confirming
        self.joining: Joining

    @property
    def node_id(self) -> str:
        return self._directory.identity.node

    @property
    def delivers_where_led(self) -> bool:
        return self._pair is not None

    @property
    def sync_rounds(self) -> tuple[int, float]:
        """How many there were, and the seconds they took."""
        return self.groups.syncer.rounds, self.groups.syncer.seconds

    def problem(self) -> str | None:
        if self._failure is not None:
            return self._failure.message
        if self._appending.disk_is_full:
            return "the disk is full; make room and publishing goes on"
        if self.neighbours.disagreement is not None:
            return self.neighbours.disagreement
        if not self.control.replica.raft.hears_leader:
            return self.no_quorum(self.control.replica).message
        pairing = self.neighbours.pairing
        return None if pairing is None else pairing.problem(self.control.replica)

    def no_quorum(self, replica: Replica) -> NoQuorum | NodeRemoved:
        """Why a group cannot decide anything, with who is missing."""
        return status.no_quorum(self, replica)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything and make it whole after a crash. Raises `DataDirectoryError`."""
        # Before any other node hears of this one: what is found may make it somebody else.
        removal.begin_again(self._directory, self._now_ms(), joins=self.neighbours.known.join is not None)
        opening = Opening(
            self._directory,
            self._files,
            has_peers=self.neighbours.has_peers,
            is_pair=self._pair is not None,
            now_ms=self._now_ms,
            on_failure=self._fail,
        )
        opened = opening.open()
        self.neighbours.level.raise_to(opened.loaded.level)
        self.neighbours.check_history(has_topics=bool(opened.loaded.topics or opened.loaded.cursors))
        state, shape = opened.hard_states.of(CONTROL), shape_of(opened.control_log)
        await self.neighbours.start(known_at_start(state, shape))
        formation = await self.neighbours.form()
        self.groups = Groups(
            replica_id(self.node_id, self._directory.life),
            transport=self.neighbours,
            hard_states=opened.hard_states,
            sync=self.sync_policy,
            on_failure=self._fail,
            # Each of a pair has terms of its own.
            seat=None if self._pair is None else self.neighbours.names.index(self.node_id),
            term_floor=Term(self._directory.identity.term_floor),
            elections=self.neighbours.elections,
        )
        self.topics_here = Topics(self._files, self.groups, formation.members, is_up=self.neighbours.is_up)
        self.topics_here.leaving = opened.leaving
        control_replica = self.groups.add(CONTROL, "the control log", opened.control_log, formation.members)
        raft, level = control_replica.raft, self.neighbours.level
        self._proposals = Proposals(
            self._decide, lambda: self.no_quorum(control_replica), lambda each: level.refusal(each, self.state.nodes)
        )
        self.state = ControlState(
            self.topics_here, self._proposals.propose, self._proposals.propose_draw, opened.loaded, raft, level
        )
        for topic in opened.loaded.topics.values():
            self.topics_here.add(topic, opened.logs.get(topic.name))
        self.control = Control(control_replica, opened.store, opened.loaded.applied, self.state.apply, self._fail)
        self._changes = TopicChanges(
            self._directory,
            self.topics_here,
            propose=self._proposals.propose,
            now_ms=self._now_ms,
            default_retention=self._default_retention,
            partitions_max=self._partitions_max,
        )
        self._lanes = Lanes(self.neighbours, self.no_quorum, self.leaves)
        self.watch_deletions(self._lanes.forget_topic)
        self.clocks = Clocks(self.node_id, self.neighbours, self._now_ms)
        self.retention = Retention(
            self.topics_here, self.groups, self.neighbours, self.clocks, self._expired_ids, self.cursor
        )
        self._mending = Mending(self.neighbours)
        self.groups.on_damage = self._mending.begin
        self._confirming = Confirming(self.neighbours, self.no_quorum)
        self.upkeep = Upkeep(
            self.groups,
            self.topics_here,
            self.control,
            self.neighbours,
            self.state,
            self._proposals.propose,
            self._now_ms,
            self._confirming.confirm,
            Shrinking(self.neighbours.elections.shrink_after_ms, self.groups, self.control, self.neighbours),
            self._pace,
        )
        self._appending = Appending(self.topics_here, self.upkeep.let_others_lead, self._fail)
        self.serving = Serving(
            self._directory,
            self.groups,
            self.topics_here,
            self.control,
            self.state,
            self._lanes,
            self.neighbours,
            self.retention,
            self._expired_ids,
            now_ms=self._now_ms,
            on_failure=self._fail,
            status=lambda: msgspec.json.encode(status.of_node(self)),
        )
        self.take_calls()
        self.joining = Joining(self.neighbours, control_replica)
        if self._pair is not None:
            self.pairing = self.neighbours.pairing = Pairing(self._pair, self.groups, self.neighbours)
            self.topics_here.favours = lambda: self.control.replica.leader_node
            self.groups.on_replaced = self.pairing.meets_another_leader
            self.pairing.start()
        self.neighbours.attach(self.serving)
        self.groups.start()
        self.joining.start()
        self.control.start()
        await self._begin(is_incomplete=opened.loaded.is_incomplete)
        self.upkeep.start()
        self._directory.keep_reserve()
        if self.sync_policy.gives_up:
            log.warning("weaker_than_group_sync", sync=str(self.sync_policy), gives_up=self.sync_policy.gives_up)

    async def _begin(self, *, is_incomplete: bool) -> None:
        """Be where the others are, or, alone, where this node was, before anybody is served."""
        control = self.control
        if self.pairing is not None:
            self.groups.elect_without_others()
            self.pairing.go_on_as_before()
        votes_alone = self._pair is None and control.replica.votes_alone
        if self._asks_others(control.replica) and (not votes_alone or self.neighbours.is_outvoted):
            with contextlib.suppress(NoQuorum):
                index = await self._confirming.confirm(control.replica, _CATCH_UP_S)
                await control.wait_until_applied(index)
            return
        self.groups.elect_without_others()
        await control.wait_until_applied(control.replica.raft.commit)
        await self.upkeep.raise_alone(is_incomplete=is_incomplete)
        for topic in self._files.unknown(set(self.topics_here.known), state_is_incomplete=is_incomplete):
            await self._proposals.propose(self._changes.creation(topic))
        await self.state.bring_cursors_back(self.end_offset)

    async def stop(self) -> None:
        """Sync and close everything."""
        stopped = ShuttingDown("the broker stopped before this was known to be stored")
        await self.joining.stop()
        await self.upkeep.stop()
        if self.pairing is not None:
            await self.pairing.stop()
        await self._mending.stop()
        self._lanes.close()
        self._confirming.close()
        self.clocks.close()
        await self._proposals.stop()
        await self.neighbours.stop()
        await self.serving.stop()
        await self.control.stop()
        self.topics_here.close()
        await self.groups.stop()
        await self.control.close_store()
        for replica in self.groups.replicas.values():
            replica.close(stopped)
        self.groups.close()
        self._directory.close()

    async def hand_over(self) -> None:
        """Let others lead what this node leads: nobody has to wait for an election when it leaves."""
        await self.upkeep.hand_over(_HAND_OVER_S)

    # --- the control log ----------------------------------------------------------------------------

    async def _decide(self, commands: list[Command]) -> list[Outcome]:
        """Have commands decided by whoever leads the control group; what is decided shows here before it is told."""
        if self._failure is not None:
            raise self._failure
        if self.control.replica.leads:
            try:
                decision = await self.control.decide(commands)
            except DiskFull:
                self.upkeep.let_others_lead(self.control.replica)
                raise
        else:
            decision = await self.neighbours.propose(self.control.replica, commands)
        await self.control.wait_until_applied(LogIndex(decision.index))
        return decision.outcomes

    # --- messages ---------------------------------------------------------------------------------

    def leads(self, partition: PartitionId) -> bool:
        replica = self.topics_here.replicas.get(partition)
        return replica is not None and replica.leads

    def has_waiting(self, partition: PartitionId) -> bool:
        return not self._lanes.is_empty(partition)

    def reign(self, partition: PartitionId) -> int | None:
        replica = self.topics_here.replicas.get(partition)
        return None if replica is None else replica.reign

    def watch_deletions(self, on_deleted: Callable[[TopicName], None]) -> None:
        self.topics_here.deletion_watchers.append(on_deleted)

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool = False) -> None:
        self.topics_here.watch_reigns(on_change, of_internal=of_internal)

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        self._check_takes(partition)
        return self._appending.append(partition, batch)

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        self._check_takes(partition)
        return self._appending.append_all(partition, batches)

    def _check_takes(self, partition: PartitionId) -> None:
        if self._failure is not None:
            raise self._failure
        if self.pairing is not None:
            self.pairing.check_backup(self.topics_here.found(partition))

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        if self._failure is not None:
            raise self._failure
        # As plain bytes: nodes send each other those, and not the columns that a push carries along.
        plain = bytearray(batch) if isinstance(batch, PushedBatch) else batch
        forwarded = self._lanes.forward(partition, self.topics_here.found(partition), plain, has_ids=has_ids)
        self.forwarded_batches += 1
        return forwarded

    def publish_with(self, publish_here: PublishHere) -> None:
        self._lanes.publish_here = publish_here

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        self.check_belongs()
        replica = self.topics_here.found(partition)
        if offset > replica.end:
            # It may be there, and only not here yet.
            await self.catch_up(partition)
        try:
            return await replica.read(offset, bytes_max)
        except DamagedData as damage:
            if replica.is_alone:
                raise
            if not await self._mending.mend(replica):
                raise ReadFailed(f"{damage.message}; the other nodes cannot be asked now, try again later") from damage
        try:
            return await replica.read(offset, bytes_max)
        except DamagedData as damage:
            # The end of the newest file is mended once there is more behind it. Nobody may pass over it until then.
            raise ReadFailed(f"{damage.message}; it is not mended yet, try again later") from damage

    async def catch_up(self, partition: PartitionId) -> None:
        self.check_belongs()
        replica = self.topics_here.found(partition)
        if self._asks_others(replica):
            await self._confirming.confirm(replica)

    def _asks_others(self, replica: Replica) -> bool:
        """Whether there is somebody else who may have more of a group."""
        return not replica.is_alone or self.neighbours.is_outvoted

    def staleness_ms(self, partition: PartitionId) -> int:
        return self.groups.staleness_ms(self.topics_here.found(partition))

    def is_current(self, partition: PartitionId) -> bool:
        replica = self.topics_here.replicas.get(partition)
        return replica is not None and (not self._asks_others(replica) or replica.is_current)

    def start_offset(self, partition: PartitionId) -> Offset:
        return self.topics_here.found(partition).log.start_offset

    def end_offset(self, partition: PartitionId) -> Offset:
        replica = self.topics_here.replicas.get(partition)
        return replica.end if replica is not None else Offset(0)

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        replica = self.topics_here.found(partition)
        # What is damaged here the others have: `read` mends it, so nobody may pass over it.
        return replica.log.next_readable(offset) if replica.is_alone else max(offset, replica.log.start_offset)

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        replica = self.topics_here.found(partition)
        return min(replica.log.first_at_or_after(timestamp_ms), replica.end)

    async def time_ms(self, partition: PartitionId) -> TimestampMs:
        replica = self.topics_here.found(partition)
        time_ms = await self.clocks.agreed_ms(lambda: voters_of(replica))
        if time_ms is None:
            raise self.no_quorum(replica)
        return time_ms

    async def expired_ids(self, partition: PartitionId, start: Offset) -> Sequence[StoredId]:
        return await self._expired_ids.of(self.topics_here.found(partition), start)

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        return self.topics_here.found(partition).audience.watch(on_commit)

    def describe_partition(self, partition: PartitionId) -> PartitionDescription:
        return status.of_partition(partition.number, self.topics_here.replicas.get(partition))

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        return self.topics_here.known.get(name)

    def topics(self) -> Sequence[Topic]:
        return list(self.topics_here.known.values())

    @property
    def partitions_left(self) -> int:
        return self._partitions_max - len(self.topics_here.replicas)

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        self.topics_here.watch(on_topic)

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        if self._failure is not None:
            raise self._failure
        # A topic of this name may be decided and not known here yet: what stands in its directory is not a leftover.
        await self._catch_up()
        return await self._changes.create(name, config, maker)

    async def delete_topic(self, name: TopicName) -> None:
        await self._changes.delete(name)

    # --- cursors ----------------------------------------------------------------------------------

    async def catch_up_cursors(self) -> None:
        self.check_belongs()
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Everything that was decided before this shows here. Raises `NoQuorum`."""
        if self._asks_others(self.control.replica):
            await self.control.wait_until_applied(await self._confirming.confirm(self.control.replica))

    # --- upkeep -----------------------------------------------------------------------------------

    async def expire(self) -> int:
        """Delete what retention no longer keeps where this node leads; returns the number of segments."""
        return await self.retention.expire(self.retention_wait)

    async def verify(self) -> None:
        """Check sealed segments in the background: damage is reported, and mended, before somebody reads it."""
        for replica in await retention.verify(self.topics_here):
            await self._mending.mend(replica)

    def _fail(self, error: HoldfastError) -> None:
        """Stop acknowledging until a restart. Said once; the first reason is the one that counts."""
        if self._failure is not None:
            return
        self._failure = error
        log.critical(type(error).code, problem=error.message)
        if hasattr(self, "groups"):
            unknown = error if isinstance(error, OutcomeUnknown) else StorageFailed(error.message)
            for replica in self.groups.replicas.values():
                replica.audience.refuse_appends(unknown)
        if self.neighbours.has_peers:
            # Others can serve: a node that cannot keep what it promises is better gone.
            self._on_fatal(error)
