"""Who is let in or taken out next: a group that goes on without a node must not count on one that is lost."""

from __future__ import annotations

from holdfast.consensus.letting_in import LettingIn
from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.membership import Kind, Member, Membership, Place, next_change
from holdfast.consensus.messages import HardState, Heartbeat, HeartbeatReply, VoteReply
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of
from holdfast.model.ids import LogIndex, Term

NAMES = tuple(map(ReplicaId, ("n0.a", "n1.a", "n2.a")))


class Group:
    """A leader of three, of whom the others have everything, and `n1` is to go."""

    def __init__(self, voters: tuple[ReplicaId, ...] = NAMES) -> None:
        first = MembersAt(LogIndex(-1), Term(0), Members.of(voters))
        shape = LogShape(LogIndex(-1), Term(0), LogIndex(-1))
        self.raft = Raft(NAMES[0], shape=shape, hard_state=HardState(Term(0), NOBODY, (first,)), dice=lambda _: 0)
        self.raft.campaign()
        for is_trial in (True, False):
            self.settle()
            for name in voters[1:]:
                self.raft.step(name, VoteReply(Term(1), is_granted=True, is_trial=is_trial))
        self.raft.appended()
        self.raft.log_durable(LogIndex(0))
        for name in voters[1:]:
            self.raft.step(name, HeartbeatReply(Term(1), 0, LogIndex(0)))
        self.settle()

    def settle(self) -> list[tuple[ReplicaId, int]]:
        """Everything is on the disk; the heartbeats that are sent meanwhile."""
        ready = self.raft.ready()
        self.raft.saved(ready.hard_state_number)
        messages = [*ready.messages, *self.raft.ready().messages]
        return [(name, message.round) for name, message in messages if isinstance(message, Heartbeat)]


def _step(
    letting_in: LettingIn, group: Group, *, beside: tuple[Raft, ...] = (), is_informed: bool = True
) -> Members | None:
    assert group.raft.leading is not None and group.raft.leading.is_settled
    step = letting_in.next_members(
        group.raft.leading,
        group.raft,
        wanted=("n0",),
        goes=lambda replica: node_of(replica) == "n1",
        is_informed=lambda: is_informed,
        beside=beside,
        leaves_last=bool(beside),
    )
    letting_in.looked([group.raft])
    return step


def test_nobody_is_taken_out_before_the_rest_has_answered_anew() -> None:
    group, letting_in = Group(), LettingIn(lambda node: "a")
    assert _step(letting_in, group) is None
    rounds = dict(group.settle())
    assert set(rounds) == set(NAMES[1:])
    assert _step(letting_in, group) is None, "what they said before proves nothing"
    group.raft.step(NAMES[1], HeartbeatReply(Term(1), rounds[NAMES[1]], LogIndex(0)))
    assert _step(letting_in, group) is None, "the one that goes does not answer for those who stay"
    group.raft.step(NAMES[2], HeartbeatReply(Term(1), rounds[NAMES[2]], LogIndex(0)))
    assert _step(letting_in, group) == Members.of(["n0.a", "n2.a"])


def test_answer_to_a_wish_of_before_does_not_count() -> None:
    group, letting_in = Group(), LettingIn(lambda node: "a")
    assert _step(letting_in, group) is None
    rounds = dict(group.settle())
    group.raft.step(NAMES[2], HeartbeatReply(Term(1), rounds[NAMES[2]], LogIndex(0)))
    letting_in.looked([group.raft])  # a look at which nobody was to go
    assert _step(letting_in, group) is None


def test_reign_that_does_not_know_the_newest_rows_takes_nobody_out() -> None:
    group, letting_in = Group(), LettingIn(lambda node: "a")
    assert _step(letting_in, group, is_informed=False) is None
    assert not letting_in.evidence.asks(group.raft) and not group.settle()


def test_where_two_become_one_the_control_group_is_the_last() -> None:
    control, partition, letting_in = Group(NAMES[:2]), Group(NAMES[:2]), LettingIn(lambda node: "a")
    assert _step(letting_in, control, beside=(control.raft, partition.raft)) is None
    alone = _step(letting_in, partition)
    assert alone == Members.of(["n0.a"])
    partition.raft.appended_members(alone)
    assert _step(letting_in, control, beside=(control.raft, partition.raft)) is None, "it is not committed yet"
    partition.raft.log_durable(LogIndex(1))
    assert _step(letting_in, control, beside=(control.raft, partition.raft)) == alone


def test_nobody_counts_as_gone_or_joined_by_logs_that_may_be_old_nor_joined_while_it_is_not_well() -> None:
    control, partition = Group(NAMES[:2]), Group(NAMES[:2])
    for node, place, kind in (("n2", Place.LEAVING, Kind.GONE), ("n1", Place.JOINING, Kind.SETTLE)):
        rows = Membership([Member(node, place, 7, 0)])

        def proposed(*, is_current: bool, is_well: bool, rows: Membership = rows) -> Kind | None:
            change = next_change(
                rows,
                control.raft,
                [partition.raft],
                0,
                is_current=lambda raft: is_current,
                is_well=lambda replica: is_well,
            )
            return None if change is None else change.kind

        assert proposed(is_current=True, is_well=True) is kind
        assert proposed(is_current=False, is_well=True) is None
        assert proposed(is_current=True, is_well=False) is (Kind.GONE if kind is Kind.GONE else None)


def test_node_that_loses_its_disk_while_it_is_let_in_again_still_belongs_to_the_group() -> None:
    group = Group(NAMES[:2])
    group.raft.appended_members(Members.of(["n0.a", "n1.a"], ["n2.a"]))
    group.raft.log_durable(LogIndex(1))
    group.raft.step(NAMES[1], HeartbeatReply(Term(1), 0, LogIndex(1)))
    letting_in = LettingIn({"n0": "a", "n1": "a", "n2": "b"}.get)
    assert group.raft.leading is not None
    step = letting_in.next_members(group.raft.leading, group.raft, wanted=("n0", "n1"))
    assert step == Members.of(["n0.a", "n1.a"], ["n2.b"])
