"""`holdfast.json` or `cluster.json` is lost or damaged: nobody waits for ever, and what is stored stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.model.errors import DataDirectoryError
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.topics import TopicConfig

ORDERS = TopicName("orders")
PARTITION = PartitionId(ORDERS, 0)
FILES = pytest.mark.parametrize("file", ["holdfast.json", "cluster.json"])


async def one_broker(root: Path) -> Nodes:
    nodes = Nodes(root, 1)
    nodes.peers_of["n1"] = {}
    await nodes.start("n1")
    return nodes


async def store_one(nodes: Nodes) -> None:
    await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
    await nodes.brokers[await nodes.leader(ORDERS)].publish_values(ORDERS, [b"first"]).offset
    await until(lambda: all(PARTITION in each.topics_here.replicas for each in nodes.backends.values()))
    await until(lambda: all(each.topics_here.replicas[PARTITION].end == 1 for each in nodes.backends.values()))


@FILES
async def test_broker_that_stands_alone_serves_on_without_the_file(tmp_path: Path, file: str) -> None:
    nodes = await one_broker(tmp_path)
    await store_one(nodes)
    life = nodes.backends["n1"].groups.me
    await nodes.stop()
    (tmp_path / "n1" / file).unlink()
    await nodes.start("n1")
    assert nodes.backends["n1"].groups.me == life
    assert await nodes.brokers["n1"].publish_values(ORDERS, [b"second"]).offset == Offset(1)
    await nodes.stop()
    await nodes.start("n1")
    assert nodes.backends["n1"].groups.me == life
    await nodes.stop()


async def test_node_of_a_cluster_is_let_in_again_without_its_holdfast_json(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await store_one(nodes)
        life = nodes.backends["n3"].groups.me
        await nodes.stop("n3")
        (tmp_path / "n3" / "holdfast.json").unlink()
        await nodes.start("n3")
        third = nodes.backends["n3"]
        assert third.groups.me != life
        await until(lambda: third.groups.me in third.control.replica.raft.members.voters)
        await until(lambda: third.topics_here.replicas[PARTITION].end == 1)


async def test_node_of_a_cluster_goes_on_with_the_cluster_json_of_another(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await store_one(nodes)
        life = nodes.backends["n3"].groups.me
        await nodes.stop("n3")
        (tmp_path / "n3" / "cluster.json").unlink()
        with pytest.raises(DataDirectoryError, match=r"cluster\.json is missing"):
            await nodes.start("n3")
        shutil.copy(tmp_path / "n1" / "cluster.json", tmp_path / "n3" / "cluster.json")
        await nodes.start("n3")
        assert nodes.backends["n3"].groups.me == life
        await until(lambda: nodes.backends["n3"].control.replica.raft.hears_leader)


@FILES
@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"{}", b"[1, 2"])
async def test_damaged_file_is_named_with_what_to_do_and_left_as_it_is(
    tmp_path: Path, file: str, content: bytes
) -> None:
    nodes = await one_broker(tmp_path)
    await nodes.stop()
    (tmp_path / "n1" / file).write_bytes(content)
    with pytest.raises(DataDirectoryError, match=rf"{file} is damaged .* move it away"):
        await nodes.start("n1")
    assert (tmp_path / "n1" / file).read_bytes() == content


@pytest.mark.parametrize("life", ["x,y", "1A", "a|b"])
async def test_life_that_cannot_be_one_is_damage(tmp_path: Path, life: str) -> None:
    """A node with such a name for its disk would not be let in by anybody, and not know why."""
    nodes = await one_broker(tmp_path)
    await nodes.stop()
    (tmp_path / "n1" / "holdfast.json").write_text(f'{{"format":2,"node":"n1","created_ms":5,"life":"{life}"}}')
    with pytest.raises(DataDirectoryError, match=r"holdfast\.json is damaged"):
        await nodes.start("n1")
