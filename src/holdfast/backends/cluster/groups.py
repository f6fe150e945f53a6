"""All groups on this node: time, messages and the disk go in, and each group does what follows.

Everything a turn of the event loop brings is gathered: a group that was touched ten times is asked once what
is to be done, what it sends leaves in one frame for each node, and one round of syncs serves all of them.
Groups that sleep cost nothing; what they watch instead is whether the node of their leader is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from random import Random
from typing import Final, Protocol

import structlog

from holdfast.backends.cluster.configurations import Known
from holdfast.backends.cluster.control import CONTROL
from holdfast.backends.cluster.elections import Elections
from holdfast.backends.cluster.hard_states import HardStates
from holdfast.backends.cluster.log_shapes import shape_of
from holdfast.backends.cluster.pacing import CatchUpPace
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.sync_policy import SyncPolicy
from holdfast.broker.results import refuse
from holdfast.consensus.liveness import Liveness
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import Append, HardState, Heartbeat, Install, Message
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of
from holdfast.consensus.roles import Role, Seat
from holdfast.consensus.timing import DEFAULT_ELECTIONS, ElectionSettings
from holdfast.model.errors import DamagedData, HoldfastError, StorageFailed, Unavailable
from holdfast.model.ids import GroupId, LogIndex, Term
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import NotCached
from holdfast.storage.syncer import Syncable, Syncer

log = structlog.get_logger("holdfast.cluster")

# Groups that one turn of the loop elects: a topic may have a thousand.
_AT_ONCE: Final = 50
TICK_S: Final = 0.05


class Transport(Protocol):
    """How messages reach other nodes."""

    def send(self, node: str, group: int, message: Message) -> None: ...

    def is_up(self, node: str) -> bool: ...

    def drop_link(self, node: str, reason: str) -> None:
        """Break the link to a node and make a new one: what the node takes for life here ends for a moment."""
        ...

    @property
    def is_outvoted(self) -> bool:
        """Whether this node takes part in nothing: most others go by other members of the cluster."""
        ...


class Groups:
    """The replicas of one node, and everything they share."""

    def __init__(
        self,
        me: ReplicaId,
        *,
        transport: Transport,
        hard_states: HardStates,
        sync: SyncPolicy,
        on_failure: Callable[[HoldfastError], None],
        seat: Seat | None = None,
        term_floor: Term = Term(0),  # noqa: B008 - a number
        elections: ElectionSettings = DEFAULT_ELECTIONS,
    ) -> None:
        self.me = me
        self._timing = elections.timing(int(TICK_S * 1000))
        self._initial_leader = elections.initial_leader
        self._term_floor = term_floor
        self.replicas: dict[GroupId, Replica] = {}
        self.syncer = Syncer(on_synced=self._on_synced, on_failure=self._on_sync_failure)
        self.pace = CatchUpPace()
        self.longest_tick_gap_s = 0.0
        # Of the control group.
        self.elections = Elections()
        self.elections_of_removed = 0
        # Of a pair: told that the partner took over meanwhile.
        self.on_replaced: Callable[[Replica], None] = lambda replica: None
        # Told of a log that has gone bad.
        self.on_damage: Callable[[Replica], object] = lambda replica: None
        self._seat = seat
        self._transport = transport
        self._hard_states = hard_states
        self._sync = sync
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._replica_of_log: dict[PartitionLog, Replica] = {}
        self._touched: dict[Replica, None] = {}
        self._run_requested = False
        self._awake: dict[Replica, None] = {}
        self.has_failed = False
        # Hard states that could not be written: no room, no memory.
        self._unsaved: dict[Replica, tuple[HardState, int]] = {}
        self._stands_aside = False
        # Futures that wait until hard states are on the disk.
        self._saving: set[asyncio.Future[None]] = set()
        self._warming: dict[Replica, asyncio.Task[None]] = {}
        self._liveness: Liveness[str] = Liveness(self._timing.election_ticks)
        self._heard_at: dict[str, float] = {}
        self._dice = Random()
        self._ticker: asyncio.Task[None] | None = None
        self._interval_task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._ticker = self._loop.create_task(self._tick_on())
        self._ticker.add_done_callback(self._notice_end)
        if self._sync.interval_ms:
            self._interval_task = self._loop.create_task(self._sync_at_intervals())

    async def _sync_at_intervals(self) -> None:
        while True:
            await asyncio.sleep(self._sync.interval_ms / 1000)
            self._sync_all()

    def _sync_all(self) -> None:
        for replica in self.replicas.values():
            if replica.log.last_index > replica.log.synced_index:
                self.syncer.request(replica.log)

    def _notice_end(self, ticker: asyncio.Task[None]) -> None:
        """Without ticks a node is as good as dead, but does not know it."""
        if not ticker.cancelled() and (error := ticker.exception()) is not None:
            self.fail(StorageFailed(f"time stands still: {error!r}"))

    def fail(self, error: HoldfastError) -> None:
        """No group does anything from now on: what it believes and what the disk has may differ."""
        self.has_failed = True
        for saved in self._saving:
            refuse(saved, error)
        self._on_failure(error)

    async def stop(self) -> None:
        """Sync what is written; nothing is sent or answered after this."""
        for task in (self._ticker, self._interval_task):
            if task is not None:
                task.cancel()
        self._sync_all()
        await self.syncer.stop()

    def close(self) -> None:
        self._hard_states.journal.close()

    def add(self, group: GroupId, name: str, log: PartitionLog, founders: Members) -> Replica:
        """Take part in a group whose log was opened; `founders` are its members from the beginning."""
        assert group not in self.replicas, f"{name} and {self.replicas[group].name} are one group"
        state = self._hard_states.of(group)
        if state is None:
            # A log that is older than its groups was written in some term: votes begin behind it.
            last_term = log.term_runs()[-1][1] if log.term_runs() else log.previous_term
            # Where it does not begin with its first entry, the founders may have been followed by others meanwhile.
            first = MembersAt(LogIndex(-1), log.previous_term, founders)
            state = HardState(max(last_term, self._term_floor), NOBODY, (first,))
        # Only the leader of a pair delivers, so the other need not be woken a second time for each message.
        tells_at_once = self._seat is None or group == CONTROL
        timing = self._timing._replace(tells_commits_at_once=tells_at_once)
        raft = Raft(
            self.me, shape=shape_of(log), hard_state=state, dice=self._dice.randrange, timing=timing, seat=self._seat
        )
        if group == CONTROL and self._initial_leader is not None:
            raft.stand_first(is_first=self._initial_leader == node_of(self.me))
        replica = Replica(group, name, log, raft, self, node_of(self.me))
        replica.fresh_at_s = self._loop.time()
        self.replicas[group] = replica
        self._replica_of_log[log] = replica
        self._awake[replica] = None
        return replica

    def elect_without_others(self) -> None:
        """Groups of which this node is the only voter need no time for an election, only one sync for all."""
        if self._transport.is_outvoted:
            return
        led = [replica for replica in self.replicas.values() if replica.raft.members.voters == {self.me}]
        led = [replica for replica in led if replica.raft.leading is None]
        for replica in led:
            replica.raft.campaign()
            replica.step_on()
        if led:
            self._hard_states.sync_now()
        for replica in led:
            replica.step_on()

    async def elect_at_once(self, replicas: Sequence[Replica]) -> None:
        """The same for groups that are new, while others are served: the disk is waited for in a thread."""
        led = [replica for replica in replicas if replica.raft.members.voters == {self.me}]
        if not led or self.has_failed or self._transport.is_outvoted:
            return
        for number, replica in enumerate(led):
            with self._guarded(replica):
                replica.raft.campaign()
                replica.step_on()
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        saved: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not saved.done():
                saved.set_result(None)

        self._hard_states.when_saved(tell)
        self._saving.add(saved)
        try:
            await saved
        finally:
            self._saving.discard(saved)
        for number, replica in enumerate(led):
            if self.replicas.get(replica.group) is replica:
                with self._guarded(replica):
                    replica.step_on()
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def take_over(self, replicas: Sequence[Replica]) -> None:
        """Lead groups of a pair whose other half is gone: no time for an election, only one sync for all."""
        for replica in replicas:
            replica.raft.take_over()
            replica.step_on()
        self._hard_states.sync_now()
        for replica in replicas:
            replica.step_on()
            self._awake[replica] = None

    def stand_aside_if_outvoted(self) -> None:
        """Lead and follow nobody while most nodes go by other members."""
        if self._transport.is_outvoted and not self._stands_aside:
            log.error("stands_aside", hint="most nodes go by other members; /health says what to do")
        elif self._stands_aside and not self._transport.is_outvoted:
            log.info("takes_part_again")
        self._stands_aside = self._transport.is_outvoted
        if self._stands_aside:
            self._follow_nobody()

    def _follow_nobody(self) -> None:
        """Lead nothing and follow nobody.

        Groups that sleep wait for the silence of their leader's node, and links are not silent. So the followers lose
        theirs once, and elect another leader. The new links tell this node when the others agree with it.
        """
        followers: set[str] = set()
        for replica in self.replicas.values():
            if (leading := replica.raft.leading) is not None:
                followers.update(map(node_of, leading.progress))
            if replica.raft.leader != NOBODY or replica.raft.role is not Role.FOLLOWER:
                replica.raft.wake()
                replica.raft.follow(replica.raft.term, NOBODY)
                self.touch(replica)
        for node in followers:
            self._transport.drop_link(node, "this node stands aside and leads no more")

    def expect_members(self, replica: Replica, known: Known) -> None:
        """Save a configuration of a group whose log does not go as far yet, before anything relies on it.

        Raises `Unavailable`, and nothing counts that was not there before.
        """
        self._hard_states.expect(replica.group, known)
        self._hard_states.put(replica.group, replica.raft.hard_state, lambda: None)
        self._hard_states.sync_now()

    def change_members_now(self, changes: Sequence[tuple[Replica, Members]]) -> None:
        """Write configurations that their leaders have nothing against; the disk is waited for once.

        Raises `Unavailable`. Those for which there was room stand then, the others are as before. After
        `StorageFailed` no group may go on.
        """
        saved: list[tuple[Replica, Members]] = []
        refused: HoldfastError | None = None
        for replica, members in changes:
            try:
                self._hard_states.put(replica.group, replica.raft.hard_state_with(members), lambda: None)
            except Unavailable as error:
                refused = error
                break
            self._unsaved.pop(replica, None)
            saved.append((replica, members))
        self._hard_states.sync_now()
        for replica, members in saved:
            try:
                replica.write_members(members)
            except Unavailable:
                self.resign_for_want_of_room(replica)
            self.touch(replica)
        if refused is not None:
            raise refused

    def resign_for_want_of_room(self, replica: Replica) -> None:
        """A configuration was saved and not written: no entry of this term may take the place it was meant for."""
        replica.raft.may_campaign = False
        replica.disk_full = True
        replica.raft.follow(replica.raft.term, NOBODY)
        self.touch(replica)

    async def remove(self, group: GroupId, error: HoldfastError) -> None:
        """Take no part in a group any more: its topic was deleted."""
        replica = self.replicas.pop(group)
        # Nothing may be written from here on: the log is closed as soon as no sync uses its files.
        replica.raft.may_campaign = False
        replica.raft.follow(replica.raft.term, NOBODY)
        self.elections_of_removed += replica.raft.elections
        self.syncer.forget(replica.log)
        self._touched.pop(replica, None)
        self._awake.pop(replica, None)
        self._unsaved.pop(replica, None)
        if replica in self._warming:
            self._warming.pop(replica).cancel()
        await self.syncer.settled()
        del self._replica_of_log[replica.log]
        replica.close(error)
        self._hard_states.forget(group)

    # --- time and messages ------------------------------------------------------------------------

    async def _tick_on(self) -> None:
        due = self._loop.time() + TICK_S
        while True:
            await asyncio.sleep(due - self._loop.time())
            now = self._loop.time()
            self.longest_tick_gap_s = max(self.longest_tick_gap_s, now - due + TICK_S)
            if CONTROL in self.replicas:
                self.elections.look(self.replicas[CONTROL].raft, now - due + TICK_S)
            # A node that was stopped for a while does not catch up on time: others have moved on meanwhile.
            due = max(due + TICK_S, now)
            self._tick()

    def _tick(self) -> None:
        self.pace.tick()
        if self._unsaved:
            self._save_again()
        self.stand_aside_if_outvoted()
        for node in self._liveness.tick():
            self._suspect(node)
            # A leader that sleeps must notice, too, when its majority is gone.
            self._wake_with(node)
        for replica in list(self._awake):
            # Before anything changes: a reign, or a leader, may end with this tick.
            self._note_freshness(replica)
            with self._guarded(replica):
                if not self._stands_aside:
                    replica.raft.tick()
                replica.trim_tail()
                replica.write_backlog()
            self.touch(replica)
            if replica.raft.is_asleep:
                del self._awake[replica]

    def on_messages(self, sender: ReplicaId, messages: Iterable[tuple[int, Message]]) -> None:
        """What another node says to groups of this one; groups that are not here (yet) do not answer."""
        is_outbid = False
        for group, message in messages:
            replica = self.replicas.get(GroupId(group))
            if replica is not None and self.is_replaced(replica, message):
                self.on_replaced(replica)
            elif replica is not None and not self.has_failed:
                was_leading = replica.raft.leading is not None
                with self._guarded(replica):
                    replica.raft.step(sender, message)
                self.touch(replica)
                is_outbid |= was_leading and replica.raft.leading is None
        if self._seat is not None and is_outbid:
            # By a partner that came back in a later term, without leading: the only voter goes beyond that.
            self.elect_without_others()

    def is_replaced(self, replica: Replica, message: Message) -> bool:
        """Of a pair: this node went on alone, and its partner leads in a later term. It must not simply follow."""
        raft = replica.raft
        from_leader = isinstance(message, Append | Heartbeat | Install)
        is_later = from_leader and message.term > raft.term
        return self._seat is not None and is_later and raft.members.voters == {raft.replica}

    def is_heard(self, node: str) -> bool:
        """Whether a node said something lately."""
        return self._liveness.is_heard(node)

    def on_heard(self, node: str) -> None:
        self._liveness.heard(node)
        self._heard_at[node] = self._loop.time()

    def staleness_ms(self, replica: Replica) -> int:
        """How long ago a replica's leader, or its followers, were last heard of."""
        self._note_freshness(replica)
        return int((self._loop.time() - replica.fresh_at_s) * 1000)

    def _note_freshness(self, replica: Replica) -> None:
        """Until when a replica is known to have shown everything, or nearly."""
        raft = replica.raft
        if (replica.is_alone and not self._stands_aside) or raft.leading is not None:
            replica.fresh_at_s = self._loop.time()
        elif raft.hears_leader:
            replica.fresh_at_s = max(replica.fresh_at_s, self._heard_at.get(node_of(raft.leader), 0.0))

    def on_up(self, node: str) -> None:
        """A node is there (again): it hears at once who leads, and gets what it missed."""
        self._liveness.heard(node)
        self._wake_with(node)

    def _wake_with(self, node: str) -> None:
        """Wake the groups that this node leads and the other one is in: something changed for them."""
        for replica in self.replicas.values():
            self._wake(replica, node)

    def _wake(self, replica: Replica, node: str) -> None:
        leading = replica.raft.leading
        if leading is not None and any(node_of(member) == node for member in leading.progress):
            replica.raft.wake()
            self.touch(replica)

    def on_down(self, node: str) -> None:
        """The link to a node broke: what was under way is lost, and a leader there may be gone."""
        self._liveness.lost(node)
        for replica in self.replicas.values():
            self._forget_link(replica, node)

    def on_dropped(self, node: str, groups: Collection[int]) -> None:
        """Messages of these groups to a node were dropped: begin again where it stands.

        Groups that sleep meanwhile are woken. The node is there, so nothing else would wake them, and their leader
        would never learn again what its follower has. Other groups have lost nothing and sleep on: there may be
        thousands, and a link that is full for long drops messages again and again.
        """
        for group in groups:
            replica = self.replicas.get(GroupId(group))
            if replica is not None:
                self._forget_link(replica, node)
                self._wake(replica, node)

    def _forget_link(self, replica: Replica, node: str) -> None:
        leading = replica.raft.leading
        if leading is not None:
            for member in leading.progress:
                if node_of(member) == node:
                    leading.lost_link(member)

    def _suspect(self, node: str) -> None:
        for replica in self.replicas.values():
            leader = replica.raft.leader
            if leader != NOBODY and leader != self.me and node_of(leader) == node:
                self._note_freshness(replica)
                replica.raft.suspect_leader()
                self.touch(replica)

    # --- what replicas need -------------------------------------------------------------------------

    def send(self, receiver: ReplicaId, group: GroupId, message: Message) -> None:
        self._transport.send(node_of(receiver), group, message)

    def can_reach(self, receiver: ReplicaId) -> bool:
        return self._transport.is_up(node_of(receiver))

    def save(self, replica: Replica, state: HardState, number: int, *, at_once: bool) -> None:
        if replica.group == CONTROL:
            self.elections.look(replica.raft, 0.0)  # before anybody hears of the vote
        self._unsaved.pop(replica, None)
        try:
            self._hard_states.put(replica.group, state, lambda: self._saved(replica, number))
        except Unavailable:
            if at_once:
                raise
            # It has promised nothing yet, and does so when the disk takes it. A newer state replaces this one.
            self._unsaved[replica] = (state, number)
            return
        if at_once:
            self._hard_states.sync_now()
        else:
            self.syncer.request(self._hard_states.journal)

    def _save_again(self) -> None:
        unsaved, self._unsaved = self._unsaved, {}
        for replica, (state, number) in unsaved.items():
            self.save(replica, state, number, at_once=False)

    def _saved(self, replica: Replica, number: int) -> None:
        replica.raft.saved(number)
        self.touch(replica)

    def written(self, replica: Replica) -> None:
        if self._sync.acknowledges_after_sync:
            self.syncer.request(replica.log)
        else:
            replica.durable(replica.log.last_index)
            if replica.log.has_unsynced_segments:
                self.syncer.request(replica.log)
        if not replica.is_alone:
            self.touch(replica)

    def touch(self, replica: Replica) -> None:
        self._touched[replica] = None
        if not self._run_requested:
            self._run_requested = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._run_requested = False
        touched, self._touched = self._touched, {}
        for replica in touched:
            if self.has_failed or self.replicas.get(replica.group) is not replica:
                continue
            with self._guarded(replica):
                replica.step_on()
            if not replica.raft.is_asleep:
                self._awake[replica] = None

    @contextlib.contextmanager
    def _guarded(self, replica: Replica) -> Iterator[None]:
        """A group that cannot do what was decided must not go on as if it had."""
        try:
            yield
        except HoldfastError as error:
            self.fail(error)
        except Exception as error:
            log.exception("group_failed", group=replica.name)
            self.fail(StorageFailed(f"{replica.name} cannot go on: {error!r}; see the log"))

    def cannot_lead(self, replica: Replica, damage: DamagedData) -> None:
        self.on_damage(replica)
        if replica.raft.members.voters == {replica.raft.replica}:
            # There is nobody else to lead. Whoever is being let in has to wait until this is mended.
            return
        if replica.raft.may_campaign:
            log.error("damaged_while_leading", group=replica.name, problem=damage.message)
        replica.raft.may_campaign = False
        replica.raft.follow(replica.raft.term, NOBODY)
        self.touch(replica)

    def warm(self, replica: Replica, cold: NotCached) -> None:
        if replica not in self._warming:
            self._warming[replica] = self._loop.create_task(self._warm(replica, cold))

    async def _warm(self, replica: Replica, cold: NotCached) -> None:
        try:
            await asyncio.to_thread(cold.warm)
        except OSError as error:
            log.error("cannot_read", group=replica.name, problem=str(error))
        finally:
            self._warming.pop(replica, None)
        self.touch(replica)

    # --- the disk -----------------------------------------------------------------------------------

    def _on_synced(self, synced: Syncable) -> None:
        if synced is self._hard_states.journal:
            self._hard_states.synced()
            return
        replica = self._replica_of_log.get(synced)  # type: ignore[call-overload]
        if replica is not None:
            replica.durable(replica.log.synced_index)

    def _on_sync_failure(self, error: Exception) -> None:
        self.fail(StorageFailed(f"a sync to disk failed ({error}); check the disk, then restart the broker"))
