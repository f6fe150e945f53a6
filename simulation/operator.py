"""Who changes members: leaders are asked, one small step after the other, until a group has the members it should.

Replicas that are lost go first: while they count as voters, every other change could leave a group without a
majority for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.consensus.members import Members, ReplicaId
from simulation.node import node_of
from simulation.replica import Replica

if TYPE_CHECKING:
    from simulation.cluster import Cluster

PAUSE_MS = 60.0
CAUGHT_UP_ENTRIES = 2


class Operator:
    """`wanted` says on which nodes each group should live."""

    def __init__(self, cluster: Cluster, wanted: list[set[int]]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.wanted = wanted
        # Whoever has left does not come back under the same name.
        self._left: set[ReplicaId] = set()
        self._world.after(PAUSE_MS, self._look)

    def _look(self) -> None:
        self._world.after(PAUSE_MS, self._look)
        for node in self._cluster.nodes:
            if node.frozen_until_ms > self._world.now_ms:
                continue
            for replica in list(node.replicas.values()):
                if replica.raft.leading is not None:
                    self.improve(replica)

    def improve(self, replica: Replica) -> None:
        """One step, if this leader can take one now."""
        raft = replica.raft
        if not self._cluster.is_calm and self._world.chance(0.2):
            self._ask_too_much(replica)
        if raft.members_index > raft.commit or raft.leading is None or not raft.leading.is_settled:
            return
        self._retire_strangers(replica)
        members = self._next_members(replica)
        if members is None:
            return
        if replica.change_members(members):
            self._left |= raft.members_history[-2].members.everybody - members.everybody

    def _ask_too_much(self, replica: Replica) -> None:
        """An impatient operator wants it all at once, or now; where that is wrong, it has to be refused."""
        members = replica.raft.members
        if replica.node.number not in self.wanted[replica.group]:
            return
        names = {self._cluster.nodes[number].name_in(replica.group) for number in self.wanted[replica.group]}
        if names == members.voters or not names <= members.everybody:
            return
        if replica.change_members(Members(frozenset(names), members.learners - names)):
            self._left |= members.everybody - replica.raft.members.everybody

    def _next_members(self, replica: Replica) -> Members | None:
        """One step towards what is wanted."""
        group, raft = replica.group, replica.raft
        assert raft.leading is not None
        voters, learners = raft.members
        names = [self._cluster.nodes[number].name_in(group) for number in sorted(self.wanted[group])]
        lost = sorted(voter for voter in voters if self._cluster.nodes[node_of(voter)].name_in(group) != voter)
        if lost:
            return Members(voters - {lost[0]}, learners)
        useless = sorted(learners - set(names))
        if useless:
            return Members(voters, learners - {useless[0]})
        for name in names:
            if name in learners and raft.leading.progress[name].match >= raft.shape.last_index - CAUGHT_UP_ENTRIES:
                return Members(voters | {name}, learners - {name})
        for name in names:
            if name not in raft.members.everybody and name not in self._left:
                return Members(voters, learners | {name})
        unwanted = sorted(voters - set(names))
        if unwanted and len(voters) > 1:
            return Members(voters - {self._world.dice.choice(unwanted)}, learners)
        return None

    def _retire_strangers(self, replica: Replica) -> None:
        """Tell those who were members once, and may not know, that they are not any more."""
        for name in sorted(self._left - replica.raft.members.everybody):
            node = self._cluster.nodes[node_of(name)]
            if node.name_in(replica.group) == name:
                packet = ("retire", replica.group, name)
                replica.node.network.send(replica.node.number, replica.node.boot, node.number, packet)

    def transfer(self, replica: Replica, member: ReplicaId) -> None:
        """Hand a group over, as an operator does before maintenance."""
        if replica.raft.leading is not None:
            self._world.counts["transfers"] += 1
            replica.raft.leading.transfer(member)
            replica.pump()
