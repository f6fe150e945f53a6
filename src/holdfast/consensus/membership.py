"""Which nodes belong to a cluster: rows that the control log changes, and what each of its groups makes of them.

A row is a node's place. A node without one that votes in the control group is a founder, and belongs to all groups::

    (no row) ──join──▶ JOINING ──settle──▶ VOTER ──leave──▶ LEAVING ──gone──▶ REMOVED ──join──▶ JOINING …
                         ▲└──────────leave──────────────────────▲ │
                         └──────────────────keep──────────────────┘

- JOINING: every leader lets the node into its group as a learner, and has it vote there once it has everything.
  SETTLE is proposed by the leader of the control group when the node votes in all groups, for good, and is well.
- LEAVING: it leads nothing; every leader takes it out of its group while the rest is a majority that has everything.
  In the control group it stops voting first, and listens until it is out of all others: so it still hears what is
  decided, and no topic that is made from then on begins with it. GONE is proposed when no group has it any more.
  Of both, the leaders of all groups are asked first: what this node has of a group may be from before the change.
- KEEP takes a LEAVING back, for as long as it is not over: the node is JOINING again, with the disk it has. Groups that
  it was out of already let it in anew, the others have it as before. It may be what is left to do when another node is
  lost meanwhile and the rest would be no majority: the leaver is one of those who make it.
- REMOVED: which lives of its disk are no member for good. Whoever comes with one of them is told so; the same node
  with a new life is a newcomer.
- A node that replaces another is JOINING with that one's name; SETTLE makes the other one LEAVING in the same step.
- DRAINED is no place of its own: such a node belongs and votes as before, and is not wanted as a leader. It leads all
  the same what a leaving node can hand over to nobody else.

One node at a time is JOINING or LEAVING. The rows are all that a change consists of: nobody keeps it in memory, so it
goes on under whoever leads next. Crash cases:

- *of the leader of the control group, anywhere*: the next one finds the row and goes on; what the old one proposed
  stands in the log or not. A command names the row it was made for by its number, so a late copy changes nothing.
- *of a group's leader, between two steps*: its log has the members of the step or not; the next leader goes on from
  there. A leader that has not heard of the newest rows takes nobody out on a suspicion: only rows do that.
- *of the joining node*: the others wait for it. With another disk it is somebody else, who is let in, and the old
  one is taken out. If it never comes back, LEAVE takes what was let in of it out again.
- *of the leaving node*: nothing waits for it where the rest is a majority without it. Of two, both are needed until
  one is out: groups that still have two voters wait until it is back. When it is back after that it is told.
- *of so many others that the rest is no majority*: the step that would need them is not taken until they are back.

A topic that is made meanwhile begins with those who vote in the control group where its creation stands in the log.
If that is too many or too few, its first leader finds that out from the rows, as for any other group. There is no
order among the groups for that reason, but for the two ends that are named above, and for two more. Where a leader is
the only voter, a second one votes nowhere before it has everything in all groups that this leader has: from the first
group in which it votes, both are needed, and should it be lost for good then, so are the decisions of that group. Where
two become one, the control group is the last: as long as any partition needs both, so does what is decided about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.consensus.members import ReplicaId
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.errors import BadValue, CallerError
from holdfast.model.member_errors import MembershipChanging, NodeNotFound, WouldLoseQuorum

# So many lives of a node are remembered as gone. They are hexadecimal times, so the newest ones sort last; a disk that
# was taken out so many times ago is not expected back.
LIVES_MAX: Final = 64


class Place(StrEnum):
    JOINING = "joining"
    VOTER = "voter"
    LEAVING = "leaving"
    REMOVED = "removed"


class Kind(StrEnum):
    """What a command does to a row."""

    JOIN = "join"
    SETTLE = "settle"
    LEAVE = "leave"
    KEEP = "keep"
    GONE = "gone"
    REPLACE = "replace"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class Member(NamedTuple):
    """A row. `number` is that of the command which made it so; `replaces` names the node whose place this one takes."""

    node: str
    place: Place
    number: int
    since_ms: int
    # The lives of its disk with which it left, this time or before: they never come back.
    lives: tuple[str, ...] = ()
    replaces: str = ""
    is_drained: bool = False


class Change(NamedTuple):
    """`expects` is the number of the row that it was made for, 0 for none; `other` is the node that is replaced."""

    kind: Kind
    node: str
    expects: int
    since_ms: int
    other: str = ""


class Membership:
    """The rows of all nodes that have one.

    `replicas` are always the voters and learners of the control group where a command stands.
    """

    def __init__(self, rows: Iterable[Member] = ()) -> None:
        self.rows = {row.node: row for row in rows}

    # --- facts ------------------------------------------------------------------------------------

    def number_of(self, node: str) -> int:
        row = self.rows.get(node)
        return 0 if row is None else row.number

    def place_of(self, node: str, replicas: Collection[ReplicaId]) -> Place | None:
        """`None` for a node that has nothing to do with this cluster."""
        row = self.rows.get(node)
        if row is not None:
            return row.place
        return Place.VOTER if node in map(node_of, replicas) else None

    def wanted(self, replicas: Collection[ReplicaId]) -> set[str]:
        """The nodes that belong to every group."""
        named = {row.node for row in self.rows.values() if row.place in (Place.JOINING, Place.VOTER)}
        return named | {node_of(each) for each in replicas if node_of(each) not in self.rows}

    def goes(self, replica: ReplicaId) -> bool:
        """Whether it is to leave the groups it is in. One that nothing is known of stays."""
        row = self.rows.get(node_of(replica))
        if row is None:
            return False
        return row.place is Place.LEAVING or self.is_removed(replica)

    def is_removed(self, replica: ReplicaId) -> bool:
        """Whether it is no member for good."""
        row = self.rows.get(node_of(replica))
        return row is not None and row.place is not Place.LEAVING and life_of(replica) in row.lives

    def may_lead(self, node: str, *, at_need: bool = False) -> bool:
        """At need, a node that is drained leads rather than one that leaves: else that one never could."""
        row = self.rows.get(node)
        return row is None or not ((row.is_drained and not at_need) or row.place in (Place.LEAVING, Place.REMOVED))

    @property
    def under_way(self) -> Member | None:
        """The change that is not over."""
        return next((row for row in self.rows.values() if row.place in (Place.JOINING, Place.LEAVING)), None)

    # --- changes ----------------------------------------------------------------------------------

    def refusal(self, change: Change, replicas: Collection[ReplicaId]) -> CallerError | None:
        """Why it cannot be made; the same on every node."""
        row, place = self.rows.get(change.node), self.place_of(change.node, replicas)
        busy = self.under_way
        if change.kind is Kind.JOIN:
            if place is Place.LEAVING or (busy is not None and busy.node != change.node):
                return self._busy()
            return None
        if place is None or (place is Place.REMOVED and change.kind is not Kind.GONE):
            return NodeNotFound(f"{change.node} is no node of this cluster{' any more' if place else ''}")
        match change.kind:
            case Kind.LEAVE:
                if busy is not None and busy.node != change.node:
                    return self._busy()
                if self.wanted(replicas) <= {change.node}:
                    return WouldLoseQuorum(f"{change.node} is the last node of this cluster; stop it instead")
            case Kind.REPLACE:
                return self._replace_refusal(change, replicas)
            case Kind.DRAIN:
                if not any(node != change.node and self.may_lead(node) for node in self.wanted(replicas)):
                    return WouldLoseQuorum(f"nobody but {change.node} may lead; drain it when another one may")
            case Kind.SETTLE if place is not Place.JOINING:
                return MembershipChanging(f"{change.node} is not joining any more")
            case Kind.GONE if row is None or place is not Place.LEAVING:
                return MembershipChanging(f"{change.node} is not leaving any more")
        return None

    def _replace_refusal(self, change: Change, replicas: Collection[ReplicaId]) -> CallerError | None:
        busy = self.under_way
        other = self.place_of(change.other, replicas)
        if change.node == change.other:
            return BadValue(f"{change.node} cannot take its own place; give it an empty disk and start it again")
        if other is None or other is Place.REMOVED:
            return NodeNotFound(f"{change.other} is no node of this cluster")
        if busy is not None and busy.node not in (change.node, change.other):
            return self._busy()
        if self.place_of(change.node, replicas) is Place.LEAVING or other is Place.JOINING:
            return self._busy()
        return None

    def _busy(self) -> MembershipChanging:
        busy = self.under_way
        if busy is None:
            return MembershipChanging("the nodes changed meanwhile; look, then try again")
        undo = f"; `cluster remove {busy.node} --undo` has it stay" if busy.place is Place.LEAVING else ""
        return MembershipChanging(f"{busy.node} is {busy.place}, and that has to be over first{undo}")

    def apply(
        self, change: Change, number: int, replicas: Collection[ReplicaId], lives: Collection[str]
    ) -> list[Member]:
        """The rows that it changes. Raises why it cannot be made; one that was made already changes nothing.

        `lives` are those under which the control group knows the node, and the one it last said it had.
        """
        if self._is_made(change, replicas):
            return []
        if change.expects != self.number_of(change.node):
            raise self._busy()
        if (refusal := self.refusal(change, replicas)) is not None:
            raise refusal
        row = self.rows.get(change.node) or Member(change.node, Place.VOTER, 0, 0)
        row = row._replace(number=number, since_ms=change.since_ms)
        left = tuple(sorted({*row.lives, *lives})[-LIVES_MAX:])
        match change.kind:
            case Kind.JOIN:
                changed = [row._replace(place=Place.JOINING, replaces="", is_drained=False)]
            case Kind.SETTLE:
                changed = [row._replace(place=Place.VOTER, replaces=""), *self._leave(row, number)]
            case Kind.LEAVE:
                changed = [row._replace(place=Place.LEAVING, replaces="", lives=left)]
            case Kind.KEEP:
                kept = tuple(life for life in row.lives if life not in lives)
                changed = [row._replace(place=Place.JOINING, lives=kept)]
            case Kind.GONE:
                changed = [row._replace(place=Place.REMOVED, lives=left, is_drained=False)]
            case Kind.REPLACE if row.place is Place.JOINING:
                changed = [row._replace(replaces=change.other)]
            case Kind.REPLACE:
                changed = [row, *self._leave(row._replace(replaces=change.other), number)]
            case _:
                changed = [row._replace(is_drained=change.kind is Kind.DRAIN)]
        self.rows |= {row.node: row for row in changed}
        return changed

    def _leave(self, row: Member, number: int) -> list[Member]:
        """The node whose place another one has taken."""
        if not row.replaces:
            return []
        old = self.rows.get(row.replaces) or Member(row.replaces, Place.VOTER, 0, 0)
        if old.place is Place.REMOVED:
            return []
        return [old._replace(place=Place.LEAVING, number=number, since_ms=row.since_ms, replaces="")]

    def _is_made(self, change: Change, replicas: Collection[ReplicaId]) -> bool:
        row, place = self.rows.get(change.node), self.place_of(change.node, replicas)
        match change.kind:
            case Kind.JOIN | Kind.KEEP:
                return place in (Place.JOINING, Place.VOTER)
            case Kind.SETTLE:
                return place is Place.VOTER
            case Kind.LEAVE:
                return place is Place.LEAVING
            case Kind.GONE:
                return place is Place.REMOVED
            case Kind.DRAIN | Kind.UNDRAIN:
                return (row is not None and row.is_drained) == (change.kind is Kind.DRAIN) and place is not None
            case Kind.REPLACE:
                old = self.rows.get(change.other)
                is_noted = row is not None and row.replaces == change.other
                return is_noted or (old is not None and old.place is Place.LEAVING and place is Place.VOTER)


def next_change(
    membership: Membership,
    control: Raft,
    groups: Collection[Raft],
    since_ms: int,
    *,
    is_current: Callable[[Raft], bool],
    is_well: Callable[[ReplicaId], bool],
) -> Change | None:
    """What the leader of the control group proposes: that the change under way is over, once it is in every group.

    `groups` are all others, as this node knows them, which may be from before the change began. So one counts only if
    it `is_current`: its leader has said since then up to where it has decided, and that is known here. What has joined
    also has to be well: another one may leave because of it.
    """
    row = membership.under_way
    if row is None or control.leading is None or not control.leading.is_settled or not _is_decided(control):
        return None
    if row.place is Place.JOINING:
        # Under one name everywhere: a disk that was lost meanwhile is replaced group by group.
        names = {voter for voter in control.members.voters if node_of(voter) == row.node}
        votes = all(_is_decided(raft) and names <= raft.members.voters for raft in groups)
        if len(names) == 1 and votes and all(map(is_well, names)) and all(map(is_current, groups)):
            return Change(Kind.SETTLE, row.node, row.number, since_ms)
        return None
    votes_here = row.node in map(node_of, control.members.voters)
    is_elsewhere = any(not _is_decided(raft) or row.node in map(node_of, raft.members.everybody) for raft in groups)
    is_out = not votes_here and not is_elsewhere and all(map(is_current, groups))
    return None if not is_out else Change(Kind.GONE, row.node, row.number, since_ms)


def _is_decided(raft: Raft) -> bool:
    return raft.members_index <= raft.commit
