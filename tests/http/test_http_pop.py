"""Pop: each message goes to one client of its group, in the order of its partition."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from testkit.wait import wait_until

from tests.http.http_server import Client, Server, serving


def push(server: Client, queue: str, *items: tuple[str, Any]) -> None:
    listed = [{"queue": queue, "partition": name, "payload": payload} for name, payload in items]
    assert server.call("POST", "/api/v1/push", {"items": listed}).status == 201


def pop(server: Client, queue: str, name: str | None = None, batch: int = 100, **query: str) -> list[Any]:
    path = f"/api/v1/pop/queue/{queue}" + ("" if name is None else f"/partition/{quote(name, safe='')}")
    asked = "&".join(f"{key}={value}" for key, value in {"autoAck": "true", "batch": batch, **query}.items())
    answer = server.get(f"{path}?{asked}")
    if answer.status == 204:
        assert answer.body == b""
        return []
    assert answer.status == 200, answer
    assert answer.json["success"] and answer.json["queue"] == queue and answer.json["messages"]
    return [message["data"] for message in answer.json["messages"]]


def test_each_group_gets_each_message_once_in_order(server: Server) -> None:
    push(server, "q", *(("p", number) for number in range(10)))
    assert pop(server, "q", batch=4) == [0, 1, 2, 3]
    assert pop(server, "q", consumerGroup="other") == list(range(10))
    assert pop(server, "q", batch=1) == [4]
    assert pop(server, "q") == [5, 6, 7, 8, 9]
    assert pop(server, "q") == pop(server, "q", consumerGroup="other") == []
    push(server, "q", ("p", 10))
    assert pop(server, "q") == [10]


def test_place_of_a_group_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        push(server, "q", ("p", 1), ("r", 2), ("p", 3))
        assert pop(server, "q", batch=1) == [1]
        assert pop(server, "q", "p", consumerGroup="named", batch=1) == [1]
    with serving(tmp_path / "data") as server:
        assert pop(server, "q") == [2, 3]
        assert pop(server, "q", "p", consumerGroup="named") == [3]


def test_pop_of_a_partition_gives_its_messages_alone(server: Server) -> None:
    server.create("q", partitions=2)
    push(server, "q", *((f"p{number % 5}", number) for number in range(50)))
    assert pop(server, "q", "p3", batch=3) == [3, 8, 13]
    assert pop(server, "q", "p3") == list(range(18, 50, 5))
    assert pop(server, "q", "p3") == pop(server, "q", "nobody") == []
    assert pop(server, "q", "p4") == list(range(4, 50, 5))


def test_both_ways_to_pop_share_the_messages_of_a_group(server: Server) -> None:
    push(server, "q", ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5))
    assert pop(server, "q", "a", batch=2) == [1, 3]
    assert pop(server, "q", batch=2) == [2, 4]
    assert pop(server, "q", "b") == []
    assert pop(server, "q", "a") == [5]
    assert pop(server, "q") == []


def test_far_away_messages_of_a_partition_are_found_without_looking_at_the_others_twice(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 6000, 1000):
        push(server, "q", *(("busy", number) for number in range(start, start + 1000)))
    push(server, "q", ("rare", "here"))
    reads = 0
    read = server.broker.backend.read

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    monkeypatch.setattr(server.broker.backend, "read", counted)
    assert pop(server, "q", "rare") == ["here"]
    looked_at, reads = reads, 0
    push(server, "q", ("rare", "again"))
    assert pop(server, "q", "rare") == ["again"]
    assert looked_at >= 1 and reads <= 2
    assert pop(server, "q", "nobody") == []
    [place] = [each for each in server.get("/v1/topics/q/cursors").json["cursors"] if each["lag"] <= 1000][:1]
    assert place["name"].startswith("__QUEUE_MODE__.pop-")


def test_messages_that_were_published_in_other_ways_are_popped_too(server: Server) -> None:
    messages = [
        {"value": "plain text"},
        {"json": {"a": 1}, "key": "k", "id": "i-1", "headers": {"trace-id": "t"}},
        {"base64": "/wA=", "key": "k"},
    ]
    server.call("POST", "/v1/topics/q/messages", {"messages": messages})
    popped = server.get("/api/v1/pop/queue/q?autoAck=true&batch=9").json
    assert popped["partition"] is None
    text, listed, binary = popped["messages"]
    assert (text["partition"], text["data"], text["id"], text["transactionId"]) == (
        "Default",
        "plain text",
        "0-0",
        "0-0",
    )
    assert (listed["partition"], listed["data"], listed["id"], listed["traceId"]) == ("k", {"a": 1}, "i-1", "t")
    assert (binary["data"], binary["encoding"]) == ("/wA=", "base64")
    assert text["createdAt"].endswith("Z") and text["traceId"] is None
    assert server.get("/api/v1/pop/queue/q/partition/k?autoAck=true&consumerGroup=g").json["partition"] == "k"


def test_waiting_pop_is_answered_as_soon_as_a_message_comes(server: Server) -> None:
    with ThreadPoolExecutor(2) as threads:
        any_one = threads.submit(pop, server, "new", wait="true", timeout="20000")
        named = threads.submit(pop, server, "new", "p", consumerGroup="g", wait="true", timeout="20000")
        until_waiting(server, 2)
        push(server, "new", ("other", 0))
        assert any_one.result(60) == [0]
        assert not named.done()
        push(server, "new", ("p", 1))
        assert named.result(60) == [1]


def test_pop_of_a_queue_that_nobody_pushed_to_finds_nothing_and_makes_nothing(server: Server) -> None:
    assert pop(server, "nowhere") == pop(server, "nowhere", "p", consumerGroup="g") == []
    assert pop(server, "nowhere", wait="true", timeout="100") == []
    assert server.get("/v1/topics").json["topics"] == []
    assert server.broker.pops._awaited == {}, "nobody waits any more"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pop, server, "nowhere", wait="true", timeout="20000")
        until_waiting(server, 1)
        assert server.get("/v1/topics").json["topics"] == []
        push(server, "nowhere", ("p", 1))
        assert waiting.result(60) == [1]


def test_pop_of_a_queue_that_may_not_be_made_says_that_it_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path / "data", broker={"auto_create": False}) as server:
        assert server.get("/api/v1/pop/queue/nowhere?autoAck=true&wait=true").code == "topic_not_found"


def test_waiting_pop_ends_when_its_time_is_up(server: Server) -> None:
    began_s = time.monotonic()
    assert pop(server, "q", wait="true", timeout="200") == []
    assert time.monotonic() - began_s >= 0.2


def test_client_that_leaves_while_it_waits_takes_nothing(server: Server) -> None:
    connection = server.connect()
    connection.request("GET", "/api/v1/pop/queue/q?autoAck=true&wait=true")
    until_waiting(server, 1)
    connection.close()
    until_waiting(server, 0)
    push(server, "q", ("p", 1))
    assert pop(server, "q") == [1]


def until_waiting(server: Server, count: int) -> None:
    wait_until(lambda: server.load.waits == count, f"{count} wait")


def test_what_cannot_be_popped_is_said(shared_server: Server) -> None:
    for path, code, status in [
        ("q", "not_supported", 501),
        ("q?autoAck=false", "not_supported", 501),
        ("q?autoAck=yes", "bad_value", 400),
        ("q?autoAck=true&batch=0", "bad_value", 400),
        ("q?autoAck=true&batch=10001", "bad_value", 400),
        ("q?autoAck=true&wait=true&timeout=60001", "bad_value", 400),
        ("q?autoAck=true&partitions=4", "bad_value", 400),
        ("q?autoAck=true&consumerGroup=a%20b", "bad_cursor", 400),
        ("q?autoAck=true&consumerGroup=holdfast.processor", "bad_cursor", 400),
        ("q?autoAck=true&consumerGroup=" + "g" * 180, "bad_cursor", 400),
        ("bad%2Cname?autoAck=true", "bad_topic", 400),
        ("q/partition/%FF?autoAck=true", "bad_value", 400),
    ]:
        answer = shared_server.get(f"/api/v1/pop/queue/{path}")
        assert (answer.code, answer.status) == (code, status), path


def test_page_of_another_site_cannot_pop(shared_server: Server) -> None:
    answer = shared_server.get("/api/v1/pop/queue/q?autoAck=true", Origin="http://elsewhere.example")
    assert answer.code == "cross_origin"
