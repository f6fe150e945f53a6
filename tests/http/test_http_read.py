from __future__ import annotations

import threading
import time
from collections.abc import Callable

from testkit.wait import wait_until

from holdfast.model.limits import HTTP_READ_BYTES_MAX, HTTP_READ_MESSAGES_MAX, LONG_POLL_MS_MAX
from holdfast.model.messages import NewMessage
from tests.http.http_server import BATCHES, Answer, Server

PATH = "/v1/topics/orders/partitions/0/messages"


def later(work: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def test_pages_of_messages_join_without_gap_or_overlap(server: Server) -> None:
    server.publish("orders", *map(str, range(250)))
    offset, seen = 0, []
    while True:
        page = server.get(f"{PATH}?offset={offset}&max=37").json
        if not page["messages"]:
            break
        assert page["next_offset"] == page["messages"][-1]["offset"] + 1
        seen += page["messages"]
        offset = page["next_offset"]
    assert [one["value"] for one in seen] == list(map(str, range(250)))
    assert [one["offset"] for one in seen] == list(range(250))
    assert set(seen[0]) == {"offset", "timestamp", "id", "key", "value", "headers"}
    assert abs(seen[0]["timestamp"] - time.time() * 1000) < 60_000
    assert (seen[0]["key"], seen[0]["headers"], seen[0]["id"]) == (None, {}, "0-0")


def test_offset_can_be_a_word_or_a_time_ago(server: Server) -> None:
    server.publish("orders", "a", "b")
    assert len(server.get(PATH).json["messages"]) == 2
    assert len(server.get(f"{PATH}?offset=earliest").json["messages"]) == 2
    assert server.get(f"{PATH}?offset=latest").json == {"messages": [], "next_offset": 2}
    assert len(server.get(f"{PATH}?offset=-10m").json["messages"]) == 2
    assert server.get(f"{PATH}?offset=2").json == {"messages": [], "next_offset": 2}
    beyond = server.get(f"{PATH}?offset=3")
    assert (beyond.status, beyond.code) == (416, "offset_out_of_range")


def test_long_poll_wakes_when_a_message_comes(server: Server) -> None:
    server.create("orders")
    thread, answers = later(lambda: server.get(f"{PATH}?offset=0&wait_ms=20000"))
    wait_until(lambda: server.load.waits == 1, "it waits")
    assert not answers
    server.publish("orders", "hello")
    thread.join(60)
    assert [one["value"] for one in answers[0].json["messages"]] == ["hello"]
    assert answers[0].json["next_offset"] == 1


def test_long_poll_for_batches_wakes_too(server: Server) -> None:
    server.create("orders")
    thread, answers = later(lambda: server.get(f"{PATH}?offset=latest&wait_ms=20000", Accept=BATCHES))
    wait_until(lambda: server.load.waits == 1, "it waits")
    server.publish("orders", "hello")
    thread.join(60)
    assert answers[0].headers["holdfast-next-offset"] == "1"
    assert b"hello" in answers[0].body


def test_long_poll_ends_empty_when_nothing_comes(server: Server) -> None:
    server.create("orders")
    began = time.monotonic()
    answer = server.get(f"{PATH}?wait_ms=300")
    assert time.monotonic() - began > 0.25
    assert answer.json == {"messages": [], "next_offset": 0}


def test_long_poll_of_a_topic_that_is_deleted_ends(server: Server) -> None:
    server.create("orders")
    thread, answers = later(lambda: server.get(f"{PATH}?wait_ms=20000"))
    wait_until(lambda: server.load.waits == 1, "it waits")
    server.call("DELETE", "/v1/topics/orders")
    thread.join(60)
    assert answers and answers[0].code == "topic_not_found"


def test_reader_that_leaves_a_long_poll_is_forgotten(server: Server) -> None:
    server.create("orders")
    connection = server.connect()
    connection.request("GET", f"{PATH}?wait_ms=20000")
    wait_until(lambda: server.load.waits == 1, "it waits")
    connection.close()
    wait_until(lambda: server.load.waits == 0, "it is forgotten")


def test_bytes_that_are_no_text_come_as_base64(server: Server) -> None:
    async def publish() -> None:
        message = NewMessage(value=b"\xff\xfe", key=b"\x80", headers=[("good", b"text"), ("bad", b"\xff")])
        await server.broker.publish("orders", [message])

    server.run(publish())
    [message] = server.get(PATH).json["messages"]
    assert message["base64"] == "//4=" and "value" not in message
    assert message["key_base64"] == "gA==" and "key" not in message
    assert (message["headers"], message["headers_base64"]) == ({"good": "text"}, {"bad": "/w=="})


def test_offsets_are_found_by_time(server: Server) -> None:
    server.publish("orders", "old")
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    server.publish("orders", "new")
    path = "/v1/topics/orders/partitions/0/offsets"
    assert server.get(f"{path}?timestamp={between}").json == {"offset": 1}
    assert server.get(f"{path}?timestamp=0").json == {"offset": 0}
    assert server.get(f"{path}?timestamp=99999999999999").json == {"offset": 2}
    assert server.get(f"{path}?timestamp=earliest").json == {"offset": 0}
    assert server.get(f"{path}?timestamp=latest").json == {"offset": 2}
    missing = server.get(path)
    assert missing.code == "bad_value" and "timestamp" in missing.message
    assert server.get(f"{path}?timestamp=yesterday").code == "bad_value"


def test_bad_parameters_are_named(server: Server) -> None:
    server.create("orders")
    for query, named in [
        ("offset=-1", "-1"),
        ("offset=soon", "soon"),
        ("max=0", "max must be 1 to"),
        (f"max={HTTP_READ_MESSAGES_MAX + 1}", "max must be"),
        ("max=1_0", "max must be a whole number"),
        ("max=%D9%A1", "max must be a whole number"),
        ("max=1.0", "max"),
        (f"max_bytes={HTTP_READ_BYTES_MAX + 1}", "max_bytes"),
        (f"wait_ms={LONG_POLL_MS_MAX + 1}", "wait_ms"),
        ("wait_ms=-1", "wait_ms"),
        ("max_byts=1", "this call takes offset, max, max_bytes, wait_ms"),
        ("max=1&max=2", "twice"),
        ("max", "query string"),
        ("max=%ff", "query string"),
        ("&".join(["max=1"] * 100), "query string"),
    ]:
        refused = server.get(f"{PATH}?{query}")
        assert (refused.status, refused.code) == (400, "bad_value"), (query, refused)
        assert named in refused.message, (query, refused.message)
    assert server.get(f"{PATH}?max=&offset=").status == 200


def test_what_is_not_there_is_not_found(server: Server) -> None:
    server.create("orders")
    for path, code in [
        ("/v1/topics/nothing/partitions/0/messages", "topic_not_found"),
        ("/v1/topics/orders/partitions/1/messages", "partition_not_found"),
        ("/v1/topics/orders/partitions/-1/messages", "partition_not_found"),
        ("/v1/topics/orders/partitions/x/messages", "partition_not_found"),
        ("/v1/topics/orders/partitions/99999999999999999999/messages", "partition_not_found"),
        ("/v1/topics/orders/partitions/1/offsets?timestamp=0", "partition_not_found"),
        ("/v1/topics/nothing/tail", "topic_not_found"),
        ("/v1/topics/orders/tail?partition=1", "partition_not_found"),
        ("/v1/topics/orders/cursors/nobody", "cursor_not_found"),
        ("/v1/topics/nothing/cursors", "topic_not_found"),
    ]:
        answer = server.get(path)
        assert (answer.status, answer.code) == (404, code), (path, answer)
