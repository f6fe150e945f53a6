"""What is left of a cluster goes on: with damage on its disk, with a node that was taken out, with one that waits."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from testkit.inprocess import Nodes
from testkit.wait import until

from holdfast.backends.cluster import peer_book, removal, upkeep
from holdfast.backends.cluster.joining import Joining
from holdfast.backends.cluster.meeting import Refused, meet
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import JoinRequest
from holdfast.consensus.members import Members
from holdfast.consensus.replica_names import replica_id
from holdfast.frontends.text.server import TextFrontend
from holdfast.model.errors import StorageFailed
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.member_errors import MembershipChanging, NodeRemoved
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.testing.ports import free_port
from holdfast.wire.peer import OLDEST_VERSION, Hello
from holdfast.wire.text import STANDARD
from tests.cluster.test_members import ORDERS, cluster, join, members, removed, settled, told_to_leave


async def damaged(nodes: Nodes, name: str) -> None:
    """A node is stopped, and something in the middle of what it has is not what was written."""
    await nodes.stop(name)
    segment = min((nodes.root / name / "topics" / ORDERS / "0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 20)


async def publish(nodes: Nodes, through: str, count: int) -> None:
    for number in range(count):
        await nodes.brokers[through].publish(ORDERS, [NewMessage(value=b"v%d" % number * 50)], 0)


async def test_last_node_of_a_cluster_serves_around_damage_whatever_its_settings_say(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        await join(nodes, "n2", "n1")
        await removed(nodes, "n1", "n2")
        await nodes.stop("n1")
        await publish(nodes, "n2", 50)
        life = nodes.backends["n2"].neighbours.own_life
        await damaged(nodes, "n2")
        await nodes.start("n2")
        assert nodes.backends["n2"].neighbours.own_life == life
        async with asyncio.timeout(10):
            await publish(nodes, "n2", 1)


async def test_node_with_others_begins_a_new_life_after_damage_where_no_setting_names_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        await join(nodes, "n2", "n1")
        await publish(nodes, "n1", 50)
        life = nodes.backends["n1"].neighbours.own_life
        await until(lambda: (tmp_path / "n1" / peer_book.FILE_NAME).exists())
        await damaged(nodes, "n1")
        (tmp_path / "n1" / peer_book.FILE_NAME).unlink()
        await nodes.start("n1")
        assert nodes.backends["n1"].neighbours.own_life != life


async def test_subscriber_at_a_node_that_is_removed_is_told_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        await publish(nodes, "n1", 1)
        third = nodes.brokers["n3"]
        await until(lambda: third.backend.end_offset(PartitionId(ORDERS, 0)) == 1)
        server = TextFrontend(third, STANDARD)
        host, port = await server.start("127.0.0.1", free_port())
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"SUBSCRIBE|orders\n")
        assert await reader.readline() == STANDARD.connected
        assert await reader.readline() == STANDARD.subscribed
        long_poll = asyncio.create_task(third.wait_for(ORDERS, {0: Offset(1), 1: Offset(0)}, 60.0))
        await removed(nodes, "n3", "n1")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"ERROR|node_removed|")
            assert await reader.readline() == b""
            with pytest.raises(NodeRemoved):
                await long_poll
        writer.close()
        await server.stop(0.0)


async def test_publisher_at_a_leaving_node_goes_on_until_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node hears no more of groups that it is out of, while others may take long."""
    async with cluster(tmp_path, 3) as nodes:
        for backend in nodes.backends.values():
            monkeypatch.setattr(backend.upkeep, "_finish_change", lambda: None)
        await told_to_leave(nodes, "n3", "n1")
        left, leaver = (nodes.backends[name].topics_here.found(PartitionId(ORDERS, 0)) for name in ("n1", "n3"))
        await until(lambda: len(left.raft.members.voters) == 2)
        await until(lambda: leaver.leader_node is None)
        async with asyncio.timeout(3):
            await publish(nodes, "n3", 3)
            with pytest.raises(NodeRemoved, match="being taken out"):
                await nodes.backends["n3"].catch_up(PartitionId(ORDERS, 0))


async def test_node_that_leaves_stays_after_all_when_another_one_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the rest is no majority: nobody could come, go, or be replaced any more."""

    async def nothing() -> None:
        return

    async with cluster(tmp_path, 3) as nodes:
        with monkeypatch.context() as patched:
            for backend in nodes.backends.values():
                patched.setattr(backend.upkeep, "_look_after_members", nothing)
            await told_to_leave(nodes, "n3", "n1")
            await nodes.stop("n2")
        with pytest.raises(MembershipChanging, match="n3 --undo"):
            await nodes.backends["n1"].remove_member("n2")
        await nodes.backends["n1"].remove_member("n3", undo=True)
        await settled(nodes, "n1", "n3")
        await removed(nodes, "n2", "n1")


async def test_node_that_stays_after_all_is_let_in_again_with_the_disk_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, 3) as nodes:
        first, third = nodes.backends["n1"], nodes.backends["n3"]
        with monkeypatch.context() as patched:
            for backend in nodes.backends.values():
                patched.setattr(backend.upkeep, "_finish_change", lambda: None)
            await told_to_leave(nodes, "n3", "n1")
            replicas = first.groups.replicas.values()
            await until(lambda: all(len(each.raft.members.voters) == 2 for each in replicas))
            await third.remove_member("n3", undo=True)
        await settled(nodes, "n1", "n3")
        assert all(third.groups.me in each.raft.members.voters for each in replicas)
        async with asyncio.timeout(3):
            await publish(nodes, "n3", 1)
        assert third.problem() is None


async def test_join_with_many_partitions_does_not_wait_for_the_disk_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever publishes meanwhile waits for the same disk, and for the same loop."""
    async with cluster(tmp_path, 1) as nodes:
        await nodes.backends["n1"].create_topic(TopicName("many"), TopicConfig(partitions=50))
        groups = nodes.backends["n1"].groups
        waits, steps = 0, []
        sync, change = groups._hard_states.sync_now, groups.change_members_now

        def counted_sync() -> None:
            nonlocal waits
            waits += 1
            sync()

        def counted_change(changes: Sequence[tuple[Replica, Members]]) -> None:
            steps.append(len(changes))
            change(changes)

        monkeypatch.setattr(groups._hard_states, "sync_now", counted_sync)
        monkeypatch.setattr(groups, "change_members_now", counted_change)
        await join(nodes, "n2", "n1")
        assert sum(steps) >= 2 * 53, "each group lets it learn, then vote"
        assert max(steps) <= upkeep._CHANGES_MAX
        assert waits <= len(steps) + 2
        assert len(steps) < sum(steps) / 3


async def test_leader_whose_disk_loses_who_its_members_are_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with cluster(tmp_path, 1) as nodes:
        leader = nodes.backends["n1"]
        monkeypatch.setattr("holdfast.storage.votes.sync_data", broken)
        replica = leader.control.replica
        wanted = Members(replica.raft.members.voters, frozenset({replica_id("n2", "1")}))
        leader.upkeep._change_members([(replica, wanted)])
        monkeypatch.undo()
        assert "sync" in str(leader.problem())
        assert replica.raft.members != wanted
        with pytest.raises(StorageFailed):
            await publish(nodes, "n1", 1)


async def test_node_that_cannot_look_after_its_groups_any_more_does_not_go_on_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise AssertionError("two leaders in one term")

    async with cluster(tmp_path, 2) as nodes:
        monkeypatch.setattr(nodes.backends["n1"].upkeep, "_spread_leaders", broken)
        await until(lambda: nodes.failed == ["n1"])
        assert "two leaders in one term" in str(nodes.backends["n1"].problem())


async def test_node_that_waits_to_be_let_in_writes_nothing_into_the_control_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, 1) as nodes:
        backend = nodes.backends["n1"]
        with monkeypatch.context() as patched:
            patched.setattr(backend.upkeep, "_finish_change", lambda: None)
            nodes.add("n2", "n1")
            await nodes.start("n2")
            nodes.backends["n2"].upkeep._finish_change = lambda: None  # type: ignore[method-assign]
            control = backend.control.replica.raft
            own_row = nodes.backends["n2"].upkeep._own_row
            await until(lambda: len(control.members.voters) == 2 and backend.state.nodes.get("n2") == own_row())
            asked, check = 0, backend.membership_calls._check_newcomer

            def counted(wanted: JoinRequest, *, was_removed: bool) -> None:
                nonlocal asked
                asked += 1
                check(wanted, was_removed=was_removed)

            patched.setattr(backend.membership_calls, "_check_newcomer", counted)
            before = control.shape.last_index
            nodes.add("n3", "n1")
            await nodes.start("n3")
            await until(lambda: asked >= 4)
            assert control.shape.last_index == before
        del nodes.backends["n2"].upkeep._finish_change
        await settled(nodes, "n1", "n2", "n3")


@pytest.mark.parametrize("claimed", ["", "another"], ids=["no cluster", "another cluster"])
async def test_stranger_cannot_tell_a_node_that_it_was_taken_out(tmp_path: Path, claimed: str) -> None:
    def hello(facts: dict[str, str]) -> Hello:
        return Hello(cluster=claimed, node="stranger", life="1", boot="b", oldest=OLDEST_VERSION, facts=facts)

    async with cluster(tmp_path, 1) as nodes:
        own = replica_id("n1", nodes.backends["n1"].neighbours.own_life)
        with pytest.raises(Refused):
            await meet(nodes.addresses["n1"], hello({"removed": own}))
        assert not removal.was_removed(tmp_path / "n1")
        await publish(nodes, "n1", 1)


@pytest.mark.parametrize("is_heard_first", [True, False])
async def test_removal_is_heard_whenever_it_is_said(tmp_path: Path, is_heard_first: bool) -> None:
    """The first hello of another node may come before this one has opened what it has."""
    async with cluster(tmp_path, 1) as nodes:
        known = nodes.backends["n1"].neighbours.known
        heard: list[str] = []
        known._on_removed = None
        steps: list[Callable[[], object]] = [
            lambda: known._hear_of_removal("n2"),
            lambda: known.tell_of_removal(heard.append),
        ]
        for step in steps if is_heard_first else reversed(steps):
            step()
        await asyncio.sleep(0)
        assert heard == ["n2"] and known.is_removed


async def test_removed_node_whose_disk_was_damaged_meanwhile_stays_out_unless_it_wishes_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The life that it begins then is one that nobody has taken out."""
    refusals: list[str] = []
    monkeypatch.setattr(Joining, "_say", lambda _, event, **facts: refusals.append(str(facts["reason"])))
    async with cluster(tmp_path, 3) as nodes:
        await publish(nodes, "n3", 5)
        await nodes.backends["n3"].catch_up(PartitionId(ORDERS, 0))
        await nodes.stop("n3")
        await until(lambda: not nodes.backends["n1"].groups.is_heard("n3"))
        await removed(nodes, "n3", "n1")
        shutil.rmtree(tmp_path / "n3" / "topics" / ORDERS / "0")
        await nodes.start("n3")
        await until(lambda: any("start it with --join" in each for each in refusals))
        assert (await members(nodes, "n1"))["n3"] == "removed"
        await nodes.stop("n3")
        nodes.join_of["n3"] = nodes.addresses["n1"]
        await nodes.start("n3")
        await settled(nodes, "n1", "n3")


async def test_addresses_that_a_full_disk_did_not_take_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = peer_book.PeerBook(tmp_path, "n1", {})
    with monkeypatch.context() as patched:
        patched.setattr(peer_book, "replace_file", full)
        book.note({"n2": "10.0.0.2:8100"}, ())
    book.note({"n2": "10.0.0.2:8100"}, ())
    assert peer_book.PeerBook(tmp_path, "n1", {}).addresses == {"n2": ("10.0.0.2:8100",)}


def full(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
