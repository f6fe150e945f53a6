"""What users of a whole cluster rely on, whichever of its nodes they talk to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from testkit.batches import foreign_values
from testkit.wait import wait_until

from tests.http.http_cluster import NODES, Cluster, ClusterNode, three_nodes
from tests.http.http_server import BATCHES, Answer

TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three_nodes(tmp_path_factory.mktemp("cluster")) as running:
        running.nodes[0].create(TOPIC, PARTITIONS)
        running.wait_for_leaders(TOPIC, PARTITIONS)
        yield running


def publish(node: ClusterNode, value: str, partition: int, message_id: str | None = None) -> int:
    message = {"value": value, "partition": partition, "id": message_id}
    answer = node.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [message]})
    assert answer.status == 200, answer
    offset: int = answer.json["results"][0]["offset"]
    return offset


def read(node: ClusterNode, partition: int, query: str = "", **headers: str) -> Answer:
    answer = node.get(f"/v1/topics/{TOPIC}/partitions/{partition}/messages{query}", **headers)
    assert answer.status == 200, answer
    return answer


def transfer(node: ClusterNode, **wanted: object) -> Answer:
    return node.call("POST", "/v1/cluster/transfer", wanted)


# --- who is who -------------------------------------------------------------------------------------


def test_all_nodes_name_the_same_leader(cluster: Cluster) -> None:
    assert cluster.leader() in NODES
    described = [node.get("/v1/cluster").json for node in cluster.nodes]
    assert [one["asked"] for one in described] == list(NODES)
    assert len({one["cluster"] for one in described}) == 1 and described[0]["cluster"]
    for one in described:
        assert (one["has_quorum"], one["missing"]) == (True, [])
        assert [node["node"] for node in one["nodes"]] == list(NODES)
        assert all(node["is_up"] for node in one["nodes"])
        assert [node["node"] for node in one["nodes"] if node["role"] == "leader"] == [one["leader"]]
        assert {node["partitions"] for node in one["nodes"]} >= {PARTITIONS}
        assert all(set(node["addresses"]) == {"text", "http", "peer"} for node in one["nodes"])


def test_info_says_which_node_and_cluster_answers(cluster: Cluster) -> None:
    told = [node.get("/v1/info").json for node in cluster.nodes]
    assert [one["node"] for one in told] == list(NODES)
    assert {one["cluster"] for one in told} == {cluster.nodes[0].get("/v1/cluster").json["cluster"]}


def test_groups_are_described_as_the_asked_node_sees_them(cluster: Cluster) -> None:
    for node in cluster.nodes:
        control, *partitions = node.get("/v1/cluster/groups").json["groups"]
        assert (control["topic"], control["partition"]) == (None, None)
        assert partitions
        for group in (control, *partitions):
            followers = {one["node"] for one in group["followers"]}
            assert followers == (set(NODES) - {node.name} if group["role"] == "leader" else set()), group
        of_topic = node.get(f"/v1/cluster/groups?topic={TOPIC}").json["groups"]
        assert [(one["topic"], one["partition"]) for one in of_topic] == [(TOPIC, n) for n in range(PARTITIONS)]
    assert cluster.nodes[0].get("/v1/cluster/groups?topic=nothing").code == "topic_not_found"


def test_control_group_is_led_by_the_node_that_was_asked_for(cluster: Cluster) -> None:
    for through, to in zip(cluster.nodes, ("n3", "n1", "n2"), strict=True):
        moved = transfer(through, to=to)
        assert (moved.status, moved.json) == (200, {"topic": None, "partition": None, "leader": to})
        wait_until(partial(leads, cluster, to), f"all nodes know that {to} leads")


def leads(cluster: Cluster, node: str) -> bool:
    return cluster.leader() == node


def test_partition_is_led_by_the_node_that_was_asked_for(cluster: Cluster) -> None:
    for through in cluster.nodes:
        to = next(name for name in NODES if name != cluster.leader(TOPIC, 1))
        moved = transfer(through, topic=TOPIC, partition=1, to=to)
        assert (moved.status, moved.json) == (200, {"topic": TOPIC, "partition": 1, "leader": to})
        assert publish(cluster.by_name[to], "moved", 1) >= 0


def test_transfer_that_cannot_be_says_why(cluster: Cluster) -> None:
    refusals: list[tuple[dict[str, object], int, str, str]] = [
        ({"to": "n9"}, 400, "bad_value", "n1, n2, n3"),
        ({"topic": TOPIC, "to": "n1"}, 400, "bad_value", "partition"),
        ({"partition": 0, "to": "n1"}, 400, "bad_value", "topic"),
        ({"topic": TOPIC, "partition": -1, "to": "n1"}, 400, "bad_value", "partition"),
        ({"topic": TOPIC, "partition": PARTITIONS, "to": "n1"}, 404, "partition_not_found", TOPIC),
        ({"topic": "nothing", "partition": 0, "to": "n1"}, 404, "topic_not_found", "nothing"),
        ({}, 400, "bad_value", "to"),
        ({"to": 1}, 400, "bad_value", "to"),
        ({"to": "n1", "topics": "x"}, 400, "bad_value", "topics"),
    ]
    for wanted, status, code, named in refusals:
        refused = transfer(cluster.nodes[0], **wanted)
        assert (refused.status, refused.code) == (status, code), (wanted, refused)
        assert named in refused.message, (wanted, refused.message)


# --- messages ---------------------------------------------------------------------------------------


def test_publish_through_any_node_is_stored_once_and_in_order(cluster: Cluster) -> None:
    begin = publish(cluster.nodes[0], "first", 0)
    for count in range(1, 10):
        assert publish(cluster.nodes[count % 3], f"value-{count}", 0, f"id-{count}") == begin + count
    for node in cluster.nodes:
        assert publish(node, "again", 0, "id-5") == begin + 5, "a message that is sent again through another node"
        found = read(node, 0, f"?offset={begin}").json["messages"]
        assert [one["value"] for one in found] == ["first", *(f"value-{count}" for count in range(1, 10))]


def test_what_one_node_acknowledged_the_others_show_at_once(cluster: Cluster) -> None:
    for count in range(100):
        partition = count % PARTITIONS
        writer, *readers = (cluster.nodes[(count + step) % 3] for step in range(3))
        offset = publish(writer, f"seen-{count}", partition)
        for reader in readers:
            last = read(reader, partition, f"?offset={max(0, offset - 3)}").json["messages"][-1]
            assert (last["offset"], last["value"]) == (offset, f"seen-{count}"), "a read that ends before the newest"
        batches = read(readers[0], partition, f"?offset={offset}", Accept=BATCHES)
        assert foreign_values(batches.body)[-1] == f"seen-{count}".encode()
        latest = readers[1].get(f"/v1/topics/{TOPIC}/partitions/{partition}/offsets?timestamp=latest")
        assert latest.json == {"offset": offset + 1}


def test_topic_made_through_one_node_is_found_through_the_others(cluster: Cluster) -> None:
    for count in range(10):
        writer, reader, other = (cluster.nodes[(count + step) % 3] for step in range(3))
        writer.publish(f"made-{count}", "a")
        found = reader.get(f"/v1/topics/made-{count}/partitions/0/messages")
        assert found.status == 200 and [one["value"] for one in found.json["messages"]] == ["a"]
        assert other.get(f"/v1/topics/made-{count}").status == 200
        assert other.call("DELETE", f"/v1/topics/made-{count}").status == 204


def test_long_poll_on_any_node_ends_with_what_another_node_took(cluster: Cluster) -> None:
    for count, poller in enumerate(cluster.nodes):
        end = poller.get(f"/v1/topics/{TOPIC}/partitions/0/offsets?timestamp=latest").json["offset"]
        publisher = threading.Timer(0.2, publish, (cluster.nodes[(count + 1) % 3], "late", 0))
        publisher.start()
        answer = read(poller, 0, f"?offset={end}&wait_ms=60000").json
        assert [one["value"] for one in answer["messages"]] == ["late"]
        publisher.join()


def test_cursor_goes_on_at_another_node(cluster: Cluster) -> None:
    cluster.nodes[0].publish("work", "a", "b", "c")
    seen = []
    for node in cluster.nodes:
        answer = node.get("/v1/topics/work/cursors/worker/messages?max=1&auto_ack=true")
        assert answer.status == 200, answer
        seen += [one["value"] for one in answer.json["messages"]]
    assert seen == ["a", "b", "c"]


def test_stream_of_any_node_shows_what_another_took(cluster: Cluster) -> None:
    cluster.nodes[0].create("followed")
    for count, node in enumerate(cluster.nodes):
        connection = node.connect()
        connection.request("GET", "/v1/topics/followed/tail?from=latest&stale=true")
        response = connection.getresponse()
        assert (response.status, int(response.headers["Holdfast-Stale-Ms"]) >= 0) == (200, True)
        assert response.readline() == b"retry: 1000\n"
        cluster.nodes[(count + 1) % 3].publish("followed", f"from-{count}")
        line = b""
        while not line.startswith(b"data: ") or f"from-{count}".encode() not in line:
            line = response.readline()
            assert line, "the stream ended"
        response.close()
        connection.close()


def test_stale_reads_say_how_old_they_are(cluster: Cluster) -> None:
    offset = publish(cluster.nodes[0], "stale", 2)
    for node in cluster.nodes:
        answer = read(node, 2, f"?offset={offset}&stale=true")
        while not answer.json["messages"]:
            answer = read(node, 2, f"?offset={offset}&stale=true")
        assert answer.json["stale_ms"] == int(answer.headers["holdfast-stale-ms"]) < 5000
        batches = read(node, 2, f"?offset={offset}&stale=true", Accept=BATCHES)
        assert foreign_values(batches.body)[-1] == b"stale"
        assert int(batches.headers["holdfast-stale-ms"]) < 5000
        beyond = read(node, 2, f"?offset={offset + 1000}&stale=true").json
        assert (beyond["messages"], beyond["next_offset"]) == ([], offset + 1000)
        fresh = read(node, 2, f"?offset={offset}")
        assert "stale_ms" not in fresh.json and "holdfast-stale-ms" not in fresh.headers
        at = node.get(f"/v1/topics/{TOPIC}/partitions/2/offsets?timestamp=0&stale=true")
        assert at.json["offset"] == 0 and at.json["stale_ms"] < 5000
    refused = cluster.nodes[0].get(f"/v1/topics/{TOPIC}/partitions/0/messages?stale=yes")
    assert (refused.status, refused.code) == (400, "bad_value")


# --- metrics ----------------------------------------------------------------------------------------


def test_every_node_measures_the_cluster(cluster: Cluster) -> None:
    for node in cluster.nodes:
        publish(node, "measured", 0)
    found = {node.name: node.metrics() for node in cluster.nodes}
    for name, metrics in found.items():
        others = sorted(set(NODES) - {name})
        assert list(metrics["holdfast_follower_lag_entries"]) == [(("node", other),) for other in others]
        assert set(metrics["holdfast_partition_leader"]) >= {
            (("partition", str(number)), ("topic", TOPIC)) for number in range(PARTITIONS)
        }
    names = set.intersection(*(set(metrics) for metrics in found.values()))
    sums = {name: sum(sum(found[node][name].values()) for node in NODES) for name in names}
    assert sums["holdfast_control_leader"] == 1
    assert sums["holdfast_nodes"] == sums["holdfast_nodes_up"] == 9 and sums["holdfast_nodes_missing"] == 0
    assert sums["holdfast_partitions_led"] == found["n1"]["holdfast_partitions"][()] >= PARTITIONS
    assert sums["holdfast_partition_leader"] == sums["holdfast_partitions_led"]
    assert sums["holdfast_forwarded_batches_total"] >= 2, "at most one of the three leads the partition"
    assert sums["holdfast_elections_total"] > 0
    assert sums["holdfast_leaderless_seconds"] == 0
    assert all(found[node]["holdfast_control_applied_index"][()] > 0 for node in NODES)


def test_partition_stays_with_the_node_it_was_given_to(cluster: Cluster) -> None:
    to = next(name for name in NODES if name != cluster.leader(TOPIC, 2))
    assert transfer(cluster.nodes[0], topic=TOPIC, partition=2, to=to).status == 200
    # Many heartbeats, and messages that other nodes took.
    for count in range(30):
        publish(cluster.nodes[count % 3], "stays", 2)
        assert cluster.leader(TOPIC, 2) == to
        time.sleep(0.03)


def test_document_describes_a_partition_without_leader(cluster: Cluster) -> None:
    schemas = cluster.nodes[0].get("/openapi.json").json["components"]["schemas"]
    leader = schemas["PartitionDescription"]["properties"]["leader"]
    assert {one["type"] for one in leader["anyOf"]} == {"string", "null"}, json.dumps(leader)


def test_pushes_and_pops_through_all_nodes_store_and_hand_out_each_message_once(cluster: Cluster) -> None:
    cluster.nodes[0].create("jobs", 2)
    cluster.wait_for_leaders("jobs", 2)
    items = [{"queue": "jobs", "partition": f"p{n % 4}", "payload": n, "transactionId": f"t{n}"} for n in range(90)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda node: node.call("POST", "/api/v1/push", {"items": items}), cluster.nodes))
    assert [answer.status for answer in answers] == [201] * 3, answers
    told = [[each["status"] for each in answer.json] for answer in answers]
    assert all(sorted(each) == ["duplicate", "duplicate", "queued"] for each in zip(*told, strict=True))

    def drain(node: ClusterNode) -> list[int]:
        taken: list[int] = []
        while (answer := node.get("/api/v1/pop/queue/jobs?autoAck=true&batch=4")).status == 200:
            taken += [message["data"] for message in answer.json["messages"]]
        assert answer.status == 204, answer
        return taken

    with ThreadPoolExecutor(6) as threads:
        parts = list(threads.map(drain, [*cluster.nodes, *cluster.nodes]))
    assert sorted(number for part in parts for number in part) == list(range(90))
