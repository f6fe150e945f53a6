"""A box of a pair lost its disk, and its clock is behind: the pair serves all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

from testkit.inprocess import Nodes
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import TopicConfig
from holdfast.storage.directory import DataDirectory

ORDERS = TopicName("orders")
PARTITION = PartitionId(ORDERS, 0)


def are_together(backend: ClusterBackend) -> bool:
    return all(len(each.raft.members.voters) == 2 for each in backend.groups.replicas.values())


async def test_pair_serves_when_a_new_disk_is_older_by_its_clock_than_the_lost_one(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, is_pair=True)
    await nodes.start()
    await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
    await until(lambda: are_together(nodes.backends["n1"]))
    await nodes.brokers[await nodes.leader(ORDERS)].publish_values(ORDERS, [b"before"]).offset
    # The one that is stopped first does not go on alone.
    await nodes.stop("n1", "n2")
    shutil.rmtree(tmp_path / "n2")
    DataDirectory.open(tmp_path / "n2", node="n2", now_ms=TimestampMs(1_000)).close()
    await nodes.start()
    leader = await nodes.leader(ORDERS)
    assert await nodes.brokers[leader].publish_values(ORDERS, [b"after"]).offset == Offset(1)
    await until(lambda: are_together(nodes.backends[leader]))
    await until(lambda: nodes.backends["n2"].topics_here.replicas[PARTITION].end == 2)
    assert not nodes.failed
    await nodes.stop()
