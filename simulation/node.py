"""One machine: its clock, its disk, its replicas, and the way requests take from any node to the leader."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.consensus.liveness import Liveness
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState, Message
from holdfast.consensus.timing import DEFAULT_TIMING
from holdfast.model.ids import LogIndex, Term
from simulation.disk import Store
from simulation.network import Network, Packet
from simulation.replica import Replica
from simulation.requests import NODE_ITSELF, Answer, Ask, Request
from simulation.state import GroupState
from simulation.world import TICK_MS, World

if TYPE_CHECKING:
    from simulation.invariants import Checker

PING_TICKS = 3


@cache
def node_of(replica: ReplicaId) -> int:
    return int(replica.partition(".")[0].removeprefix("n"))


class Node:
    """It may be down, or frozen; its disk may be slow, failing, damaged or lost."""

    def __init__(
        self,
        number: int,
        world: World,
        network: Network,
        checker: Checker,
        genesis: list[Members],
        reply: Callable[[Answer], None],
    ) -> None:
        self.number = number
        self.world = world
        self.network = network
        self.checker = checker
        self.genesis = genesis
        self.peers: list[int] = []
        # The disk.
        self.stores: dict[int, Store] = {}
        self.lives = [0] * len(genesis)
        self.sync_ms_max = 1.5
        self.is_sync_failing = False
        # The process.
        self.is_up = False
        self.boot = 0
        self.frozen_until_ms = 0.0
        self.replicas: dict[int, Replica] = {}
        # The clock.
        self.tick_ms = TICK_MS
        self.keep_entries = 24
        # Where nodes come and go: whether this one belongs to the cluster, or wants to.
        self.wants_in = True
        self.is_gone: Callable[[ReplicaId], bool] = lambda name: False
        self.on_join: Callable[[ReplicaId], None] = lambda name: None
        self.on_index: Callable[[Answer], None] = lambda answer: None
        self._heard_lives: dict[int, int] = {}
        self._reply = reply
        self._liveness: Liveness[int] = Liveness(DEFAULT_TIMING.election_ticks)
        self._boots: dict[int, int] = {}
        self._ticks = 0
        network.attach(number, self._receive)
        for group, members in enumerate(genesis):
            if self.name_in(group) in members.voters:
                self.stores[group] = self._new_store(group)

    def name_in(self, group: int) -> ReplicaId:
        """A replica whose log was lost or set aside does not come back under its name."""
        return ReplicaId(f"n{self.number}.{self.lives[group]}")

    def _new_store(self, group: int) -> Store:
        first = MembersAt(LogIndex(-1), Term(0), self.genesis[group])
        return Store(HardState(Term(0), NOBODY, (first,)), GroupState(self.genesis[group]).encode())

    # --- life and death -----------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.boot += 1
        self.frozen_until_ms = 0.0
        self.is_sync_failing = False
        self._liveness = Liveness(DEFAULT_TIMING.election_ticks)
        self._boots = {}
        self._heard_lives = {}
        self._open()
        if self.world.is_traced:
            self.world.note(f"n{self.number} starts, boot {self.boot}: {[r.name for r in self.replicas.values()]}")
        self.world.after(self.world.dice.random() * self.tick_ms, self._tick, self.boot)
        for replica in self.replicas.values():
            replica.pump()

    def _open(self) -> None:
        if not self.wants_in:
            return
        self.replicas = {
            group: Replica(self, group, self.name_in(group), store) for group, store in sorted(self.stores.items())
        }

    def want_in(self) -> None:
        """Started again by somebody: whatever it was before, it is a newcomer now, with the logs it has."""
        self.wants_in = True
        self._open()
        for replica in self.replicas.values():
            replica.pump()

    def be_removed(self, name: ReplicaId) -> None:
        """It was told that it does not belong any more: it takes part in nothing, and never again under this name."""
        if self.name_in(0) != name:
            return
        self.world.counts["nodes told that they left"] += 1
        for replica in self.replicas.values():
            replica.is_gone = True
        self.replicas = {}
        for store in self.stores.values():
            store.crash(self.world.dice)
        self.lives = [life + 1 for life in self.lives]
        self.wants_in = False

    def heard_life(self, peer: int) -> int | None:
        """Of which of its disks a node speaks that was heard lately."""
        return self._heard_lives.get(peer) if self._liveness.is_heard(peer) else None

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        for replica in self.replicas.values():
            replica.is_gone = True
        self.replicas = {}
        lost = sum(store.crash(self.world.dice) for store in self.stores.values())
        self.world.counts["crashes"] += 1
        self.world.counts["unsynced writes lost"] += lost
        if self.world.is_traced:
            self.world.note(f"n{self.number} crashes and loses {lost} writes")

    def lose(self, groups: list[int]) -> None:
        """While it is down: the logs of these groups are gone or not to be trusted any more."""
        assert not self.is_up
        for group in groups:
            self.stores.pop(group, None)
            self.lives[group] += 1
        if self.world.is_traced:
            self.world.note(f"n{self.number} has lost the logs of groups {groups}")

    def retire(self, group: int, name: ReplicaId) -> None:
        """The group goes on without this replica: forget it. Should it be wanted again, it will be a new one."""
        if self.name_in(group) != name:
            return
        if group in self.replicas:
            self.replicas[group].is_gone = True
            del self.replicas[group], self.stores[group]
        self.lives[group] += 1
        self.world.counts["replicas retired"] += 1

    def postpone(self, action: Callable[..., None], *arguments: Any) -> bool:
        """A frozen process does everything later."""
        if self.frozen_until_ms <= self.world.now_ms:
            return False
        self.world.after(self.frozen_until_ms - self.world.now_ms + self.world.dice.random(), action, *arguments)
        return True

    # --- the disk -----------------------------------------------------------------------------------

    def sync_ms(self) -> float:
        return 0.1 + self.sync_ms_max * self.world.dice.random() ** 2

    def sync_failed(self) -> bool:
        """A failed sync is final: nobody knows what the disk has."""
        if self.is_sync_failing and self.is_up:
            self.world.counts["syncs failed"] += 1
            self.crash()
            return True
        return False

    # --- time ---------------------------------------------------------------------------------------

    def _tick(self, boot: int) -> None:
        if boot != self.boot or not self.is_up:
            return
        if self.postpone(self._tick, boot):
            return
        self.world.after(self.tick_ms, self._tick, boot)
        self.tick()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % PING_TICKS == 0 and self.wants_in:
            for peer in self.peers:
                self.network.send(self.number, self.boot, peer, ("ping", self.lives[0]))
        for peer in self._liveness.tick():
            self._lost(peer)
        for replica in list(self.replicas.values()):
            replica.tick()
        if self._ticks % 16 == 0 and self.world.chance(0.5):
            for replica in list(self.replicas.values()):
                replica.compact(self.keep_entries)

    def _lost(self, peer: int) -> None:
        for replica in list(self.replicas.values()):
            raft = replica.raft
            if raft.leading is not None:
                for member in raft.leading.progress:
                    if node_of(member) == peer:
                        raft.leading.lost_link(member)
                replica.pump()
            elif raft.leader != NOBODY and node_of(raft.leader) == peer:
                raft.suspect_leader()

    # --- talking ------------------------------------------------------------------------------------

    def send_to_replica(self, sender: Replica, receiver: ReplicaId, message: Message) -> None:
        self.checker.said(sender, receiver, message)
        if self.world.is_traced:
            self.world.note(f"{sender.label} -> {receiver} {message}")
        packet = ("raft", sender.group, sender.name, receiver, message)
        self.network.send(self.number, self.boot, node_of(receiver), packet)

    def _receive(self, sender: int, boot: int, packet: Packet) -> None:
        if not self.is_up or self.postpone(self._receive, sender, boot, packet):
            return
        if boot > self._boots.get(sender, boot):
            self._liveness.lost(sender)
        self._boots[sender] = max(boot, self._boots.get(sender, boot))
        self._liveness.heard(sender)
        match packet:
            case ("ping", life):
                self._heard_lives[sender] = life
            case ("raft", group, name, receiver, message) if not self.is_gone(name):
                replica = self._replica_for(group, receiver)
                if replica is not None:
                    replica.step(name, message)
            case ("forward", request):
                self._handle(request, sender, is_forwarded=True)
            case ("answer", answer):
                self._answered(answer)
            case ("retire", group, name):
                self.retire(group, name)
            case ("removed", name):
                self.be_removed(name)
            case ("join", name):
                self._take_join(name)

    def _take_join(self, name: ReplicaId) -> None:
        """Whoever is asked has it decided by the leader of the control group."""
        control = self.replicas.get(0)
        if control is None:
            return
        if control.raft.leading is not None:
            self.on_join(name)
        elif control.raft.leader != NOBODY and node_of(control.raft.leader) != self.number:
            self.network.send(self.number, self.boot, node_of(control.raft.leader), ("join", name))

    def _replica_for(self, group: int, receiver: ReplicaId) -> Replica | None:
        """None if it is meant for a replica of an earlier life; a new one if it is let in just now."""
        if receiver != self.name_in(group) or not self.wants_in:
            return None
        if group not in self.replicas:
            self.stores[group] = self._new_store(group)
            self.replicas[group] = Replica(self, group, receiver, self.stores[group])
        return self.replicas[group]

    # --- requests -----------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """A client asks this node."""
        if self.is_up and not self.postpone(self.request, request):
            self._handle(request, self.number, is_forwarded=False)

    def _handle(self, request: Request, origin: int, *, is_forwarded: bool) -> None:
        replica = self.replicas.get(request.group)
        if replica is None:
            self.answer(origin, Answer(request.client, request.operation, is_done=False))
        elif request.ask is Ask.READ_NEARBY:
            state = replica.state
            self.answer(origin, Answer(request.client, request.operation, True, state.next_offset, state.last_name))
        elif replica.raft.leading is None and replica.raft.leader != NOBODY and not is_forwarded:
            self.network.send(self.number, self.boot, node_of(replica.raft.leader), ("forward", request))
        else:
            replica.handle(request, origin)

    def answer(self, origin: int, answer: Answer) -> None:
        """Through the node the client had asked, unless that is this one."""
        if origin == self.number:
            self._answered(answer)
        else:
            self.network.send(self.number, self.boot, origin, ("answer", answer))

    def _answered(self, answer: Answer) -> None:
        if answer.client == NODE_ITSELF:
            self.on_index(answer)
        else:
            self._reply(answer)
