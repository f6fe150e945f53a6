"""A node whose majority is gone: it refuses what it cannot promise, says why, and shows what it has."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from testkit.batches import foreign_values
from testkit.wait import wait_until

from tests.http.http_cluster import Cluster, ClusterNode, three_nodes
from tests.http.http_server import BATCHES, Answer

TOPIC = "orders"
PARTITIONS = 3
# Longer than any patience in the broker; a test that comes near it has found a hang.
LONG_MS = 60_000


def began(cluster: Cluster) -> ClusterNode:
    """A message in each partition, known to all nodes; returns the first node."""
    first = cluster.nodes[0]
    first.create(TOPIC, PARTITIONS)
    cluster.wait_for_leaders(TOPIC, PARTITIONS)
    for number in range(PARTITIONS):
        messages = [{"value": f"value-{number}", "partition": number}]
        assert first.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages}).status == 200
        assert messages_of(first, number).status == 200
    return first


def messages_of(node: ClusterNode, partition: int, query: str = "", **headers: str) -> Answer:
    return node.get(f"/v1/topics/{TOPIC}/partitions/{partition}/messages{query}", **headers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The second node leads the control group when it is killed together with the third."""
    with three_nodes(tmp_path_factory.mktemp("minority")) as running:
        first = began(running)
        assert first.call("POST", "/v1/cluster/transfer", {"to": "n2"}).status == 200
        # Nobody reads this through the first node before it is alone.
        running.nodes[1].publish("unread", "a")
        assert first.call("POST", "/v1/cluster/transfer", {"topic": TOPIC, "partition": 0, "to": "n1"}).status == 200
        # Something is under way in every group, so that none of them sleeps.
        for number in range(PARTITIONS):
            messages = [{"value": "last", "partition": number}]
            assert first.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages}).status == 200
            assert messages_of(first, number).status == 200
        for node in running.nodes[1:]:
            node.process.kill()
        wait_until(lambda: not first.process.is_ready, "it says that it takes publishes")
        wait_until(lambda: leaders(first) == [None] * PARTITIONS, "it believes that somebody leads")
        yield running


@pytest.fixture
def alone(cluster: Cluster) -> ClusterNode:
    return cluster.nodes[0]


def leaders(node: ClusterNode) -> list[str | None]:
    return [one["leader"] for one in node.get(f"/v1/topics/{TOPIC}").json["partitions"]]


def assert_no_quorum(answer: Answer) -> None:
    assert (answer.status, answer.code) == (503, "no_quorum"), answer
    assert answer.headers["retry-after"] == "1"
    assert "n2, n3 cannot be reached" in answer.message


def test_readiness_says_who_is_missing(alone: ClusterNode) -> None:
    answer = alone.get("/ready")
    assert (answer.status, answer.json["ready"]) == (503, False)
    assert "n2, n3 cannot be reached" in answer.json["reason"]
    assert alone.get("/health").status == 200, "the process itself is well"


def test_cluster_says_who_is_missing(alone: ClusterNode) -> None:
    described = alone.get("/v1/cluster").json
    assert (described["has_quorum"], described["leader"], described["missing"]) == (False, None, ["n2", "n3"])
    assert [node["is_up"] for node in described["nodes"]] == [True, False, False]
    assert [node["lag"] for node in described["nodes"]] == [None] * 3, "nobody can tell"
    assert described["nodes"][1]["role"] is None


def test_writes_and_reads_that_could_be_old_are_refused_with_who_is_missing(alone: ClusterNode) -> None:
    partition = f"/v1/topics/{TOPIC}/partitions/0"
    writes: list[tuple[str, str, object]] = [
        ("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [{"value": "x", "partition": 0}]}),
        ("POST", "/v1/topics", {"topic": "fresh"}),
        ("DELETE", f"/v1/topics/{TOPIC}", None),
        ("PUT", f"/v1/topics/{TOPIC}/cursors/reader", {"to": "earliest"}),
        ("POST", "/v1/cluster/transfer", {"to": "n1"}),
    ]
    reads = [
        f"{partition}/messages",
        f"{partition}/messages?offset=1000&wait_ms={LONG_MS}",
        f"{partition}/offsets?timestamp=latest",
        f"{partition}/offsets?timestamp=0",
        f"/v1/topics/{TOPIC}/cursors/reader/messages",
        f"/v1/topics/{TOPIC}/tail?from=latest",
        "/v1/topics/nobody-knows",
    ]
    for answer in at_once([*writes, *(("GET", path, None) for path in reads)], alone):
        assert_no_quorum(answer)
    assert_no_quorum(messages_of(alone, 0, Accept=BATCHES))
    unreachable = alone.call("POST", "/v1/cluster/transfer", {"to": "n2"})
    assert (unreachable.status, unreachable.code) == (400, "bad_value")


def at_once(calls: Sequence[tuple[str, str, object]], node: ClusterNode) -> list[Answer]:
    """Each call waits a while for a majority; together they do not wait longer."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: node.call(*call), calls))


def test_stale_reads_are_served(alone: ClusterNode) -> None:
    for number in range(PARTITIONS):
        answer = messages_of(alone, number, "?stale=true")
        assert answer.status == 200, answer
        assert [one["value"] for one in answer.json["messages"]] == [f"value-{number}", "last"]
        assert answer.json["stale_ms"] > 0
        assert answer.headers["holdfast-stale-ms"] == str(answer.json["stale_ms"])
        batches = messages_of(alone, number, "?stale=true", Accept=BATCHES)
        assert foreign_values(batches.body) == [f"value-{number}".encode(), b"last"]
        assert int(batches.headers["holdfast-stale-ms"]) > 0
        assert messages_of(alone, number, "?offset=latest&stale=true&wait_ms=100").json["next_offset"] == 2
    unknown = alone.get("/v1/topics/nobody-knows/partitions/0/messages?stale=true")
    assert (unknown.status, unknown.code) == (404, "topic_not_found")


def test_age_of_a_stale_read_is_the_time_since_the_others_left(alone: ClusterNode) -> None:
    for topic, number in ((TOPIC, 0), (TOPIC, 1), (TOPIC, 2), ("unread", 0)):
        answer = alone.get(f"/v1/topics/{topic}/partitions/{number}/messages?stale=true")
        assert 0 < answer.json["stale_ms"] < LONG_MS, (topic, number)


def test_stale_stream_shows_what_is_there(alone: ClusterNode) -> None:
    connection = alone.connect()
    connection.request("GET", f"/v1/topics/{TOPIC}/tail?from=earliest&partition=0&stale=true")
    response = connection.getresponse()
    assert int(response.headers["Holdfast-Stale-Ms"]) > 0
    assert "value-0" in next_data(response) and "last" in next_data(response)
    response.close()
    connection.close()


def next_data(response: http.client.HTTPResponse) -> str:
    while line := response.readline().decode():
        if line.startswith("data: "):
            return line
    raise AssertionError("the stream ended")


def test_metrics_tell_of_the_gap(alone: ClusterNode) -> None:
    before = alone.metric("holdfast_leaderless_seconds_total")
    assert alone.metric("holdfast_leaderless_seconds") > 0
    wait_until(lambda: alone.metric("holdfast_leaderless_seconds_total") > before)
    assert alone.metric("holdfast_ready") == 0
    assert (alone.metric("holdfast_nodes_up"), alone.metric("holdfast_nodes_missing")) == (1, 2)
    assert (alone.metric("holdfast_control_leader"), alone.metric("holdfast_partitions_led")) == (0, 0)


def test_all_goes_on_when_the_others_are_back(cluster: Cluster, alone: ClusterNode) -> None:
    cluster.start()
    cluster.wait_for_leaders(TOPIC, PARTITIONS)
    messages = [{"value": "again", "partition": 0}]
    assert alone.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages}).status == 200
    for node in cluster.nodes:
        assert [one["value"] for one in messages_of(node, 0).json["messages"]][-1] == "again"
    wait_until(lambda: alone.metric("holdfast_leaderless_seconds") == 0)


def test_idle_leader_notices_that_the_others_are_gone(cluster: Cluster, alone: ClusterNode) -> None:
    # The test before this one has only just let the others come back; or another process ran it.
    cluster.start()
    cluster.wait_for_leaders(TOPIC, PARTITIONS)
    answers: list[Answer] = []

    def is_handed_over() -> bool:
        answers.append(alone.call("POST", "/v1/cluster/transfer", {"to": "n1"}))
        return answers[-1].status == 200

    wait_until(is_handed_over, "the leadership is handed over")

    def is_asleep() -> bool:
        return all(group["is_asleep"] for group in alone.get("/v1/cluster/groups").json["groups"])

    wait_until(is_asleep, "its groups sleep")
    for node in cluster.nodes[1:]:
        node.process.kill()
    wait_until(lambda: not alone.process.is_ready, "it says that it takes publishes")
    wait_until(lambda: leaders(alone) == [None] * PARTITIONS, "it believes that somebody leads")
