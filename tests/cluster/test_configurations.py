"""Every node goes by the same members of the cluster, also after a crash; one that does not is not talked to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster import opening, snapshots
from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.commands import NoteNode
from holdfast.backends.cluster.configurations import Known, is_outvoted
from holdfast.backends.cluster.control import CONTROL
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.hard_states import HardStates
from holdfast.backends.cluster.state import Loaded
from holdfast.consensus.members import Members, MembersAt, ReplicaId
from holdfast.consensus.membership import Place
from holdfast.consensus.messages import HardState
from holdfast.model.errors import NoQuorum, Unavailable
from holdfast.model.ids import GroupId, LogIndex, Offset, PartitionId, Term, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal

ORDERS, LATER = TopicName("orders"), TopicName("later")


@pytest.fixture(autouse=True)
def _short_control_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_CONTROL_SEGMENT_BYTES", 1 << 16)
    monkeypatch.setattr(snapshots, "_UNREAD_S", 0.2)


def members_of(backend: ClusterBackend) -> Members:
    return backend.control.replica.raft.members


async def add_voter(nodes: Nodes, name: str) -> None:
    nodes.add(name, "n1")
    nodes.peers_of["n3"] = {each: nodes.addresses[each] for each in ("n1", "n2", "n3")}
    await nodes.start(name)

    def is_voter(other: str) -> bool:
        row = nodes.backends[other].state.membership.rows.get(name)
        return row is not None and row.place is Place.VOTER

    await until(lambda: is_voter("n1") and is_voter("n2"))


async def drop_control_log(nodes: Nodes) -> None:
    """The nodes that run forget what their control logs say now."""
    first = nodes.backends["n1"]
    before = first.control.replica.log.last_index

    async def is_dropped() -> bool:
        await first._proposals.propose(NoteNode("filler", "1", {"x": "y" * 20_000}))
        return all(each.control.replica.log.first_index > before for each in nodes.backends.values())

    await until(is_dropped)


async def killed_when_it_has_the_state(nodes: Nodes, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n3 takes the state of another node over, and is killed before its control log is as far."""
    left = root / "left"
    really_replace = ControlState.replace

    async def copied(self: ControlState, loaded: Loaded) -> None:
        if not left.exists() and self._raft.replica.startswith("n3"):
            shutil.copytree(root / "n3", left)  # what a kill leaves at this moment
        await really_replace(self, loaded)

    with monkeypatch.context() as patched:
        patched.setattr(ControlState, "replace", copied)
        await nodes.start("n3")
        await until(left.exists)
    await nodes.stop("n3")
    shutil.rmtree(root / "n3")
    left.rename(root / "n3")


@pytest.mark.parametrize("is_changed_again", [False, True])
async def test_node_killed_while_it_takes_a_state_over_goes_by_the_members_of_that_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed_again: bool
) -> None:
    """With the members of before, two of five nodes could acknowledge, and what they acknowledge would be lost."""
    async with running(tmp_path) as nodes:
        first = nodes.backends["n1"]
        await first.create_topic(ORDERS, TopicConfig())
        await until(lambda: all(ORDERS in each.topics_here.known for each in nodes.backends.values()))
        itself = nodes.backends["n3"].groups.me
        await nodes.stop("n3")
        await drop_control_log(nodes)
        await add_voter(nodes, "n4")
        if is_changed_again:
            # Where the log of the others begins, another configuration holds than at the end of their state.
            await drop_control_log(nodes)
        await add_voter(nodes, "n5")
        await until(lambda: first.control.kept == first.control.applied)
        await killed_when_it_has_the_state(nodes, tmp_path, monkeypatch)

        await nodes.start("n3")
        third = nodes.backends["n3"]
        assert third.groups.me == itself, "it keeps its vote and its messages"
        await until(lambda: third.control.applied == nodes.backends["n1"].control.applied)
        assert len(members_of(third).voters) == 5
        assert {members_of(each) for each in nodes.backends.values()} == {members_of(first)}
        await first.create_topic(LATER, TopicConfig())
        await until(lambda: PartitionId(LATER, 0) in third.topics_here.replicas)
        assert third.topics_here.known[LATER].voters == first.topics_here.known[LATER].voters
        assert not nodes.failed


async def test_node_that_cannot_save_the_members_of_a_state_for_a_moment_takes_it_over_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as nodes:
        first = nodes.backends["n1"]
        await until(lambda: nodes.backends["n3"].control.applied > 0)
        await nodes.stop("n3")
        await drop_control_log(nodes)
        refused: list[int] = []
        really_put = HardStates.put

        def put(self: HardStates, group: GroupId, state: HardState, on_saved: Callable[[], None]) -> None:
            if group == CONTROL and group in self._expected and len(refused) < 2:
                refused.append(group)
                raise Unavailable("out of memory")
            really_put(self, group, state, on_saved)

        monkeypatch.setattr(HardStates, "put", put)
        await nodes.start("n3")
        third = nodes.backends["n3"]
        await until(lambda: third.control.applied == first.control.applied)
        assert refused
        assert not nodes.failed


async def all_disagree(*asked: Awaitable[object]) -> None:
    """Each waits some seconds for a leader before it is refused."""
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, NoQuorum) and "disagree" in each.message for each in outcomes), outcomes


async def test_node_that_goes_by_other_members_is_not_talked_to_and_says_so(tmp_path: Path) -> None:
    """With the members of long ago it could acknowledge what the others never get."""
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
        await until(lambda: all(ORDERS in each.topics_here.known for each in nodes.backends.values()))
        alone = Members(frozenset({nodes.backends["n3"].groups.me}))
        await nodes.stop("n3")
        set_members(tmp_path / "n3", alone)
        with capture_logs() as logs:
            await nodes.start("n3")
            third = nodes.backends["n3"]
            await until(lambda: "disagree" in (third.problem() or ""))
        assert {line["event"] for line in logs if "disagree" in str(line.get("reason"))} >= {"peer_refused"}
        assert not third.neighbours.is_up("n1")
        await all_disagree(
            nodes.brokers["n3"].publish(ORDERS, [NewMessage(value=b"for one of three")]),
            third.create_topic(LATER, TopicConfig()),
            third.catch_up(PartitionId(ORDERS, 0)),
        )
        assert third.groups.staleness_ms(third.control.replica) > 0
        await until(lambda: nodes.backends["n1"].problem() is None)
        await nodes.brokers["n1"].publish(ORDERS, [NewMessage(value=b"for two of three")])
        assert not third.control.replica.leads


async def test_node_that_goes_by_other_members_takes_part_again_when_the_others_agree_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
        third = nodes.backends["n3"]
        await until(lambda: ORDERS in third.topics_here.known)
        alone = Members(frozenset({nodes.backends["n1"].groups.me}))
        other = Known(LogIndex(0), MembersAt(LogIndex(-1), Term(0), alone)).encode()
        told = [nodes.backends[name].neighbours.own_hello() for name in ("n1", "n2")]
        await nodes.stop("n1", "n2")
        await until(lambda: not (third.neighbours.is_up("n1") or third.neighbours.is_up("n2")))
        for hello in told:
            disagreeing = msgspec.structs.replace(hello, facts=hello.facts | {"configuration": other})
            assert "disagree" in (third.neighbours.refusal(disagreeing) or "")
        assert third.neighbours.is_outvoted
        await until(lambda: third.control.replica.raft.leader == "")
        await nodes.start("n1", "n2")
        await until(lambda: third.problem() is None)
        await nodes.brokers["n3"].publish(ORDERS, [NewMessage(value=b"of three")])


async def test_others_go_on_without_a_leader_that_stands_aside_also_where_a_topic_was_idle(tmp_path: Path) -> None:
    """Groups that sleep elect nobody while their leader's node seems to be well."""
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
        await nodes.brokers["n1"].publish(ORDERS, [NewMessage(value=b"before")])
        partition = PartitionId(ORDERS, 0)
        before = await nodes.leader(ORDERS)
        led, others = nodes.backends[before], [each for name, each in nodes.backends.items() if name != before]
        await until(lambda: all(each.topics_here.replicas[partition].raft.is_asleep for each in (led, *others)))
        elsewhere = Known(LogIndex(2), MembersAt(LogIndex(-1), Term(0), Members.of(["n6.a", "n7.a", "n8.a", "n9.a"])))
        agreeing = msgspec.structs.replace(others[0].neighbours.own_hello(), node="n9")
        facts = agreeing.facts | {"configuration": elsewhere.encode()}
        assert "disagree" in (led.neighbours.refusal(msgspec.structs.replace(agreeing, facts=facts)) or "")

        await until(lambda: any(each.leads(partition) for each in others))
        await nodes.brokers[nodes.another_than(before)].publish(ORDERS, [NewMessage(value=b"of two of three")])
        await until(lambda: all(led.neighbours.is_up(each.neighbours.node) for each in others))
        assert led.neighbours.is_outvoted
        assert not led.leads(partition)
        assert led.neighbours.refusal(agreeing) is None
        await until(lambda: led.topics_here.replicas[partition].end == 2)


def set_members(directory: Path, members: Members) -> None:
    """Have a node that is stopped go by these members where its control log begins."""
    states = HardStates(*VoteJournal.open(directory / "votes.log"))
    state = states.of(CONTROL)
    assert state is not None
    states.put(CONTROL, state._replace(members=(MembersAt(LogIndex(-1), Term(0), members),)), lambda: None)
    states.sync_now()
    states.journal.close()


async def made_stale(nodes: Nodes, root: Path, *names: str) -> None:
    """Stop nodes, and leave them as a kill did whose configuration did not come with the state it took over."""
    founders = Members(frozenset(nodes.backends[name].groups.me for name in ("n1", "n2", "n3")))
    await until(lambda: all(each.control.kept == each.control.applied for each in nodes.backends.values()))
    await nodes.stop(*names)
    for name in names:
        with contextlib.closing(sqlite3.connect(root / name / "state.sqlite")) as state:
            applied, term = state.execute("SELECT log_index, term FROM applied").fetchone()
        control_log, _ = PartitionLog.open(root / name / "control")
        control_log.reset(LogIndex(applied + 1), Offset(0), Term(term))
        control_log.close()
        set_members(root / name, founders)


async def test_two_of_five_nodes_that_go_by_the_founders_acknowledge_nothing(tmp_path: Path) -> None:
    """They are a majority of the founders; the others would never get what they acknowledge."""
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
        await add_voter(nodes, "n4")
        await add_voter(nodes, "n5")
        await until(lambda: all(len(members_of(each).voters) == 5 for each in nodes.backends.values()))
        await made_stale(nodes, tmp_path, "n2", "n3")
        for name in ("n2", "n3"):
            # Nothing in the directory tells that the members are old.
            with contextlib.closing(sqlite3.connect(tmp_path / name / "state.sqlite")) as state:
                state.execute("DELETE FROM members")
                state.commit()
        await nodes.start("n2", "n3")
        stale = [nodes.backends[name] for name in ("n2", "n3")]
        await until(lambda: all("disagree" in (each.problem() or "") for each in stale))
        await all_disagree(
            stale[0].create_topic(LATER, TopicConfig()),
            nodes.brokers["n3"].publish(ORDERS, [NewMessage(value=b"for two of five", id="1")]),
        )
        await nodes.brokers["n4"].create_topic(LATER, TopicConfig())
        await nodes.brokers["n1"].publish(LATER, [NewMessage(value=b"for three of five", id="1")])
        assert all(LATER not in each.topics_here.known and not each.control.replica.leads for each in stale)


def known(entry: int, since: int, *voters: str, term: int = 1) -> Known:
    return Known(LogIndex(entry), MembersAt(LogIndex(since), Term(term), Members.of(voters)))


FOUNDERS = known(90, -1, "n1.a", "n2.b", "n3.c", term=0)
FIVE = known(90, 50, "n1.a", "n2.b", "n3.c", "n4.d", "n5.e")
OF_ONE = known(90, -1, "n3.c", term=0)


@pytest.mark.parametrize(
    ("own", "agreeing", "contradicting"),
    [
        pytest.param(FOUNDERS, ["n2", "n3"], [FIVE], id="a majority of the founders that hears of one of five"),
        pytest.param(FOUNDERS, ["n2", "n3"], [FIVE] * 3, id="and of three of five"),
        pytest.param(OF_ONE, ["n3"], [FOUNDERS], id="one of three that thinks it is alone"),
        pytest.param(known(90, -1, "n1.a"), ["n1"], [known(99, 50, "n1.a", "n2.b")], id="one of two"),
    ],
)
def test_node_that_goes_by_older_members_is_outvoted(
    own: Known, agreeing: list[str], contradicting: list[Known]
) -> None:
    assert is_outvoted(own, agreeing, contradicting)


@pytest.mark.parametrize(
    ("own", "agreeing", "contradicting"),
    [
        pytest.param(FIVE, ["n1", "n4", "n5"], [FOUNDERS] * 2, id="the other three of five"),
        pytest.param(FIVE, ["n1", "n4"], [FOUNDERS] * 2, id="one that is linked to their leader only"),
        pytest.param(FOUNDERS, ["n1", "n2"], [OF_ONE], id="two of three, of which one thinks it is alone"),
        pytest.param(known(99, 50, "n1.a"), ["n1"], [FOUNDERS] * 2, id="the last of three, after the others left"),
        pytest.param(FOUNDERS, ["n1"], [], id="one that nobody disagrees with"),
        pytest.param(
            FOUNDERS, ["n1", "n2", "n3"], [known(99, 50, "n1.a", "n2.b", "n3.c", "n4.d")], id="most of four nodes"
        ),
    ],
)
def test_nodes_that_are_most_are_not_outvoted(own: Known, agreeing: list[str], contradicting: list[Known]) -> None:
    assert not is_outvoted(own, agreeing, contradicting)


def test_what_was_decided_later_does_not_contradict_what_was_known_before() -> None:
    assert not known(10, 5, "a", "b").contradicts(known(20, 15, "a", "b", "c"))
    assert not known(20, 15, "a", "b", "c").contradicts(known(10, 5, "a", "b"))
    assert not known(10, 5, "a", "b").contradicts(known(30, 5, "a", "b"))


@pytest.mark.parametrize("other", [known(30, 8, "a", "b", "c"), known(30, 5, "a"), known(30, 5, "a", "b", term=2)])
def test_two_configurations_of_one_entry_contradict_each_other(other: Known) -> None:
    assert known(10, 5, "a", "b").contradicts(other)
    assert other.contradicts(known(10, 5, "a", "b"))


def test_configuration_is_told_as_it_is_known() -> None:
    told = known(10, -1, "n1.ab", "n2.cd", term=0)
    assert Known.decode(told.encode()) == told


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 3 a|", "x 1 1 a|", "9 1 1 ", "9 1 1 b,a|", "09 1 1 a|"])
def test_what_is_no_configuration_is_noticed(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Known.decode(text)


def test_expected_configuration_is_saved_until_the_log_has_a_later_one(tmp_path: Path) -> None:
    def at(since: int) -> MembersAt:
        return MembersAt(LogIndex(since), Term(1), Members.of(["a", f"b{since}"]))

    def kept(*history: int) -> list[int]:
        state = HardState(Term(1), ReplicaId(""), tuple(map(at, history)))
        states.put(CONTROL, state, lambda: None)
        states.sync_now()
        found = states.of(CONTROL)
        assert found is not None
        return [each.since for each in found.members]

    states = HardStates(*VoteJournal.open(tmp_path / "votes.log"))
    states.expect(CONTROL, Known(LogIndex(20), at(15)))
    assert kept(3, 7) == [3, 7, 15]
    assert kept(15) == [15, 15]
    assert kept(15, 25) == [15, 25]
    assert kept(15) == [15]
    states.journal.close()


async def test_node_that_lost_its_votes_is_let_in_though_it_knows_only_the_founders(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await add_voter(nodes, "n4")
        await drop_control_log(nodes)
        await until(lambda: nodes.backends["n3"].control.replica.raft.shape.base_index > 0)
        life = nodes.backends["n3"].groups.me
        await nodes.stop("n3")
        (tmp_path / "n3" / "votes.log").unlink()
        await nodes.start("n3")
        third = nodes.backends["n3"]
        assert third.groups.me != life
        await until(lambda: third.groups.me in members_of(third).voters and len(members_of(third).voters) == 4)
        await until(lambda: {members_of(each) for each in nodes.backends.values()} == {members_of(third)})
        assert not nodes.failed
