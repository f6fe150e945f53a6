"""Everything above the seam on this store: text, HTTP, durable subscriptions and processing, end to end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
import structlog
from testkit.postgres import Server
from testkit.serving import PUBACK, Serving, serving
from testkit.wait import until

from holdfast.node.left_behind import warn_of_a_log
from tests.postgres.stores import query


async def test_text_and_http_publish_and_read_the_same_messages(tmp_path: Path, url: str) -> None:
    async with serving(tmp_path, store=url) as broker:
        async with await broker.subscribe(b"orders") as subscriber:
            await broker.publish(b"orders", [b"line %d" % number for number in range(2500)])
            assert await subscriber.lines(2500) == [b"MESSAGE|orders|line %d" % number for number in range(2500)]
        body = {"messages": [{"value": "from http", "id": "h-1", "headers": {"transaction-id": "tx-1"}}]}
        for duplicate in (False, True):
            (told,) = (await broker.http("POST", "/v1/topics/orders/messages", body))["results"]
            assert (told["offset"], told.get("duplicate", False)) == (2500, duplicate)
        page = await broker.http("GET", "/v1/topics/orders/partitions/0/messages?offset=2499")
        assert [message["value"] for message in page["messages"]] == ["line 2499", "from http"]
        described = await broker.http("GET", "/v1/topics/orders")
        assert (described["messages"], described["partitions"][0]["leader"]) == (2501, "n1")
        assert (await broker.http("GET", "/ready"))["ready"]
        assert len((await broker.http("GET", "/v1/cluster"))["nodes"]) == 1
        assert await broker.http("GET", "/v1/cluster/groups") == {"groups": []}
        # Sums that people look at count messages once.
        assert broker.node.broker.stats.published_messages == 2501
        assert broker.node.broker.stats.duplicates == 1
    rows = await query(url, "SELECT payload FROM holdfast.queue_messages WHERE transaction_id = 'tx-1'")
    assert rows == [("from http",)]


async def test_durable_subscriber_goes_on_at_another_broker(tmp_path: Path, url: str) -> None:
    async with serving(tmp_path / "one", store=url) as one, serving(tmp_path / "two", store=url, node="n2") as two:
        async with await one.subscribe(b"orders", b"billing") as subscriber:
            await one.publish(b"orders", [b"1", b"2"])
            assert await subscriber.lines(2) == [b"MESSAGE|orders|1", b"MESSAGE|orders|2"]
            await until(lambda: one.node.broker.describe_cursor("orders", "billing").lag == 0, "it is noted")
        await two.publish(b"orders", [b"3"])
        async with await two.subscribe(b"orders", b"billing") as subscriber:
            assert await subscriber.line() == b"MESSAGE|orders|3"
            await one.publish(b"orders", [b"4"])
            assert await subscriber.line() == b"MESSAGE|orders|4"


async def test_read_has_what_another_broker_acknowledged_before_it_began(tmp_path: Path, url: str) -> None:
    path = "/v1/topics/orders/partitions/0/messages"

    async def publish(broker: Serving, value: str) -> None:
        await broker.http("POST", "/v1/topics/orders/messages", {"messages": [{"value": value}]})

    async with serving(tmp_path / "one", store=url) as one, serving(tmp_path / "two", store=url, node="n2") as two:
        # The reader's broker has cached what it stored itself, and has heard that there is more.
        await publish(two, "a")
        await publish(one, "b")
        await until(lambda: two.end_offset("orders") == 2, "the other broker is heard of")
        page = await two.http("GET", path)
        assert ([each["value"] for each in page["messages"]], page["next_offset"]) == (["a", "b"], 2)

        page = await two.http("GET", f"{path}?max=1")
        assert ([each["value"] for each in page["messages"]], page["next_offset"]) == (["a"], 1)


async def test_each_message_is_processed_once_while_brokers_come_and_go(tmp_path: Path, url: str) -> None:
    settings = {"store": url, "compute_ms": "0:1", "processor_workers": 1}
    async with serving(tmp_path / "one", **settings) as one:
        await one.http("POST", "/v1/topics", {"topic": "jobs", "partitions": 4}, expect=201)
        async with await one.subscribe(b"jobs") as subscriber, serving(tmp_path / "two", node="n2", **settings) as two:
            for start in range(0, 200, 50):
                for number in range(start, start + 50):
                    two.node.broker.publish_values("jobs", [b"job %d" % number])
                await asyncio.sleep(0.2)
            first = await subscriber.lines(100)
            await two.node.stage.stop()  # type: ignore[union-attr]
            await two.node.backend.inner.holding.leave(two.node.backend.inner.writer.id)  # type: ignore[attr-defined]
            lines = sorted(first + await subscriber.lines(100))
            assert lines == sorted(b"MESSAGE|jobs|job %d" % number for number in range(200))
    counted = await query(url, "SELECT count(*) FROM holdfast.queue_messages WHERE queue = 'jobs.processed'")
    assert counted == [(200,)]


async def test_broker_without_its_database_answers_everybody(tmp_path: Path, server: Server) -> None:
    server.kill()
    async with serving(tmp_path, store=server.url, spill=False, compute_ms="0:0", processor_workers=1) as broker:
        async with await broker.connect() as client:
            assert await client.error_of(b"PUBLISH|orders|x") == "unavailable"
            assert await client.error_of(b"SUBSCRIBE|orders") == "unavailable"
            assert await client.error_of(b"SUBSCRIBE|orders|name") == "unavailable"
            assert await client.is_usable()
        for path in (
            "/v1/topics/orders",
            "/v1/topics/orders/partitions/0/messages",
            "/ready",
            "/v1/topics/orders/cursors/c",
        ):
            await broker.http("GET", path, expect=503)
        for path in ("/v1/topics", "/v1/cluster", "/v1/info", "/metrics", "/health"):
            await broker.http("GET", path)
        await server.start()
        await until(lambda: broker.node.backend.problem() is None, "it is there")
        async with await broker.subscribe(b"orders") as subscriber:
            await broker.publish(b"orders", [b"after"])
            assert await subscriber.line() == b"MESSAGE|orders|after"


async def test_clients_are_told_of_an_outage_and_served_after_it(tmp_path: Path, server: Server) -> None:
    async with serving(tmp_path, store=server.url, spill=False, store_timeout_ms=500) as broker:
        subscriber, publisher = await broker.subscribe(b"orders"), await broker.connect()
        async with subscriber, publisher:
            assert await publisher.ask(b"PUBLISH|orders|before") == PUBACK
            server.kill(signal.SIGSTOP)
            assert await publisher.error_of(b"PUBLISH|orders|x") in ("unavailable", "leader_changed")
            await until(lambda: broker.node.backend.problem() is not None, "it is known")
            assert await publisher.error_of(b"PUBLISH|orders|y") == "unavailable"
            answer = await broker.http("POST", "/v1/topics/orders/messages", {"messages": [{"value": "z"}]}, expect=503)
            assert answer["error"]["code"] == "unavailable"
            assert "away" in (await broker.http("GET", "/ready", expect=503))["reason"]
            await broker.http("GET", "/v1/topics/orders/partitions/0/messages?offset=0", expect=503)
            await broker.http("GET", "/metrics")
            server.kill(signal.SIGCONT)
            await until(lambda: broker.node.backend.problem() is None, "it is back")
            assert await publisher.ask(b"PUBLISH|orders|after") == PUBACK
            lines = [await subscriber.line()]
            while lines[-1] != b"MESSAGE|orders|after":
                lines.append(await subscriber.line())
            assert lines[0] == b"MESSAGE|orders|before"
            assert b"MESSAGE|orders|y" not in lines


async def test_broker_over_a_database_tells_of_messages_that_were_stored_without_one(tmp_path: Path, url: str) -> None:
    async with serving(tmp_path) as broker:
        await broker.publish(b"greetings", [b"hello"])
    with structlog.testing.capture_logs() as logs:
        async with serving(tmp_path, store=url):
            pass
        async with serving(tmp_path / "another", store=url):
            pass
    [told] = [line for line in logs if line["event"] == "log_ignored"]
    assert told["directory"].startswith(str(tmp_path)) and "--store" in told["hint"]


def test_log_that_cannot_be_looked_at_keeps_no_broker_over_a_database_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "topics").mkdir()
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        warn_of_a_log(tmp_path / "topics")
    [told] = logs
    assert told["event"] == "log_unreadable" and "Permission denied" in told["problem"]
