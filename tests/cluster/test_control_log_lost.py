"""A node finds its control log emptied: it gets it from the others, and votes for nothing meanwhile."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.consensus.members import Members
from holdfast.consensus.membership import Place
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig

ORDERS, LATER = TopicName("orders"), TopicName("later")


def cut_control_log(data: Path, size: int) -> None:
    """The index beside it still says that there was more."""
    for path in (data / "control").glob("*.log"):
        assert path.with_suffix(".index").exists()
        os.truncate(path, size)


def is_voter(backend: ClusterBackend, name: str) -> bool:
    row = backend.state.membership.rows.get(name)
    return row is not None and row.place is Place.VOTER


async def all_vote(nodes: Nodes) -> None:
    """Wait until every node goes by a configuration in which each of them votes under the life of its disk today."""
    backends = list(nodes.backends.values())
    everybody = Members(frozenset(each.groups.me for each in backends))
    await until(lambda: all(each.control.replica.raft.members == everybody for each in backends))


@pytest.mark.parametrize("size", [0, 50])
async def test_node_whose_control_log_was_emptied_starts_and_gets_it_from_the_others(tmp_path: Path, size: int) -> None:
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
        await until(lambda: all(ORDERS in each.topics_here.known for each in nodes.backends.values()))
        await nodes.stop("n3")
        cut_control_log(tmp_path / "n3", size)
        await nodes.start("n3")
        await nodes.backends["n1"].create_topic(LATER, TopicConfig())
        await all_vote(nodes)
        assert {ORDERS, LATER} <= nodes.backends["n3"].topics_here.known.keys()


async def test_founder_whose_control_log_was_emptied_does_not_lead_alone_the_cluster_that_grew_around_it(
    tmp_path: Path,
) -> None:
    """Else two nodes would lead, and what the founder acknowledged would be lost."""
    nodes = Nodes(tmp_path, 1)
    nodes.peers_of["n1"] = {}
    await nodes.start("n1")
    first = nodes.backends["n1"]
    for name in ("n2", "n3"):
        nodes.add(name, "n1")
        nodes.peers_of["n1"] = {}
        await nodes.start(name)
        await until(partial(is_voter, first, name))
    life = first.groups.me
    await nodes.stop("n1")
    cut_control_log(tmp_path / "n1", 0)
    await nodes.start("n1")
    await all_vote(nodes)
    assert nodes.backends["n1"].groups.me != life
    assert not nodes.failed
    await nodes.stop()


async def test_last_node_of_a_cluster_that_others_founded_serves_without_its_control_log(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    await nodes.start()
    await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
    nodes.add("n2", "n1")
    await nodes.start("n2")
    last = nodes.backends["n2"]
    await until(lambda: is_voter(last, "n2"))
    await nodes.brokers["n2"].publish(ORDERS, [NewMessage(value=b"acknowledged")])
    await last.remove_member("n1")
    await until(lambda: last.state.membership.rows["n1"].place is Place.REMOVED)
    await until(lambda: last.control.kept == last.control.applied)
    await nodes.stop()
    shutil.rmtree(tmp_path / "n2" / "control")
    nodes.addresses.pop("n1")
    nodes.peers_of["n2"] = {}
    nodes.join_of.clear()
    await nodes.start("n2")
    await nodes.brokers["n2"].publish(ORDERS, [NewMessage(value=b"more")])
    assert nodes.backends["n2"].end_offset(PartitionId(ORDERS, 0)) == 2
    await nodes.stop()
