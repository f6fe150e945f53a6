"""Nodes of two builds: the level rises when all can follow, is kept, and whoever cannot follow leaves."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from testkit.inprocess import Nodes, now_ms, running
from testkit.wait import until

from holdfast.backends.cluster import commands, levels
from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.commands import NoteNode, PreferLeader, RaiseLevel
from holdfast.backends.cluster.formation import Formation
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.pace import Pace
from holdfast.backends.cluster.requests import Method
from holdfast.backends.cluster.upkeep import Upkeep
from holdfast.model.entries import KIND_COMMAND
from holdfast.model.errors import BuildTooOld, ClusterLevelTooLow, HoldfastError, NotLeader
from holdfast.model.ids import TopicName
from holdfast.storage.directory import DataDirectory
from holdfast.wire.peer import Hello
from tests.cluster.builds import NEW, OLD, OLD_SCHEMA, Build
from tests.cluster.link_nodes import LinkNode


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    return Build(monkeypatch)


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to happen must not wait for whoever looks once a second."""
    monkeypatch.setattr(Nodes, "pace", Pace(upkeep_s=3600.0, pair_s=3600.0))


@pytest.fixture
def by_hand(nobody_looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes say nothing of themselves, and nobody raises a level, but the test."""
    monkeypatch.setattr(Upkeep, "_tell_addresses", lambda self: None)
    monkeypatch.setattr(Upkeep, "_raise_level", lambda self: None)


def level_of(nodes: Nodes) -> set[int]:
    return {backend.state.level.number for backend in nodes.backends.values()}


async def control_leader(nodes: Nodes) -> ClusterBackend:
    def found() -> list[ClusterBackend]:
        return [backend for backend in nodes.backends.values() if backend.control.replica.leads]

    await until(lambda: bool(found()))
    return found()[0]


def note(backend: ClusterBackend, level: int, node: str | None = None) -> NoteNode:
    node = node or backend.node_id
    return NoteNode(node, backend.neighbours.life_of(node) or "", {}, "1.0", level)


def user_version(nodes: Nodes, node: str) -> int:
    with sqlite3.connect(nodes.root / node / "state.sqlite") as found:
        return int(found.execute("PRAGMA user_version").fetchone()[0])


# --- up -----------------------------------------------------------------------------------------------


async def test_new_cluster_can_do_everything_at_once_and_still_can_after_a_restart(
    tmp_path: Path, build: Build, nobody_looks: None
) -> None:
    build.is_later()
    async with running(tmp_path) as nodes:
        await until(lambda: level_of(nodes) == {NEW})
    again = Nodes(tmp_path)
    again.addresses = nodes.addresses
    await again.start()
    assert level_of(again) == {NEW}
    assert {backend.neighbours.own_hello().facts["cluster_level"] for backend in again.backends.values()} == {str(NEW)}
    await again.stop()


async def test_pair_can_do_everything_soon(tmp_path: Path, build: Build) -> None:
    build.is_later()
    nodes = Nodes(tmp_path, count=2, is_pair=True)
    await nodes.start()
    await until(lambda: level_of(nodes) == {NEW})
    await nodes.stop()


async def test_broker_that_stands_alone_is_at_its_level_before_it_serves(
    tmp_path: Path, build: Build, nobody_looks: None
) -> None:
    alone = Nodes(tmp_path, count=1)
    await alone.start()
    assert level_of(alone) == {OLD}
    await alone.stop()
    build.is_later()
    await alone.start()
    assert level_of(alone) == {NEW}
    await alone.stop()


@pytest.mark.parametrize("lost", [False, True], ids=["new directory", "its state was lost"])
async def test_partner_of_a_broker_that_stood_alone_gets_the_level_from_its_log(
    tmp_path: Path, build: Build, lost: bool
) -> None:
    build.is_later()
    alone = Nodes(tmp_path, count=1)
    await alone.start()
    await alone.stop()
    if lost:
        (tmp_path / "n1" / "state.sqlite").unlink()
        await alone.start()
        assert level_of(alone) == {NEW}
        await alone.stop()
    pair = Nodes(tmp_path, count=2, is_pair=True)
    await pair.start()
    await until(lambda: level_of(pair) == {NEW})
    await pair.stop()


async def test_older_build_can_be_started_again_until_the_level_is_raised(tmp_path: Path, build: Build) -> None:
    async with running(tmp_path) as nodes:
        await until(lambda: all(len(backend.state.nodes) == 3 for backend in nodes.backends.values()))
    build.is_later()
    await nodes.start("n1", "n2")
    leader = await control_leader(nodes)
    await until(lambda: [leader.state.nodes[name].level for name in ("n1", "n2", "n3")] == [NEW, NEW, OLD])
    leader.upkeep._raise_level()
    assert leader.upkeep._raising is None
    await nodes.stop()
    assert user_version(nodes, "n1") == OLD_SCHEMA
    build.is_older()
    await nodes.start()
    await until(lambda: {row.level for row in nodes.backends["n3"].state.nodes.values()} == {OLD})
    assert level_of(nodes) == {OLD} and nodes.failed == []
    await nodes.stop()


# --- what was true when it was proposed, and is not any more ------------------------------------------


async def test_level_is_not_raised_over_a_node_that_went_back_meanwhile(
    tmp_path: Path, build: Build, by_hand: None
) -> None:
    build.is_later()
    async with running(tmp_path) as nodes:
        leader = await control_leader(nodes)
        follower = nodes.backends[nodes.another_than(leader.node_id)]
        for backend in nodes.backends.values():
            await backend._proposals.propose(note(backend, NEW))
        await leader._proposals.propose(note(leader, OLD, node=follower.node_id))
        for proposer in (leader, follower):
            with pytest.raises(ClusterLevelTooLow, match=f"level {NEW} is not understood by {follower.node_id}"):
                await proposer._proposals.propose(RaiseLevel(NEW))
        await follower._proposals.propose(note(follower, NEW))
        assert level_of(nodes) == {OLD}
        await follower._proposals.propose(RaiseLevel(NEW))
        await until(lambda: level_of(nodes) == {NEW})


async def test_level_is_proposed_once_at_a_time_and_not_while_somebody_linked_cannot_follow(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: dict[str, int] = {"n9": OLD}
    monkeypatch.setattr(Neighbours, "levels_of_linked", lambda self: linked)
    build.is_later()
    async with running(tmp_path) as nodes:
        await until(lambda: all(len(backend.state.nodes) == 3 for backend in nodes.backends.values()))
        leader = await control_leader(nodes)
        leader.upkeep._raise_level()
        assert leader.upkeep._raising is None
        linked.clear()
        with capture_logs() as logs:
            leader.upkeep._raise_level()
            leader.upkeep._raise_level()
        assert [line["cluster_level"] for line in logs if line["event"] == "raising_level"] == [NEW]
        await until(lambda: level_of(nodes) == {NEW})
        await until(lambda: leader.upkeep._raising is None)


async def test_leader_that_has_not_seen_the_level_raised_takes_no_command_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(levels._LEVEL_OF, PreferLeader, NEW)
    nodes = Nodes(tmp_path, count=1)
    await nodes.start()
    backend = nodes.backends["n1"]
    wanted = commands.encode([PreferLeader(TopicName("orders"), "", 0, "n1")])
    before = backend.control.replica.log.last_index
    with pytest.raises(NotLeader, match="does not know yet that the cluster's level was raised"):
        await backend.serving.on_request("n2", Method.PROPOSE, memoryview(wanted))
    assert backend.control.replica.log.last_index == before
    await nodes.stop()


# --- whoever cannot follow ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_used", [False, True], ids=["nothing behind it", "something of that level behind it"])
async def test_older_build_that_meets_a_level_in_its_log_leaves_again_and_again(
    tmp_path: Path, by_hand: None, is_used: bool
) -> None:
    """The level was raised while nobody could know that these nodes had gone back to an older build."""
    async with running(tmp_path) as nodes:
        leader = await control_leader(nodes)
        said = [note(leader, NEW, node=name) for name in nodes.addresses]
        with capture_logs() as logs:
            leader.control.replica.append_note(KIND_COMMAND, commands.encode([*said, RaiseLevel(NEW)]))
            if is_used:
                leader.control.replica.append_note(KIND_COMMAND, msgspec.msgpack.encode([[99, "something new"]]))
            await until(lambda: sorted(nodes.failed) == ["n1", "n2", "n3"])
        assert {line["event"] for line in logs if line["log_level"] in ("error", "critical")} == {"build_too_old"}
        for backend in nodes.backends.values():
            assert f"level {NEW}" in (backend.problem() or "")
    again = Nodes(tmp_path)
    again.addresses = nodes.addresses
    ended = await asyncio.gather(*(again.start(name) for name in again.addresses), return_exceptions=True)
    if is_used:
        assert [type(each) for each in ended] == [BuildTooOld] * 3
    else:
        # Of those that are left when two have gone, nobody can decide anything.
        assert len(set(again.failed)) >= 2
        assert all(each is None or isinstance(each, BuildTooOld) for each in ended)
        assert level_of(again) <= {OLD}
        await again.stop()


@pytest.fixture
async def neighbours(tmp_path: Path) -> Neighbours:
    directory = DataDirectory.open(tmp_path / "n1", node="n1", now_ms=now_ms())
    found = Neighbours(directory, listen=("127.0.0.1", 0), peers={"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"})
    found._formation = Formation("c1", {"n1": "1", "n2": "1"})
    return found


def hello(cluster: str = "c1", **facts: str) -> Hello:
    return Hello(cluster=cluster, node="n2", life="1", boot="b", facts=facts)


async def test_peer_that_understands_too_little_is_refused(neighbours: Neighbours, build: Build) -> None:
    assert neighbours.refusal(hello()) is None
    build.is_later()
    neighbours.level.raise_to(NEW)
    why = f"the cluster is at level {NEW}, and the build of n2 understands {OLD}: start the version on n2 that"
    assert why in (neighbours.refusal(hello(level=str(OLD))) or "")
    assert why in (neighbours.refusal(hello()) or "")
    assert neighbours.refusal(hello(level=str(NEW))) is None


@pytest.mark.parametrize("fact", ["level", "cluster_level"])
@pytest.mark.parametrize("said", ["", "-1", "9" * 5000, "٣", "1e3"])
async def test_peer_that_says_no_number_is_refused(neighbours: Neighbours, fact: str, said: str) -> None:
    assert "does not say clearly which level" in (neighbours.refusal(hello(**{fact: said})) or "")


@pytest.mark.parametrize(
    ("own", "theirs", "leaves"),
    [("c1", "c1", True), ("c1", "c2", False), ("c1", "", False), ("", "c2", True), ("", "", False)],
)
async def test_only_the_own_cluster_makes_a_node_leave(
    neighbours: Neighbours, own: str, theirs: str, leaves: bool
) -> None:
    told: list[HoldfastError] = []
    serving: Any = object()
    neighbours.on_too_old = told.append
    neighbours._serving = serving
    if not own:
        neighbours._formation = None
    assert f"at level {NEW}" in (neighbours.refusal(hello(theirs, cluster_level=str(NEW))) or "")
    assert [type(each) for each in told] == [BuildTooOld] * leaves
    assert (neighbours._too_old is not None) == leaves


async def test_older_build_that_finds_its_cluster_gone_on_does_not_begin_to_serve(neighbours: Neighbours) -> None:
    neighbours.refusal(hello(cluster_level=str(NEW)))
    serving: Any = object()
    with pytest.raises(BuildTooOld):
        neighbours.attach(serving)


async def test_older_build_with_an_empty_disk_ends_at_once_and_says_why(tmp_path: Path) -> None:
    """As a process: what an operator sees is its last line and its exit code."""
    n2 = LinkNode("n2", facts={"level": str(NEW), "cluster_level": str(NEW)})
    await n2.start()
    own = LinkNode("n1")
    peers = f"n1={own.address},n2={n2.address}"
    flags = ("--data", str(tmp_path / "n1"), "--node", "n1", "--peer", own.address, "--peers", peers)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli", "serve", "--text", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(15):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
        await n2.links.stop()
    assert process.returncode == 1
    last = said.decode().splitlines()[-1]
    assert f"holdfast: the cluster is at level {NEW}" in last and last.endswith("[build_too_old]"), said
