"""What must hold where nodes come and go, beside all that holds anyway: held against the disks and the history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from holdfast.consensus.members import Members
from holdfast.consensus.membership import Member, Membership, Place
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.entries import KIND_MEMBERS, NOTE_HEAD_BYTES
from holdfast.model.ids import LogIndex
from simulation.invariants import Checker
from simulation.node import Node
from simulation.replica import Replica
from simulation.state import CONTROL_GROUP
from simulation.world import Violation


class MembershipChecker:
    """`nodes` with their disks, and `checker` with the history of every group."""

    def __init__(self, nodes: list[Node], checker: Checker) -> None:
        self._nodes = nodes
        self._checker = checker
        self._seen: dict[str, Member] = {}

    def majority_has_everything(self, replica: Replica, members: Members, decided: LogIndex) -> None:
        """Before members are changed: a majority of the new ones has what was committed a moment ago.

        What a disk had that was lost just now counts: its leader could not know.
        """
        stores = {
            node.name_in(replica.group): node.stores[replica.group]
            for node in self._nodes
            if replica.group in node.stores
        }
        having = [voter for voter in members.voters if voter not in stores or stores[voter].log.last_index >= decided]
        if len(having) < members.quorum:
            detail = f"{replica.label} makes {members} of {replica.raft.members}, and only {having} have {decided}"
            raise Violation("who is left has everything", detail)

    def rows(self, known: Iterable[Membership]) -> None:
        """Of what the nodes know, what is new."""
        for membership in known:
            if len([row for row in membership.rows.values() if row.place in (Place.JOINING, Place.LEAVING)]) > 1:
                raise Violation("one node at a time comes or goes", str(membership.rows))
            for row in membership.rows.values():
                before = self._seen.get(row.node)
                if before is None or before.number < row.number:
                    self._seen[row.node] = row
                    self._changed(before, row)

    def _changed(self, before: Member | None, row: Member) -> None:
        for group in range(len(self._checker.history)):
            configurations = list(self._committed(group))
            has_joined = row.place is Place.VOTER and before is not None and before.place is Place.JOINING
            if has_joined and not any(_has(members.voters, row, is_left=False) for members in configurations):
                raise Violation("who has joined votes everywhere", f"{row.node} does not in group {group}")
            # In the control group it listens until it is called gone.
            here = configurations[-1].voters if group == CONTROL_GROUP else configurations[-1].everybody
            if row.place is Place.REMOVED and _has(here, row, is_left=True):
                raise Violation("who has left is nowhere", f"group {group} is {configurations[-1]}, {row}")

    def _committed(self, group: int) -> Iterator[Members]:
        yield self._nodes[0].genesis[group]
        for entry in self._checker.history[group]:
            if entry.kind == KIND_MEMBERS:
                yield Members.decode(entry.payload[NOTE_HEAD_BYTES:])


def _has(replicas: Collection[str], row: Member, *, is_left: bool) -> bool:
    """Whether one of that node is among them, with a disk that has left, or with one that has not."""
    return any(node_of(each) == row.node and (life_of(each) in row.lives) is is_left for each in replicas)  # type: ignore[arg-type]
