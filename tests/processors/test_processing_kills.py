"""Brokers that process and are killed, stopped or paused meanwhile: every message comes out once, in order."""

from __future__ import annotations

from pathlib import Path

from testkit.campaign import Campaign
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.client import BlockingClient
from holdfast.model.messages import NewMessage
from holdfast.testing import LocalCluster
from holdfast.testing.node_process import Setting
from tests.processors.cluster_members import Calls
from tests.processors.processor_helpers import is_running

COUNT = 120
BUSY_MS = 15
# What a leader may have had in its workers.
INFLIGHT = 16


def workers_of(broker: BrokerProcess) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()]


def test_every_acknowledged_message_is_delivered_once_through_kills_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--processor", "sample_functions:upper") as broker:
        campaign = Campaign(broker, "processor kills", topics=["orders"], window=50)
        for _ in range(3):
            workers = workers_of(broker)
            assert workers, "its functions run in processes of their own"
            campaign.round(broker.kill, answers=(20, 200))
            wait_until(lambda: not any(map(is_running, workers)), "the workers end with their broker")  # noqa: B023
        sent = broker.stored_values("orders")
        assert len(sent) > 60
        wait_until(lambda: processed(broker) == len(sent), "everything is processed")
        assert broker.stored_values("orders.processed") == [value.upper() for value in sent]


def processed(broker: BrokerProcess) -> int:
    """Where the processor's cursor stands."""
    found = [each for each in broker.json("GET", "/v1/cursors")["cursors"] if each["name"] == PROCESSOR_CURSOR]
    return int(found[0]["partitions"][0]["offset"]) if found else 0


def test_every_message_comes_out_once_and_in_order_when_the_node_that_processes_it_is_gone(
    tmp_path: Path, calls: Calls
) -> None:
    settings: dict[str, Setting] = {
        "processor": "sample_functions:counted",
        "processor_workers": 2,
        "processor_inflight": INFLIGHT,
    }
    with LocalCluster(nodes=3, data=tmp_path / "data", settings=settings) as cluster:
        with cluster.connect_blocking() as client:
            client.create_topic("orders")
        count = again = 0
        for end in (cluster.kill, cluster.stop, cluster.pause):
            leader = cluster.leader("orders")
            with cluster.connect_blocking(next(node.id for node in cluster.nodes if node.id != leader)) as client:
                publish(client, count, COUNT)
                wait_until(lambda: len(calls.each()) > count + COUNT / 4, "some of it is processed")  # noqa: B023
                # Its workers finish what they have; the rest is for the next leader, however long the end takes.
                assert len(calls.each()) + INFLIGHT < count + COUNT, "too late: nothing is left for the next leader"
                end(leader)
                check(client, calls, count + COUNT)
                if end == cluster.pause:
                    cluster.resume(leader)
                    # It has heard that another one leads, and what was in its workers is done.
                    wait_until(lambda: cluster.node(leader).id != leads(cluster, leader), "it wakes up")  # noqa: B023
                else:
                    cluster.start(leader)
                publish(client, count + COUNT, 20)
                count += COUNT + 20
                check(client, calls, count)
            before, again = again, sum(calls.each().values()) - count
            assert again - before <= 3 * INFLIGHT, f"{again - before} messages were processed again"


def leads(cluster: LocalCluster, through: str) -> str | None:
    """Who leads the topic, as one node sees it."""
    with cluster.connect_blocking(through) as client:
        return client.describe("orders").partitions[0].leader


def publish(client: BlockingClient, first: int, count: int) -> None:
    values = (b"v%d" % number for number in range(first, first + count))
    client.publish_many("orders", [NewMessage(value=value, key=b"%d" % BUSY_MS) for value in values])


def check(client: BlockingClient, calls: Calls, count: int) -> None:
    def outputs() -> list[bytes]:
        return [message.value for message in client.read("orders.processed", 0, 0, messages_max=10_000)]

    wait_until(lambda: len(outputs()) >= count, f"{count} messages are processed")
    assert outputs() == [b"V%d" % number for number in range(count)]
    assert set(calls.each()) == {(0, offset) for offset in range(count)}
