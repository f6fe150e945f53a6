"""Nodes come and go while a cluster runs: what was acknowledged stays, and what cannot be done is refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from testkit.inprocess import Nodes
from testkit.wait import PATIENCE_S, until

from holdfast.backends.cluster import peer_book, removal, requests, status
from holdfast.backends.cluster.commands import NoteNode
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import JoinRequest, Method
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.membership import Place
from holdfast.model.cluster import MembersDescription
from holdfast.model.errors import ConfigError, DataDirectoryError, HoldfastError, NotSupported
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.member_errors import MembershipChanging, NodeNotFound, NodeRemoved, WouldLoseQuorum
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.testing.ports import free_port

ORDERS = TopicName("orders")
PARTITIONS = 2


@asynccontextmanager
async def cluster(root: Path, count: int) -> AsyncIterator[Nodes]:
    nodes = Nodes(root, count)
    if count == 1:
        nodes.peers_of["n1"] = {}
    await nodes.start()
    try:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig(partitions=PARTITIONS))
        yield nodes
    finally:
        await nodes.stop()


async def join(nodes: Nodes, name: str, through: str) -> None:
    nodes.add(name, through)
    await nodes.start(name)
    await settled(nodes, through, name)


async def members(nodes: Nodes, asked: str) -> dict[str, str]:
    return {member.node: member.state for member in (await nodes.backends[asked].members()).members}


async def settled(nodes: Nodes, asked: str, *belonging: str) -> MembersDescription:
    """Nobody comes or goes any more, and those who belong vote in every group, these among them."""
    found: MembersDescription | None = None

    async def is_so() -> bool:
        nonlocal found
        found = await nodes.backends[asked].members()
        present = [member for member in found.members if member.state != "removed"]
        is_complete = set(belonging) <= {member.node for member in present}
        return found.changing is None and is_complete and all(each.votes_in == each.groups for each in present)

    await until(is_so)
    assert found is not None
    return found


async def told_to_leave(nodes: Nodes, name: str, through: str) -> None:
    """It may as soon as the others have everything; right after a topic was made some do not."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await nodes.backends[through].remove_member(name)
            except WouldLoseQuorum:
                await asyncio.sleep(0.05)


async def removed(nodes: Nodes, name: str, through: str) -> None:
    await told_to_leave(nodes, name, through)
    await settled(nodes, through)
    assert (await members(nodes, through))[name] == "removed"


class Publisher:
    """Publishes one message after the other through whichever node is there, and knows what was acknowledged."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.acknowledged: list[str] = []
        self._is_stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = -1
        while not self._is_stopping:
            number += 1
            message = NewMessage(value=str(number).encode(), id=f"m{number}")
            while True:
                through = next(reversed(self._nodes.brokers))
                try:
                    async with asyncio.timeout(2.0):  # a node that is stopped here does not say so to everybody
                        await self._nodes.brokers[through].publish(ORDERS, [message], number % PARTITIONS)
                    break
                except (HoldfastError, TimeoutError):
                    await asyncio.sleep(0.01)
                    if (broker := self._nodes.brokers.pop(through, None)) is not None:
                        self._nodes.brokers[through] = broker  # another one is next
            self.acknowledged.append(str(number))
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        self._is_stopping = True
        await self._task


async def stored(nodes: Nodes, name: str) -> list[list[str]]:
    """What a node shows, partition by partition, once it knows that it has everything; offsets are gapless."""
    backend = nodes.backends[name]
    found: list[list[str]] = []
    for number in range(PARTITIONS):
        partition = PartitionId(ORDERS, number)
        await backend.catch_up(partition)
        values: list[str] = []
        while len(values) < backend.end_offset(partition):
            messages, _ = await nodes.brokers[name].read(ORDERS, number, Offset(len(values)), 1000, 1 << 20)
            assert [message.offset for message in messages] == list(range(len(values), len(values) + len(messages)))
            values += [bytes(message.value).decode() for message in messages]
        found.append(values)
    return found


async def check_stored(nodes: Nodes, publisher: Publisher) -> None:
    await until(lambda: len(publisher.acknowledged) > 20)
    await publisher.stop()
    first, *others = [await stored(nodes, name) for name in nodes.backends]
    assert all(other == first for other in others)
    everything = [value for partition in first for value in partition]
    assert len(everything) == len(set(everything)), "a message is there twice"
    assert set(publisher.acknowledged) <= set(everything), "an acknowledged message is lost"


async def test_broker_that_stood_alone_grows_to_three_and_loses_nothing_of_what_it_takes_meanwhile(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, 1) as nodes:
        publisher = Publisher(nodes)
        await until(lambda: len(publisher.acknowledged) > 5)
        await join(nodes, "n2", "n1")
        await join(nodes, "n3", "n2")
        later = TopicName("later")
        await nodes.backends["n3"].create_topic(later, TopicConfig())
        await until(lambda: all(later in backend.topics_here.known for backend in nodes.backends.values()))
        voters = {replica.raft.members.voters for replica in nodes.backends["n1"].groups.replicas.values()}
        assert [len(each) for each in voters] == [3]
        await nodes.stop("n1")
        await until(lambda: nodes.backends["n2"].control.replica.raft.hears_leader)
        await nodes.start("n1")
        await settled(nodes, "n1")
        await check_stored(nodes, publisher)


async def test_leader_is_removed_and_comes_back_without_a_message_lost_or_doubled(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        await join(nodes, "n4", "n2")
        publisher = Publisher(nodes)
        leader = await nodes.leader(ORDERS)
        other = nodes.another_than(leader)
        await removed(nodes, leader, other)
        backend = nodes.backends[leader]
        await until(lambda: isinstance(backend._failure, NodeRemoved))
        assert backend.problem() is not None and removal.was_removed(tmp_path / leader)
        for refused in (
            nodes.brokers[leader].publish(ORDERS, [NewMessage(value=b"no")], 0),
            backend.catch_up(PartitionId(ORDERS, 0)),
            backend.members(),
            backend.cluster(),
        ):
            with pytest.raises(NodeRemoved, match="taken out"):
                await refused
        life = backend._directory.life
        await nodes.stop(leader)
        nodes.join_of.pop(leader, None)  # the leader may be the one that joined
        with pytest.raises(NodeRemoved, match="--join"):  # a machine that reboots brings nobody back
            await nodes.start(leader)
        nodes.join_of[leader] = nodes.addresses[other]
        await nodes.start(leader)
        assert nodes.backends[leader]._directory.life != life and not removal.was_removed(tmp_path / leader)
        await settled(nodes, other, leader)
        assert set((await members(nodes, other)).values()) == {"voter"}
        await check_stored(nodes, publisher)


async def test_drained_node_leads_nothing_until_that_is_undone(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        node = await nodes.leader(ORDERS)
        other = nodes.another_than(node)
        backend = nodes.backends[node]
        await backend.drain_member(node)
        await until(lambda: not any(each.raft.leading for each in backend.groups.replicas.values()))
        with pytest.raises(HoldfastError, match="drained"):
            await nodes.backends[other].transfer(PartitionId(ORDERS, 0), node)
        assert (await members(nodes, other))[node] == "drained"
        for each in set(nodes.backends) - {node, other}:
            await nodes.backends[other].drain_member(each)
        with pytest.raises(WouldLoseQuorum):
            await nodes.backends[other].drain_member(other)
        await nodes.backends[other].drain_member(node, undo=True)
        await nodes.backends[other].transfer(PartitionId(ORDERS, 0), node)
        assert await nodes.leader(ORDERS) == node


async def test_node_leaves_although_all_others_are_drained(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        for name in ("n1", "n2"):
            await nodes.backends["n1"].drain_member(name)
        replicas = nodes.backends["n3"].groups.replicas.values()
        await until(lambda: all(each.raft.leading for each in replicas))
        await removed(nodes, "n3", through="n1")


async def test_silent_node_is_replaced_by_a_new_one_in_one_step(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        publisher = Publisher(nodes)
        await until(lambda: len(publisher.acknowledged) > 5)
        await nodes.stop("n3")
        await until(lambda: not nodes.backends["n1"].neighbours.is_up("n3"))
        described = next(each for each in (await nodes.backends["n1"].cluster()).nodes if each.node == "n3")
        assert not described.is_up and described.silent_since_ms is not None
        nodes.add("n4", "n1")
        starting = asyncio.create_task(nodes.start("n4"))
        await until(lambda: "n4" in nodes.backends["n1"].state.membership.rows)
        await nodes.backends["n1"].replace_member("n3", "n4")
        await starting
        await settled(nodes, "n2")
        assert await members(nodes, "n2") == {"n1": "voter", "n2": "voter", "n3": "removed", "n4": "voter"}
        await check_stored(nodes, publisher)


async def test_what_would_break_the_cluster_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        backend = nodes.backends["n1"]
        with pytest.raises(NodeNotFound):
            await backend.remove_member("n9")
        with pytest.raises(NodeNotFound):
            await backend.replace_member("n1", "n9")
        await nodes.stop("n3")
        await until(lambda: not backend.neighbours.is_up("n3") and not backend.groups.is_heard("n3"))
        with pytest.raises(WouldLoseQuorum, match="n3 cannot be reached"):
            await backend.remove_member("n2")
        assert not backend.state.membership.rows
        await removed(nodes, "n3", "n1")
        await removed(nodes, "n2", "n1")
        with pytest.raises(WouldLoseQuorum, match="the last node"):
            await backend.remove_member("n1")


async def test_one_node_at_a_time_comes_or_goes(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        backend = nodes.backends["n1"]
        nodes.add("n4", "n1")
        starting = asyncio.create_task(nodes.start("n4"))
        await until(lambda: "n4" in backend.state.membership.rows)
        with pytest.raises(MembershipChanging, match="n4 is joining"):
            await backend.remove_member("n3")
        await starting
        await settled(nodes, "n1")
        await backend.remove_member("n3")
        await settled(nodes, "n1")
        assert await members(nodes, "n1") == {"n1": "voter", "n2": "voter", "n3": "removed", "n4": "voter"}


async def test_everybody_finds_each_other_again_after_changes_with_outdated_settings(tmp_path: Path) -> None:
    """The founders' settings name only founders, and one of them is gone; the newcomers' name one node or none."""
    async with cluster(tmp_path, 3) as nodes:
        await join(nodes, "n4", "n1")
        await join(nodes, "n5", "n1")
        await removed(nodes, "n1", "n2")
        await removed(nodes, "n2", "n3")
        publisher = Publisher(nodes)
        await nodes.stop("n1", "n2")
        await until(lambda: len(publisher.acknowledged) > 30)
        await publisher.stop()
        await nodes.stop()
        del nodes.join_of["n5"]  # through n1, which is gone
        await nodes.start("n3", "n4", "n5")
        await settled(nodes, "n3")
        assert set(msgspec.json.decode((tmp_path / "n5" / peer_book.FILE_NAME).read_bytes())) == {"n3", "n4"}
        await check_stored(nodes, publisher)


async def test_joining_node_that_loses_its_disk_in_the_middle_is_let_in_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, 3) as nodes:
        for backend in nodes.backends.values():
            monkeypatch.setattr(backend.upkeep, "_finish_change", lambda: None)
        publisher = Publisher(nodes)
        nodes.add("n4", "n1")
        starting = asyncio.create_task(nodes.start("n4"))
        replicas = nodes.backends["n1"].groups.replicas.values()
        await until(lambda: any("n4" in str(each.raft.members) for each in replicas))
        await starting
        await nodes.stop("n4")
        assert nodes.backends["n1"].state.membership.rows["n4"].place is Place.JOINING
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "n4")
        await nodes.start("n4")
        await settled(nodes, "n1")
        assert all(len(each.raft.members.voters) == 4 and not each.raft.members.learners for each in replicas)
        await check_stored(nodes, publisher)


async def test_node_that_was_long_away_gets_the_state_that_the_log_has_dropped(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        publisher = Publisher(nodes)
        await nodes.stop("n3")
        backend = nodes.backends[nodes.another_than("n3")]
        before = backend.control.replica.log.first_index
        filler = {"x": "y" * 200_000}

        async def is_dropped() -> bool:
            await asyncio.gather(*(backend._proposals.propose(NoteNode("filler", "1", filler)) for _ in range(10)))
            return all(each.control.replica.log.first_index > before for each in nodes.backends.values())

        await until(is_dropped)
        await backend.create_topic(TopicName("meanwhile"), TopicConfig())
        await nodes.start("n3")
        await until(lambda: TopicName("meanwhile") in nodes.backends["n3"].topics_here.known)
        assert nodes.backends["n3"].serving.fetched_bytes > 0
        await settled(nodes, "n1")
        await check_stored(nodes, publisher)


async def test_stranger_with_a_name_that_is_taken_is_refused_and_the_real_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.cluster.acquaintances._JOIN_PATIENCE_S", 0.5)
    async with cluster(tmp_path, 1) as nodes:
        await join(nodes, "n2", "n1")
        impostor = Nodes(tmp_path / "elsewhere", 0)
        impostor.addresses["n2"] = f"127.0.0.1:{free_port()}"
        impostor.peers_of["n2"], impostor.join_of["n2"] = {}, nodes.addresses["n1"]
        with pytest.raises(ConfigError, match="another node goes by the name n2"):
            await impostor.start("n2")
        assert await members(nodes, "n1") == {"n1": "voter", "n2": "voter"}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (JoinRequest("n9", "1", "127.0.0.1:1"), "has to ask for itself"),
        (JoinRequest("n2", "1", "127.0.0.1:1"), "another node goes by the name n2"),
        (JoinRequest("n9", "1.2", "127.0.0.1:1"), "the life of a disk"),
        (JoinRequest("n9", "1", "x" * 1000 + ":1"), "does not say where"),
        (JoinRequest("n9 ", "1", "127.0.0.1:1"), "a node is named"),
    ],
)
async def test_nobody_is_let_in_who_has_not_asked_for_itself(tmp_path: Path, wanted: JoinRequest, why: str) -> None:
    async with cluster(tmp_path, 2) as nodes:
        backend = nodes.backends["n1"]
        with pytest.raises(HoldfastError, match=why):
            backend.membership_calls._check_newcomer(wanted, was_removed=False)
        if wanted.node != "n2":  # that one belongs already
            with pytest.raises(HoldfastError, match=why):
                await nodes.backends["n2"].neighbours.request("n1", Method.JOIN, requests.encode(wanted), 5.0)
        assert not backend.state.membership.rows


async def test_broker_with_topics_of_its_own_joins_no_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1):
        alone = Nodes(tmp_path / "elsewhere", 1)
        alone.peers_of["n1"] = {}
        await alone.start()
        await alone.backends["n1"].create_topic(ORDERS, TopicConfig())
        await alone.stop()
        alone.join_of["n1"] = "127.0.0.1:1"
        with pytest.raises(DataDirectoryError, match="begins with an empty directory"):
            await alone.start()


async def test_lag_of_a_silent_node_is_as_last_known_or_not_told(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as nodes:
        for number in range(20):
            await nodes.brokers["n1"].publish(ORDERS, [NewMessage(value=b"%d" % number)])

        async def lag() -> int | None:
            seen = await status.of_cluster(nodes.backends["n1"])
            return next(each.lag for each in seen.nodes if each.node == "n3")

        async def is_all_there() -> bool:
            return await lag() == 0

        await until(is_all_there)
        await nodes.stop("n3")
        await nodes.stop("n1", "n2")
        await nodes.start("n1", "n2")
        partitions = [PartitionId(ORDERS, number) for number in range(PARTITIONS)]
        for partition in partitions:
            await until(lambda each=partition: nodes.backends["n1"].topics_here.found(each).raft.hears_leader)  # type: ignore[misc]
        assert await lag() is None


async def test_disk_of_another_cluster_is_refused_at_the_start(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        others = Nodes(tmp_path / "elsewhere", 2)
        await others.start()
        await others.stop()
        others.join_of["n2"] = nodes.addresses["n1"]
        with pytest.raises(ConfigError, match="is of another cluster: give an empty directory"):
            await others.start("n2")


async def test_pair_has_no_members_that_come_and_go(tmp_path: Path) -> None:
    pair = Nodes(tmp_path, 2, is_pair=True)
    await pair.start()
    try:
        with pytest.raises(NotSupported, match="pair"):
            await pair.backends["n1"].remove_member("n2")
    finally:
        await pair.stop()


async def test_only_voter_with_a_learner_takes_messages_with_ids_after_a_restart(tmp_path: Path) -> None:
    newcomer = ReplicaId("n2.1")

    def partitions() -> list[Replica]:
        return list(nodes.backends["n1"].topics_here.replicas.values())

    async with cluster(tmp_path, 1) as nodes:
        changes = [(each, each.raft.members._replace(learners=frozenset({newcomer}))) for each in partitions()]
        nodes.backends["n1"].groups.change_members_now(changes)
        await until(lambda: all(each.raft.commit >= each.raft.members_index for each in partitions()))
        await nodes.stop("n1")
        await nodes.start("n1")
        assert all(newcomer in each.raft.members.learners for each in partitions())
        published = await nodes.brokers["n1"].publish(ORDERS, [NewMessage(value=b"v", id="a")])
        assert published[0].offset == Offset(0)
