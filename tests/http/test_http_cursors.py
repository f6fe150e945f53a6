from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.frontends.http.services import Woken
from holdfast.model.messages import NewMessage
from tests.http.http_server import Answer, Server, serving

PATH = "/v1/topics/orders/cursors/billing"


def values(answer: Answer) -> list[str]:
    return [one["value"] for one in answer.json["messages"]]


def ack(server: Server, offsets: dict[str, Any]) -> Answer:
    return server.call("POST", f"{PATH}/ack", {"offsets": offsets})


def test_unacknowledged_messages_come_again_and_acknowledged_ones_do_not(server: Server) -> None:
    server.publish("orders", *"abcde")
    first = server.get(f"{PATH}/messages?max=2")
    assert (values(first), first.json["ack"]) == (["a", "b"], {"0": 2})
    assert first.json["messages"][0]["partition"] == 0
    assert values(server.get(f"{PATH}/messages?max=2")) == ["a", "b"]
    moved = ack(server, first.json["ack"])
    assert (moved.status, moved.json["lag"]) == (200, 3)
    assert values(server.get(f"{PATH}/messages")) == ["c", "d", "e"]
    described = server.get(PATH).json
    assert described == {
        "topic": "orders",
        "name": "billing",
        "lag": 3,
        "partitions": [{"partition": 0, "offset": 2, "end_offset": 5, "lag": 3}],
    }


def test_auto_ack_moves_the_cursor_in_the_same_step(server: Server) -> None:
    server.publish("orders", *"abc")
    assert values(server.get(f"{PATH}/messages?max=2&auto_ack=true")) == ["a", "b"]
    assert values(server.get(f"{PATH}/messages?max=2&auto_ack=true")) == ["c"]
    assert values(server.get(f"{PATH}/messages?auto_ack=true")) == []
    assert server.get(f"{PATH}/messages?auto_ack=yes").code == "bad_value"


def test_first_read_decides_where_a_cursor_begins(server: Server) -> None:
    server.publish("orders", *"abc")
    assert values(server.get(f"{PATH}/messages?from=latest")) == []
    server.publish("orders", "d")
    assert values(server.get(f"{PATH}/messages?from=earliest")) == ["d"]
    assert server.get("/v1/topics/orders/cursors/other/messages?from=nowhere").code == "bad_value"


def test_cursor_reads_all_partitions(server: Server) -> None:
    server.create("orders", partitions=3)
    for number in range(3):
        body = {"messages": [{"value": f"{number}-{place}", "partition": number} for place in range(4)]}
        assert server.call("POST", "/v1/topics/orders/messages", body).status == 200
    read = server.get(f"{PATH}/messages")
    assert sorted(values(read)) == sorted(f"{number}-{place}" for number in range(3) for place in range(4))
    assert read.json["ack"] == {"0": 4, "1": 4, "2": 4}
    ack(server, {"1": 4})
    assert {one["partition"] for one in server.get(f"{PATH}/messages").json["messages"]} == {0, 2}


def test_waiting_reader_gets_the_next_message(server: Server) -> None:
    server.create("orders")
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(server.get(f"{PATH}/messages?wait_ms=20000&auto_ack=true")))
    thread.start()
    wait_until(lambda: server.load.waits == 1, "it waits")
    server.publish("orders", "hello")
    thread.join(60)
    assert values(answers[0]) == ["hello"]
    assert server.get(PATH).json["lag"] == 0


def test_reader_that_left_does_not_take_messages_with_it(server: Server) -> None:
    server.create("orders")
    connection = server.connect()
    connection.request("GET", f"{PATH}/messages?wait_ms=20000&auto_ack=true")
    wait_until(lambda: server.load.waits == 1, "it waits")
    connection.close()
    wait_until(lambda: server.load.waits == 0, "it is forgotten")
    server.publish("orders", "for the next reader")
    assert server.get(PATH).json["lag"] == 1


def test_message_that_comes_as_the_reader_leaves_is_not_taken(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaves_while_a_message_comes(*_: object) -> Woken:
        await server.broker.publish("orders", [NewMessage(value=b"for the next reader")])
        return Woken.READER_GONE

    server.create("orders")
    monkeypatch.setattr(server.frontend._services, "wait", leaves_while_a_message_comes)
    assert values(server.get(f"{PATH}/messages?wait_ms=20000&auto_ack=true")) == []
    assert server.get(PATH).json["lag"] == 1


def test_seek_moves_a_cursor_anywhere(server: Server) -> None:
    server.publish("orders", *"abcde")
    server.get(f"{PATH}/messages?auto_ack=true")
    for to, expected in (("earliest", 0), ("latest", 5), (3, 3), ("2", 2), ("-10m", 0)):
        moved = server.call("PUT", PATH, {"to": to})
        assert (moved.status, moved.json["partitions"][0]["offset"]) == (200, expected), (to, moved)
    assert server.call("PUT", PATH, {"to": 4, "partition": 0}).json["lag"] == 1
    for body, code in (
        ({"to": 6}, "bad_value"),
        ({"to": -1}, "bad_value"),
        ({"to": "soon"}, "bad_value"),
        ({"to": None}, "bad_value"),
        ({"to": 1.5}, "bad_value"),
        ({"to": 1, "partition": 9}, "partition_not_found"),
        ({"to": 1, "partition": -1}, "bad_value"),
        ({}, "bad_value"),
        ({"to": 1, "where": 2}, "bad_value"),
    ):
        assert server.call("PUT", PATH, body).code == code, body
    assert server.get(PATH).json["lag"] == 1


def test_cursors_are_listed_and_forgotten(server: Server) -> None:
    server.publish("orders", "a")
    server.publish("bills", "a")
    for topic in ("orders", "bills"):
        server.get(f"/v1/topics/{topic}/cursors/billing/messages")
    assert [(one["topic"], one["name"]) for one in server.get("/v1/cursors").json["cursors"]] == [
        ("bills", "billing"),
        ("orders", "billing"),
    ]
    assert [one["topic"] for one in server.get("/v1/topics/orders/cursors").json["cursors"]] == ["orders"]
    assert server.call("DELETE", PATH).status == 204
    assert server.call("DELETE", PATH).code == "cursor_not_found"
    assert server.get("/v1/topics/orders/cursors").json == {"cursors": []}


def test_bad_acknowledgements_change_nothing(server: Server) -> None:
    server.publish("orders", "a", "b")
    server.get(f"{PATH}/messages")
    for offsets, code in (
        ({"0": 3}, "bad_value"),
        ({"0": -1}, "bad_value"),
        ({"0": "1"}, "bad_value"),
        ({"x": 1}, "bad_value"),
        ({"1": 1}, "partition_not_found"),
        ([1], "bad_value"),
    ):
        refused = server.call("POST", f"{PATH}/ack", {"offsets": offsets})
        assert refused.code == code, (offsets, refused)
    assert server.get(PATH).json["lag"] == 2
    assert server.call("POST", "/v1/topics/orders/cursors/nobody/ack", {"offsets": {}}).code == "cursor_not_found"


def test_cursor_names_cannot_name_a_path(server: Server) -> None:
    server.create("orders")
    for name in ("..%2Fx", "a%20b", "%00", "x" * 201):
        refused = server.get(f"/v1/topics/orders/cursors/{name}/messages")
        assert (refused.status, refused.code) == (400, "bad_cursor"), refused


def test_answer_of_a_cursor_is_bounded_in_bytes(server: Server) -> None:
    """Ten thousand messages may be asked for, but not ten thousand times the largest one."""
    for _ in range(20):
        server.publish("orders", "x" * 100_000)
    read = server.get(f"{PATH}/messages?max=10000&max_bytes=300000")
    assert 1 <= len(values(read)) <= 4
    assert len(values(server.get(f"{PATH}/messages?max=10000&max_bytes=1"))) == 1


def test_readers_of_a_processed_topic_get_what_the_processor_made(tmp_path: Path) -> None:
    def delivers_from(name: str) -> str:
        return name if name.endswith(".processed") else f"{name}.processed"

    with serving(tmp_path / "data", broker={"delivers_from": delivers_from}) as server:
        for path in ("tail", "cursors/billing/messages"):
            assert server.get(f"/v1/topics/orders/{path}").code == "topic_not_found"
        server.publish("orders", "raw")
        assert server.call("DELETE", "/v1/topics/orders.processed").status == 204
        # The topic is there, but the processor has not made the other one again yet: come back later.
        for path in ("tail", "cursors/billing/messages?wait_ms=10"):
            early = server.get(f"/v1/topics/orders/{path}")
            assert (early.status, early.code) == (503, "unavailable")
            assert "retry-after" in early.headers
        assert server.call("PUT", PATH, {"to": "latest"}).status == 503
        server.publish("orders.processed", "cooked")
        assert values(server.get(f"{PATH}/messages?auto_ack=true")) == ["cooked"]
        assert server.get("/v1/topics/orders").json["delivers_from"] == "orders.processed"
        assert server.get("/v1/topics/orders/partitions/0/messages").json["messages"][0]["value"] == "raw"
        assert server.get(f"{PATH}/messages?wait_ms=100").json == {"messages": [], "ack": {}}


def test_reader_cannot_have_a_name_that_the_broker_keeps_for_itself(server: Server) -> None:
    server.publish("orders", "a")
    for name in ("holdfast.processor", "holdfast.done"):
        path = f"/v1/topics/orders/cursors/{name}"
        for refused in (
            server.call("PUT", path, {"to": "earliest"}),
            server.call("POST", f"{path}/ack", {"offsets": {"0": 1}}),
            server.get(f"{path}/messages"),
        ):
            assert (refused.status, refused.code) == (400, "bad_cursor"), refused
        assert server.get(path).code == "cursor_not_found"
    assert server.get("/v1/cursors").json == {"cursors": []}
