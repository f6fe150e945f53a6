"""Nodes that listen everywhere, or move, are found again by the others: else a cluster falls apart at a restart."""

from __future__ import annotations

from pathlib import Path

from testkit.wait import until

from holdfast.backends.cluster.peer_book import PeerBook
from holdfast.model.limits import CLUSTER_NODES_MAX
from holdfast.testing.ports import free_port
from tests.cluster.test_members import Publisher, check_stored, cluster, join, settled


async def test_broker_that_listens_everywhere_grows_to_three_and_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        await nodes.stop()
        seen_at = nodes.addresses["n1"]
        nodes.addresses["n1"] = seen_at.replace("127.0.0.1", "0.0.0.0")
        await nodes.start()
        nodes.add("n2", "n1")
        nodes.join_of["n2"] = seen_at
        nodes.addresses["n2"] = nodes.addresses["n2"].replace("127.0.0.1", "0.0.0.0")
        await nodes.start("n2")
        await settled(nodes, "n1", "n2")
        nodes.add("n3", "n2")
        nodes.join_of["n3"] = nodes.addresses["n2"].replace("0.0.0.0", "127.0.0.1")
        await nodes.start("n3")
        await settled(nodes, "n1", "n3")
        publisher = Publisher(nodes)
        await until(lambda: len(publisher.acknowledged) > 5)
        await publisher.stop()
        await until(lambda: all(len(each.neighbours.known.book.noted) == 2 for each in nodes.backends.values()))
        await nodes.stop()
        nodes.join_of.clear()
        await nodes.start()
        await settled(nodes, "n3", "n1", "n2", "n3")
        await check_stored(nodes, Publisher(nodes))


async def test_node_that_moves_to_another_address_is_found_there(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        await join(nodes, "n2", "n1")
        await nodes.stop("n2")
        nodes.addresses["n2"] = f"127.0.0.1:{free_port()}"
        await nodes.start("n2")
        await settled(nodes, "n1", "n2")
        await until(lambda: nodes.backends["n1"].neighbours.is_up("n2"))
        moved_to = nodes.addresses["n2"]
        await until(lambda: nodes.backends["n1"].neighbours.known.book.noted == {"n2": moved_to})


def test_strangers_that_say_where_they_are_fill_no_memory(tmp_path: Path) -> None:
    book = PeerBook(tmp_path, "n1", {"n2": "127.0.0.1:1"})
    for number in range(10 * CLUSTER_NODES_MAX):
        book.introduce(f"s{number}", "127.0.0.1:2")
    assert len(book.addresses) <= 2 * CLUSTER_NODES_MAX + 1
    assert "n2" in book.addresses
