"""One of two machines: its disk, its process, and what it does about its partner.

What is here mirrors `groups`, `pairing`, `neighbours` and `rejoining` of the product line by line where it can: the
same pure parts (`Raft`, `PartnerWatch`, `Standing`) decide, and the same things are done in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from holdfast.consensus.liveness import Liveness
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import Append, HardState, Heartbeat, Install, Message
from holdfast.consensus.partner import PairSettings, PartnerWatch, Standing
from holdfast.consensus.timing import DEFAULT_TIMING
from holdfast.model.ids import LogIndex, Term
from simulation.disk import Store
from simulation.node import node_of
from simulation.pair_links import Hello, Links
from simulation.pair_rejoining import Giver
from simulation.pair_replica import CONTROL, GIVER, PairReplica
from simulation.pair_upkeep import Upkeep
from simulation.pair_wire import Packet, Wire
from simulation.replica import Replica
from simulation.requests import Answer, Request
from simulation.state import GroupState
from simulation.world import World

if TYPE_CHECKING:
    from simulation.pair_invariants import PairChecker

TICK_MS: Final = 50.0
LOOK_MS: Final = 50.0
UPKEEP_MS: Final = 100.0
# From being told that it was replaced to having stopped, at most.
STOP_MS_MAX: Final = 300.0


class PairNode:
    """It may be down, off, frozen, or busy giving away what only it has."""

    def __init__(
        self,
        number: int,
        world: World,
        wire: Wire,
        checker: PairChecker,
        settings: PairSettings,
        reply: Callable[[Answer], None],
    ) -> None:
        self.number = number
        self.partner = 1 - number
        self.world = world
        self.wire = wire
        self.checker = checker
        self.settings = settings
        self.other: PairNode = self
        # The disk.
        self.stores: dict[int, Store] = {}
        self.life = 0
        self.founders = Members.of(["n0.0"])
        self.has_formation = True
        self.is_replaced = self.is_given = False
        # What was stored in earlier lives has ids with their terms in them: no later life leads in one of these.
        self.terms: dict[int, Term] = {}
        self.sync_ms_max = 2.0
        # The process.
        self.is_up = False
        self.is_serving = False
        self.boot = 0
        self.thawed_ms = 0.0
        self.links: Links | None = None
        self.replicas: dict[int, PairReplica] = {}
        self.failovers = 0
        self._partner_hello: Hello | None = None
        self._reply = reply
        self._has_stopped = True
        self._watch = PartnerWatch(settings, 0.0)
        self._liveness: Liveness[int] = Liveness(DEFAULT_TIMING.election_ticks)
        self.up_since_ms = 0.0
        # What is done about this node just after it goes alone, is let in, and so on.
        self.traps: dict[str, Callable[[], None]] = {}
        self.giver = Giver(self)
        self.upkeep = Upkeep(self)

    @property
    def name(self) -> ReplicaId:
        return ReplicaId(f"n{self.number}.{self.life}")

    @property
    def is_running(self) -> bool:
        return self.is_up or self.giver.is_busy

    def _new_store(self, group: int, founders: Members) -> Store:
        first = MembersAt(LogIndex(-1), Term(0), founders)
        return Store(HardState(self.terms.get(group, Term(0)), NOBODY, (first,)), GroupState().encode())

    # --- life and death -----------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_running:
            return
        self.wire.is_off[self.number] = False
        self.wire.resume()
        self.boot += 1
        self.thawed_ms = self.world.now_ms
        self.wire.frozen_until_ms[self.number] = 0.0
        if self.is_replaced:
            self.giver.begin()
            return
        self._listen()

    def _listen(self) -> None:
        self.is_up, self._has_stopped, self.is_serving = True, False, False
        self._partner_hello = None
        if self.world.is_traced:
            self.world.note(f"n{self.number} starts, boot {self.boot}, life {self.life}")
        self.links = Links(self, self.wire, self._door_of_partner)
        self.links.start()
        self._form(self.boot)

    def _door_of_partner(self) -> Links | None:
        return self.other.links if self.other.is_up else None

    def _form(self, boot: int) -> None:
        """Which pair it belongs to: from its disk, or, where that was lost, from its partner."""
        if boot != self.boot or not self.is_up or self.is_serving or self.postpone(self._form, boot):
            return
        hello = self.links.partner_hello if self.links is not None else None
        if not self.has_formation and (hello is None or not hello.has_formation):
            self.world.after(20.0, self._form, boot)
            return
        self.has_formation = True
        self._serve()

    def _serve(self) -> None:
        self.stores.setdefault(CONTROL, self._new_store(CONTROL, self.founders))
        self._watch = PartnerWatch(self.settings, self.world.now_ms / 1000)
        self._liveness = Liveness(DEFAULT_TIMING.election_ticks)
        self.replicas = {
            group: PairReplica(self, group, self.name, store) for group, store in sorted(self.stores.items())
        }
        self.is_serving = True
        if self.links is not None and self.links.is_up:
            self._groups_up()
        dice = self.world.dice
        self.world.after(dice.random() * TICK_MS, self._tick, self.boot)
        self.world.after(LOOK_MS, self._look, self.boot)
        self.world.after(dice.random() * UPKEEP_MS, self._upkeep, self.boot)
        for replica in list(self.replicas.values()):
            replica.pump()
        self._finish_going_alone()

    def _finish_going_alone(self) -> None:
        """A crash may have kept only some of the groups from going alone, or kept a partner half let in."""
        if any(replica.is_alone for replica in self.replicas.values()):
            self.elect_without_others()
            self._go_on()

    def crash(self, *, is_off: bool = False) -> None:
        """The process is gone; if the machine is off, nobody is told."""
        if not self.is_running:
            return
        if self.world.is_traced:
            self.world.note(f"n{self.number} {'loses its power' if is_off else 'is killed'}")
        self.wire.is_off[self.number] = is_off
        self._end(is_off=is_off)
        lost = sum(store.crash(self.world.dice) for store in self.stores.values())
        self.world.counts["crashes"] += 1
        self.world.counts["unsynced writes lost"] += lost

    def _end(self, *, is_off: bool) -> None:
        self.giver.stop()
        self.is_up = self.is_serving = False
        self._has_stopped = True
        for replica in self.replicas.values():
            replica.is_gone = True
        self.replicas = {}
        if self.links is not None:
            self.links.stop(is_off=is_off)
        self.links = None

    def lose_disk(self) -> None:
        """While it is down."""
        assert not self.is_running
        self.checker.lost_disk(self)
        self.stores.clear()
        self.terms.clear()
        self.life += 1
        self.has_formation = False
        self.is_replaced = self.is_given = False
        if self.world.is_traced:
            self.world.note(f"n{self.number} has lost its disk, life {self.life}")

    def freeze(self, duration_ms: float) -> None:
        until_ms = max(self.wire.frozen_until_ms[self.number], self.world.now_ms + duration_ms)
        self.wire.frozen_until_ms[self.number] = until_ms
        if duration_ms > self.settings.heartbeat_s * 1000:
            self.thawed_ms = until_ms

    def reached(self, moment: str) -> None:
        trap = self.traps.pop(moment, None)
        if trap is not None:
            trap()

    def postpone(self, action: Callable[..., None], *arguments: Any) -> bool:
        """A frozen process does everything later."""
        until_ms = self.wire.frozen_until_ms[self.number]
        if until_ms <= self.world.now_ms:
            return False
        self.world.after(until_ms - self.world.now_ms + self.world.dice.random() * 2.0, action, *arguments)
        return True

    # --- the disk -----------------------------------------------------------------------------------

    def sync_ms(self) -> float:
        return 0.1 + self.sync_ms_max * self.world.dice.random() ** 2

    def sync_failed(self) -> bool:
        return not self.is_up

    # --- being replaced (`Node._on_replaced`, `rejoining`) ------------------------------------------------

    def on_replaced(self) -> None:
        if self.is_replaced or self._partner_hello is None:
            return
        if self.world.is_traced:
            self.world.note(f"n{self.number} was replaced")
        self.world.counts["replaced"] += 1
        self.is_replaced, self.is_given = True, False
        self.reached("replaced")
        self.world.after(self.world.dice.random() * STOP_MS_MAX, self._stop_replaced, self.boot)

    def _stop_replaced(self, boot: int) -> None:
        if boot != self.boot or not self.is_up or self.postpone(self._stop_replaced, boot):
            return
        for store in self.stores.values():
            store.log_synced(store.written)
            if store.has_unsynced_hard_state:
                store.hard_state_synced(store.hard_state_number)
        self._end(is_off=False)
        self.boot += 1
        self.giver.begin()

    def begin_anew(self) -> None:
        """Everything was given: be somebody else, with nothing."""
        self.checker.threw_away(self)
        self.terms |= {group: store.hard_state.term for group, store in self.stores.items()}
        self.stores.clear()
        self.life += 1
        self.is_replaced = self.is_given = False
        self.world.counts["begun anew"] += 1
        self._listen()

    def go_on_as_before(self) -> None:
        """Who took over does not take what this one has: it may be gone again."""
        self.is_replaced = self.is_given = False
        self.world.counts["went on as before"] += 1
        self._listen()

    # --- the links (`Neighbours`) -------------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        raft = self.replicas[CONTROL].raft
        return Standing(raft.term, raft.members.voters == {raft.replica})

    def hello(self) -> Hello:
        standing = self.standing.encode() if self.is_serving else ""
        return Hello(self.number, self.life, self.boot, standing, self.has_formation)

    def refusal(self, hello: Hello) -> str | None:
        if self.is_replaced:
            return f"n{self.number} begins anew"
        if not self.is_serving or not hello.standing:
            return None
        self._partner_hello = hello
        own, other = self.standing, Standing.decode(hello.standing)
        if own.yields_to(other):
            self.on_replaced()
            return f"n{hello.node} took over in epoch {other.term}"
        if other.yields_to(own):
            return f"n{self.number} took over in epoch {own.term}"
        return None

    def can_reach(self, receiver: ReplicaId) -> bool:
        return node_of(receiver) == self.number or (self.links is not None and self.links.is_up)

    def life_of_partner(self) -> int | None:
        hello = self.links.partner_hello if self.links is not None else None
        return None if hello is None else hello.life

    def on_up(self, hello: Hello) -> None:
        self.up_since_ms = self.world.now_ms
        if self.world.is_traced:
            self.world.note(f"n{self.number} is linked to {hello}")
        if self.is_serving:
            self.reached("linked")
            self._watch.linked(self.world.now_ms / 1000)
            self._groups_up()

    def on_down(self) -> None:
        if self.world.is_traced:
            self.world.note(f"n{self.number} is not linked")
        if self.is_serving:
            self._watch.unlinked()
            self._liveness.lost(self.partner)
            self._forget_link()

    def on_dropped(self, groups: set[int]) -> None:
        if self.is_serving:
            self._forget_link(groups)
            self._wake(groups)

    def on_heard(self) -> None:
        if self.is_serving:
            self._watch.heard(self.world.now_ms / 1000)
            self._liveness.heard(self.partner)

    def on_nobody_there(self) -> None:
        if self.is_serving and self._watch.refused():
            self._is_gone("it refuses connections")

    # --- the partner is gone (`Pairing`) --------------------------------------------------------------------

    def _look(self, boot: int) -> None:
        if boot != self.boot or not self.is_serving or self.postpone(self._look, boot):
            return
        self.world.after(LOOK_MS, self._look, boot)
        now_s = self.world.now_ms / 1000
        if self._watch.look(now_s):
            self.checker.was_silent(self)
            self._is_gone("it is silent")
        elif self._watch.is_away or self._is_somebody_else():
            self._go_on()

    def _is_somebody_else(self) -> bool:
        """The partner is there with another disk: who it was is gone for good, and nobody waits for its vote."""
        life = self.life_of_partner()
        members = [member for replica in self.replicas.values() for member in replica.raft.members.everybody]
        return life is not None and any(
            node_of(member) == self.partner and int(member.partition(".")[2]) != life for member in members
        )

    def _is_gone(self, why: str) -> None:
        if self.world.is_traced:
            self.world.note(f"n{self.number}: partner is gone, {why}")
        self.world.counts["partner gone"] += 1
        if self.links is not None:
            self.links.drop()
        self._go_on()

    def _go_on(self) -> None:
        """Take the lead where the partner had it, and be alone in every group."""
        followed = [replica for replica in self.replicas.values() if replica.raft.leading is None]
        if not all(replica.raft.is_voter and replica.raft.may_campaign for replica in followed):
            # It does not have everything yet: to lead some groups only would leave the others to nobody.
            return
        if followed:
            self.world.counts["take-overs"] += 1
            self._take_over(followed)
        together = [
            replica
            for replica in self.replicas.values()
            if replica.raft.leading is not None and replica.raft.members.everybody != {replica.name}
        ]
        if together:
            self._change_members_now([(replica, Members(frozenset({replica.name}))) for replica in together])

    # --- the groups (`Groups`) --------------------------------------------------------------------------------

    def elect_without_others(self) -> None:
        led = [replica for replica in self.replicas.values() if replica.raft.members.voters == {self.name}]
        led = [replica for replica in led if replica.raft.leading is None]
        for replica in led:
            replica.campaign()
        for replica in led:
            replica.sync_hard_state_now()

    def _take_over(self, replicas: list[PairReplica]) -> None:
        for replica in replicas:
            replica.take_over()
        for replica in replicas:
            replica.sync_hard_state_now()

    def _change_members_now(self, changes: list[tuple[PairReplica, Members]]) -> None:
        for replica, members in changes:
            replica.save_members_now(members)
        self.reached("alone")
        for replica, members in changes:
            replica.write_members(members)
            self.world.counts["went alone"] += 1
            if self.world.is_traced:
                self.world.note(f"{replica.label} is alone in term {replica.raft.term}")
        # What follows is done when this turn of the loop is over.
        self.world.after(0.0, self._pump, self.boot)

    def _pump(self, boot: int) -> None:
        if boot == self.boot and not self.postpone(self._pump, boot):
            for replica in list(self.replicas.values()):
                replica.pump()

    def on_messages(self, hello: Hello, packet: Packet) -> None:
        if not self.is_serving or self.is_replaced:
            return
        group, message = packet
        replica = self.replicas.get(group)
        if replica is not None and self._is_replaced_by(replica, message):
            self._on_later_leader(group)
        elif replica is not None:
            was_leading = replica.raft.leading is not None
            replica.step(hello.replica, message)
            if was_leading and replica.raft.leading is None:
                # By a partner that came back in a later term, without leading: the only voter goes beyond that.
                self.elect_without_others()

    def _is_replaced_by(self, replica: PairReplica, message: Message) -> bool:
        raft = replica.raft
        from_leader = isinstance(message, Append | Heartbeat | Install)
        return from_leader and message.term > raft.term and raft.members.voters == {raft.replica}

    def _on_later_leader(self, group: int) -> None:
        """The terms of the control group decide who gives way, whoever meets a later leader in another group."""
        self.world.counts["later leaders met"] += 1
        if group == CONTROL:
            self.on_replaced()
        elif self.links is not None:
            self.links.drop()

    def open_topic(self, group: int, founders: Members) -> None:
        """The control log has come to a topic that is not here yet."""
        if group in self.replicas:
            return
        self.stores[group] = self._new_store(group, founders)
        self.replicas[group] = PairReplica(self, group, self.name, self.stores[group])
        self.world.after(0.0, self._elect_topic, self.boot)

    def _elect_topic(self, boot: int) -> None:
        if boot == self.boot and self.is_serving and not self.postpone(self._elect_topic, boot):
            self.elect_without_others()

    def _groups_up(self) -> None:
        self._liveness.heard(self.partner)
        self._wake()

    def _wake(self, groups: Collection[int] | None = None) -> None:
        for replica in self._those(groups):
            if replica.raft.leading is not None and replica.raft.leading.progress:
                replica.raft.wake()
                replica.pump()

    def _those(self, groups: Collection[int] | None) -> list[PairReplica]:
        """The replicas of these groups, or of all."""
        return [replica for group, replica in self.replicas.items() if groups is None or group in groups]

    def _forget_link(self, groups: Collection[int] | None = None) -> None:
        for replica in self._those(groups):
            if replica.raft.leading is not None:
                for member in replica.raft.leading.progress:
                    replica.raft.leading.lost_link(member)

    def _suspect(self) -> None:
        for replica in list(self.replicas.values()):
            leader = replica.raft.leader
            if leader not in (NOBODY, self.name) and node_of(leader) == self.partner:
                replica.raft.suspect_leader()

    # --- time ---------------------------------------------------------------------------------------

    def _tick(self, boot: int) -> None:
        if boot != self.boot or not self.is_serving or self.postpone(self._tick, boot):
            return
        self.world.after(TICK_MS, self._tick, boot)
        for _ in self._liveness.tick():
            self._suspect()
            self._wake()
        for replica in list(self.replicas.values()):
            replica.tick()

    def _upkeep(self, boot: int) -> None:
        if boot != self.boot or not self.is_serving or self.postpone(self._upkeep, boot):
            return
        self.world.after(UPKEEP_MS, self._upkeep, boot)
        self.upkeep.look_after_everything()

    # --- talking ------------------------------------------------------------------------------------

    def send_to_replica(self, sender: Replica, receiver: ReplicaId, message: Message) -> None:
        self.checker.said(sender, receiver, message)
        if self.world.is_traced:
            self.world.note(f"{sender.label} -> {receiver} {message}")
        if self.links is not None:
            self.links.send(sender.group, message)

    def request(self, request: Request) -> None:
        """A publisher asks this node; only who leads serves."""
        if not self.is_up or self.postpone(self.request, request):
            return
        if request.client >= GIVER:
            # Whoever gives makes the topic first, where there is none.
            self.upkeep.topics_wanted = max(self.upkeep.topics_wanted, request.group)
        replica = self.replicas.get(request.group)
        if replica is None or not replica.takes:
            self.answer(self.number, Answer(request.client, request.operation, is_done=False))
        else:
            replica.handle(request, self.number)

    def answer(self, origin: int, answer: Answer) -> None:
        self._reply(answer)
