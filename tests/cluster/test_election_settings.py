"""Each node may say how long it waits for a leader, how often it says that it leads, and who leads first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import Role
from holdfast.consensus.timing import DEFAULT_TIMING, ElectionSettings, Timing
from holdfast.model.errors import ConfigError
from holdfast.model.ids import LogIndex, Term
from holdfast.node.config import load

PEERS = "n1=127.0.0.1:8100,n2=127.0.0.1:8101,n3=127.0.0.1:8102"
CLUSTER = {"peers": PEERS, "peer": "127.0.0.1:8100"}
STORE = {"store": "postgresql://localhost/x"}
PAIR = {"pair": "primary", "peers": PEERS.rpartition(",")[0], "peer": "127.0.0.1:8100"}


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, ElectionSettings()),
        ({"heartbeat_ms": "400"}, ElectionSettings(400, 2000, 4000)),
        ({"heartbeat_ms": "500", "election_timeout_ms": "2000:4000"}, ElectionSettings(500, 2000, 4000)),
        ({"election_timeout_ms": "700"}, ElectionSettings(100, 700, 700)),
        ({"initial_leader": "n2"}, ElectionSettings(initial_leader="n2")),
        ({"shrink_after_ms": "5000"}, ElectionSettings(shrink_after_ms=5000)),
        # Alone so far, and others may join it.
        ({"peers": "", "shrink_after_ms": "5000"}, ElectionSettings(shrink_after_ms=5000)),
    ],
)
def test_settings_of_elections_reach_the_consensus(flags: dict[str, str], wanted: ElectionSettings) -> None:
    assert load(None, {}, CLUSTER | flags).election_settings == wanted


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (CLUSTER | {"election_timeout_ms": "soon"}, "write MIN:MAX milliseconds"),
        (CLUSTER | {"election_timeout_ms": "500:"}, "write MIN:MAX milliseconds"),
        (CLUSTER | {"election_timeout_ms": "800:500"}, "MIN is not above MAX"),
        (CLUSTER | {"election_timeout_ms": "150:500"}, "two heartbeats of 100 ms"),
        (CLUSTER | {"heartbeat_ms": "1000", "election_timeout_ms": "500:1000"}, "two heartbeats of 1000 ms"),
        (CLUSTER | {"election_timeout_ms": "1000:700000"}, "at most 600000"),
        (CLUSTER | {"heartbeat_ms": "60001"}, "heartbeat_ms is '60001'"),
        (CLUSTER | {"initial_leader": "n9"}, "not a node of this cluster; they are n1, n2, n3"),
        (STORE | {"initial_leader": "n1"}, "holds no elections"),
        (STORE | {"heartbeat_ms": "200"}, "has no peers"),
        (PAIR | {"election_timeout_ms": "500:1000"}, "one of a pair holds no elections"),
        (PAIR | {"shrink_after_ms": "5000"}, "one of a pair holds no elections"),
        (CLUSTER | {"shrink_after_ms": "100"}, "shrink_after_ms is '100'"),
        ({"shrink_after_ms": "5000"}, "a broker without peers has nobody to go on without"),
        ({"misses": "5"}, "misses is a setting of a pair"),
        (CLUSTER | {"require_backup": "true"}, "require_backup is a setting of a pair"),
    ],
)
def test_settings_that_would_do_harm_or_nothing_are_refused(flags: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, {}, flags)
    assert why in refused.value.message


def test_pair_keeps_its_own_heartbeat() -> None:
    assert (settings := load(None, {}, PAIR).pair_settings) is not None and settings.heartbeat_s == 1.0
    assert (settings := load(None, {}, PAIR | {"heartbeat_ms": "200"}).pair_settings) is not None
    assert settings.heartbeat_s == 0.2


def test_default_settings_are_the_default_timing() -> None:
    assert ElectionSettings().timing(50) == DEFAULT_TIMING


def raft(timing: Timing = DEFAULT_TIMING, *, term: int = 0, dice: Callable[[int], int] = lambda sides: 0) -> Raft:
    """A member of a new control group: its log is empty, and its first entry will be number 1."""
    members = MembersAt(LogIndex(-1), Term(0), Members.of(["n1", "n2", "n3"]))
    shape = LogShape.of_runs(LogIndex(0), Term(0), [], LogIndex(0))
    return Raft(
        ReplicaId("n1"), shape=shape, hard_state=HardState(Term(term), NOBODY, (members,)), dice=dice, timing=timing
    )


def ticks_until_it_stands(member: Raft) -> int:
    ticks = 0
    while member.role is Role.FOLLOWER:
        member.tick()
        ticks += 1
    return ticks


def test_timeout_is_drawn_between_its_bounds() -> None:
    timing = ElectionSettings(timeout_ms_min=700, timeout_ms_max=1200).timing(50)
    shortest, longest = raft(timing), raft(timing, dice=lambda sides: sides - 1)
    assert (ticks_until_it_stands(shortest) - 1) * 50 == 700
    assert ticks_until_it_stands(longest) * 50 == 1200
    exactly = ElectionSettings(timeout_ms_min=700, timeout_ms_max=700).timing(50)
    assert ticks_until_it_stands(raft(exactly)) == ticks_until_it_stands(raft(exactly, dice=lambda sides: sides - 1))


def test_initial_leader_stands_at_once_and_the_others_give_it_time() -> None:
    first, other, usual = raft(), raft(), raft()
    first.stand_first(is_first=True)
    other.stand_first(is_first=False)
    assert first.role is Role.TRIAL
    assert ticks_until_it_stands(other) == 2 * ticks_until_it_stands(usual)


def test_initial_leader_has_no_say_once_the_cluster_has_had_a_leader() -> None:
    later = raft(term=3)
    later.stand_first(is_first=True)
    assert later.role is Role.FOLLOWER


async def test_initial_leader_leads_a_new_cluster(tmp_path: Path) -> None:
    # Only a node that stands before its timeout can lead while the test waits.
    async with running(tmp_path, election_timeout_ms="60000", initial_leader="n2") as nodes:
        control = nodes.backends["n1"].control.replica
        await until(lambda: control.leader_node is not None)
        assert control.leader_node == "n2"


async def test_node_with_the_shortest_timeout_leads_after_the_leader_is_gone(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, election_timeout_ms="60000", initial_leader=None)
    nodes.settings_of["n2"] = {"election_timeout_ms": "500"}
    await nodes.start()
    try:
        control = nodes.backends["n1"].control.replica
        await until(lambda: control.leader_node == "n2")
    finally:
        await nodes.stop()


async def test_node_whose_heartbeats_are_too_rare_is_refused_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path) as nodes:
        await nodes.stop("n3")
        nodes.settings_of["n3"] = {"heartbeat_ms": 1000, "election_timeout_ms": "5000:10000"}
        await nodes.start("n3")
        assert not nodes.backends["n3"].neighbours.is_up("n1")
        assert nodes.backends["n1"].neighbours.is_up("n2")
        said = capsys.readouterr()
        assert "set election_timeout_ms of n1 to at least 2000" in said.out + said.err
