"""Brokers as processes, killed and stopped at any moment: what was acknowledged is stored once, in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from zlib import crc32

from testkit.campaign import Campaign
from testkit.postgres import Server
from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK
from testkit.wait import wait_until

from holdfast.backends.spill import files
from holdfast.client import connect

BUFFERED = {"partition": 0, "offset": -1, "duplicate": False, "buffered": True}


def publish(broker: BrokerProcess, *values: str) -> list[dict[str, object]]:
    body = {"messages": [{"value": value} for value in values]}
    results: list[dict[str, object]] = broker.json("POST", "/v1/topics/orders/messages", body)["results"]
    return results


async def test_acknowledged_messages_survive_kills_of_the_broker_and_the_database(
    tmp_path: Path, server: Server
) -> None:
    """The broker is killed while it keeps messages, and while it stores them; then everything is there once."""
    with BrokerProcess(tmp_path / "data", "--store", server.url, "--spill-events-per-file", "500") as broker:
        campaign = Campaign(broker, "spill kills", topics=["orders"], window=500)
        flood = campaign.flood(answers=(1, 100, 1_000))
        server.kill()
        kept_from = len(flood.answers)
        flood.wait_for(lambda: len(flood.answers) > kept_from + 2_000)
        broker.kill()
        flood.end()
        broker.restart()
        assert broker.json("GET", "/health")["database"] == "disconnected"
        await server.start()
        wait_until(lambda: broker.metric("holdfast_spill_replayed_messages_total") > 0, "it is being stored")
        broker.kill()
        broker.restart()
        wait_until(lambda: not files.listed(broker.data / "spill"), "everything is stored")
        assert broker.json("GET", "/health")["file_buffer"]["db_healthy"]
        campaign.check(flood)


async def test_sigterm_completes_the_files_and_the_next_start_stores_them(tmp_path: Path, server: Server) -> None:
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_STORE": server.url}) as broker:
        publish(broker, "1")
        server.kill()
        publish(broker, '{"id": 2}', "three")
        broker.terminate()
        [file] = files.listed(broker.data / "spill")
        assert file.is_complete
        told = [json.loads(line) for line in file.path.read_text().splitlines()]
        assert [each.get("payload", each.get("payload_text")) for each in told] == [{"id": 2}, "three"]
        await server.start()
        broker.start()
        wait_until(lambda: not files.listed(broker.data / "spill"), "all is stored")
        assert broker.stored_values("orders") == [b"1", b'{"id": 2}', b"three"]


async def test_text_and_client_publishers_are_acknowledged_as_usual(tmp_path: Path, server: Server) -> None:
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_STORE": server.url}) as broker:
        publish(broker, "1")
        server.kill()
        with broker.connect() as client:
            client.say(b"PUBLISH|orders|2")
            assert client.lines(1) == [PUBACK]
        async with connect("{}:{}".format(*broker.http_address)) as client:
            published = await client.publish("orders", b"3")
            assert published.buffered
            many = await client.publish_many("orders", [b"4", b"5"])
            assert [each.buffered for each in many] == [True, True]
        await server.start()
        wait_until(lambda: not files.listed(broker.data / "spill"), "all is stored")
        assert broker.stored_values("orders") == [b"1", b"2", b"3", b"4", b"5"]


async def test_client_that_comes_while_the_database_is_silent_publishes_to_a_topic_nobody_knows(
    tmp_path: Path, server: Server
) -> None:
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_STORE": server.url}) as broker:
        server.kill(signal.SIGSTOP)
        try:
            async with connect("{}:{}".format(*broker.http_address), timeout_s=15.0) as client:
                assert (await client.publish("new", b"1")).buffered
        finally:
            server.kill(signal.SIGCONT)
        wait_until(lambda: not files.listed(broker.data / "spill"), "all is stored")
        assert broker.stored_values("new") == [b"1"]


async def test_client_divides_a_topic_that_its_broker_did_not_know_as_the_store_does(
    tmp_path: Path, server: Server
) -> None:
    """Its broker starts without the store and takes the topic for a new one: it cannot say how it is divided."""
    keys = [f"key {number}" for number in range(8)]
    with BrokerProcess(tmp_path / "other", environment={"HOLDFAST_STORE": server.url}) as other:
        other.json("POST", "/v1/topics", {"topic": "orders", "partitions": 4})
    server.kill()
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_STORE": server.url}) as broker:
        async with connect("{}:{}".format(*broker.http_address)) as client:
            for key in keys:
                assert (await client.publish("orders", b"1", key=key)).buffered
            assert (await client.describe("orders")).assumed
            await server.start()
            wait_until(lambda: not files.listed(broker.data / "spill"), "all is stored")
            for key in keys:
                published = await client.publish("orders", b"2", key=key)
                assert not published.buffered and published.partition == crc32(key.encode()) % 4
            assert not (await client.describe("orders")).assumed
            for number in range(4):
                of_partition = [key for key in keys if crc32(key.encode()) % 4 == number]
                stored = [(each.key, each.value) for each in await client.read("orders", number)]
                assert stored == [(key.encode(), value) for value in (b"1", b"2") for key in of_partition]


async def test_aliases_of_queen_mq_are_understood(tmp_path: Path, server: Server) -> None:
    environment = {"HOLDFAST_STORE": server.url, "FILE_BUFFER_DIR": str(tmp_path / "buffers")}
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        server.kill()
        assert publish(broker, "1")[0]["buffered"]
        assert len(files.listed(tmp_path / "buffers")) == 1
