"""Nodes that come and go as processes: killed in the middle of it, and all in a row under load."""

from __future__ import annotations

import pytest
from chaos.campaigns.members import run
from testkit.sizes import dice, scaled
from testkit.wait import wait_until

from holdfast.testing import LocalCluster
from holdfast.testing.asking import ask


def places(cluster: LocalCluster, asked: str) -> dict[str, str]:
    answer = ask(cluster.node(asked).http, "/v1/cluster/members", 5.0)
    return {each["node"]: each["state"] for each in answer.content["members"]} if answer.status == 200 else {}


def test_node_joins_and_leaves_though_it_and_the_leaders_are_killed_in_the_middle() -> None:
    with LocalCluster(nodes=3) as cluster, cluster.connect_blocking() as broker:
        sent = [str(number) for number in range(60)]
        for value in sent[:20]:
            broker.publish("orders", value)
        joined = cluster.add_node(wait=False)
        wait_until(lambda: joined in places(cluster, "n1"), "it is joining")
        cluster.kill(joined)
        cluster.start(joined)
        leader = cluster.control_leader()
        cluster.kill(leader)
        cluster.start(leader)
        for value in sent[20:40]:
            broker.publish("orders", value)
        everybody = dict.fromkeys(("n1", "n2", "n3", joined), "voter")
        wait_until(lambda: places(cluster, "n1") == everybody, "it has joined", timeout_s=60)
        leaver = cluster.control_leader()
        other = next(node.id for node in cluster.nodes if node.id != leaver)
        address, path = cluster.node(other).http, f"/v1/cluster/members/{leaver}"
        wait_until(lambda: ask(address, path, 10.0, send={"change": "remove"}).status == 202, "it is leaving")
        cluster.kill(leaver)
        wait_until(lambda: places(cluster, other).get(leaver) == "removed", "it has left", timeout_s=60)
        for value in sent[40:]:
            broker.publish("orders", value)
        assert [message.text for message in broker.read("orders")] == sent


@pytest.mark.night
def test_nothing_is_lost_or_doubled_over_changes_of_members_in_a_row() -> None:
    seed = dice("members").randrange(1 << 31)
    outcome = run(scaled(4, 60), seed, has_network=False)
    assert not outcome.verdict.examples, (outcome.replay, outcome.verdict.examples, outcome.notes)
    assert outcome.history.acknowledged > 100
