"""What one of a pair does about its groups ten times a second: let its partner in, spread leaders. As `upkeep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.consensus import replica_names
from holdfast.consensus.leading import Leading
from holdfast.consensus.letting_in import LettingIn
from holdfast.consensus.members import Members, ReplicaId
from simulation.node import node_of
from simulation.pair_replica import CONTROL, PairReplica

if TYPE_CHECKING:
    from simulation.pair_node import PairNode

# A node that has just come back may be about to go again.
_STEADY_MS: Final = 600.0


class Upkeep:
    """Runs on each of the two; each leader looks after its own groups."""

    def __init__(self, node: PairNode) -> None:
        self._node = node
        # How many topics there shall be; more may be wanted later.
        self.topics_wanted = 1
        self._letting_in = LettingIn(self._life_of)

    def look_after_everything(self) -> None:
        self._make_topics()
        self._look_after_members()
        self._spread_leaders()

    def _make_topics(self) -> None:
        control = self._node.replicas[CONTROL]
        leading = control.raft.leading
        if leading is not None and leading.is_settled and control.knows_topic < self.topics_wanted:
            control.create_topic(control.knows_topic + 1)

    def _look_after_members(self) -> None:
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.is_settled:
                continue
            wanted = self._next_members(replica, leading)
            if wanted is not None and leading.refusal(wanted) is None:
                replica.change_members(wanted)
                self._node.reached("let in")
            elif self._letting_in.evidence.asks(replica.raft):
                replica.pump()
        self._letting_in.looked(replica.raft for replica in self._node.replicas.values())
        self._node.checker.looked_after(self._node.replicas.values())

    def _life_of(self, node: str) -> str | None:
        number = int(node.removeprefix("n"))
        life = self._node.life if number == self._node.number else self._node.life_of_partner()
        return None if life is None else str(life)

    def _next_members(self, replica: PairReplica, leading: Leading) -> Members | None:
        control = self._node.replicas[CONTROL]
        return self._letting_in.next_members(
            leading,
            replica.raft,
            wanted={replica_names.node_of(voter) for voter in control.raft.members.voters},
            partner=self._partner_to_let_in(),
            before=[each.raft for each in self._node.replicas.values() if each is not control]
            if replica is control
            else (),
        )

    def _partner_to_let_in(self) -> ReplicaId | None:
        node = self._node
        if node.links is None or not node.links.is_up:
            return None
        life = node.life_of_partner()
        return None if life is None else ReplicaId(f"n{node.partner}.{life}")

    def _spread_leaders(self) -> None:
        """Who leads the control group shall lead everything."""
        wanted = self._node.replicas[CONTROL].raft.leader
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.takes_proposals or not leading.is_settled or replica.group == CONTROL:
                continue
            if not wanted or node_of(wanted) == self._node.number or wanted not in replica.raft.members.voters:
                continue
            is_steady = self.seconds_up_ms > _STEADY_MS
            if is_steady and leading.progress[wanted].match >= replica.raft.commit:
                leading.transfer(wanted)
                replica.pump()

    @property
    def seconds_up_ms(self) -> float:
        node = self._node
        is_up = node.links is not None and node.links.is_up
        return node.world.now_ms - node.up_since_ms if is_up else 0.0
