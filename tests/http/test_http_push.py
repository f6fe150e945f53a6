"""Push: what was answered is stored, once, in order, and byte for byte as it was sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.frontends.http import push as push_calls
from holdfast.model.errors import Unavailable
from holdfast.model.ids import NO_OFFSET
from holdfast.model.limits import MESSAGE_BYTES_MAX
from tests.http.http_server import Answer, Client, Server, serving


def push(server: Client, *items: dict[str, Any] | bytes, expect: int = 201) -> Any:
    texts = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    answer = raw(server, b'{"items": [' + b",".join(texts) + b"]}")
    assert answer.status == expect, answer
    return answer.json


def raw(server: Client, body: bytes) -> Answer:
    return server.call("POST", "/api/v1/push", body)


def statuses(results: list[dict[str, Any]]) -> list[str]:
    assert [each["index"] for each in results] == list(range(len(results)))
    return [each["status"] for each in results]


def stored(server: Client, queue: str, partition: int = 0) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.get(f"/v1/topics/{queue}/partitions/{partition}/messages?max=10000").json[
        "messages"
    ]
    return messages


def test_each_item_is_answered_in_order_and_stored_with_all_that_it_had(server: Server) -> None:
    results = push(
        server,
        {"queue": "a", "payload": {"n": 1}, "transactionId": "tx-1", "traceId": "trace-1", "partition": "p"},
        {"queue": "b"},
        {"queue": "a", "payload": "text", "partition": None, "transactionId": None, "traceId": None},
    )
    assert statuses(results) == ["queued"] * 3
    assert results[0]["transaction_id"] == "tx-1"
    first, last = stored(server, "a")
    assert (first["key"], first["id"]) == ("p", results[0]["message_id"])
    assert first["headers"] == {"transaction-id": "tx-1", "trace-id": "trace-1"}
    assert (last["key"], last["value"]) == ("Default", '"text"')
    assert last["headers"] == {"transaction-id": results[2]["transaction_id"]}
    assert stored(server, "b")[0]["value"] == "null"


def test_namespace_and_task_are_kept_and_given_back(server: Server) -> None:
    push(
        server,
        {"queue": "q", "payload": 1, "transactionId": "t-1", "namespace": "sales", "task": "process"},
        {"queue": "q", "payload": 2, "transactionId": "t-2", "namespace": "", "task": None},
        {"queue": "q", "payload": 3, "transactionId": "t-3", "traceId": "trace", "task": "täglich"},
    )
    assert [each["headers"] for each in stored(server, "q")] == [
        {"transaction-id": "t-1", "namespace": "sales", "task": "process"},
        {"transaction-id": "t-2"},
        {"transaction-id": "t-3", "trace-id": "trace", "task": "täglich"},
    ]
    popped = server.get("/api/v1/pop/queue/q?autoAck=true&batch=9").json["messages"]
    assert [(each.get("namespace"), each.get("task")) for each in popped] == [
        ("sales", "process"),
        (None, None),
        (None, "täglich"),
    ]


def test_transaction_is_taken_once_in_its_queue_and_partition(server: Server) -> None:
    item = {"queue": "q", "partition": "p", "transactionId": "t", "payload": 1}
    assert statuses(push(server, item, item, {**item, "partition": "other"})) == ["queued", "duplicate", "queued"]
    again = push(server, {**item, "queue": "r"}, item, {**item, "transactionId": "u"}, {**item, "payload": 2})
    assert statuses(again) == ["queued", "duplicate", "queued", "duplicate"]
    assert again[1]["message_id"] == again[3]["message_id"]
    assert [each["value"] for each in stored(server, "q")] == ["1"] * 3


def test_transaction_that_the_broker_made_is_recognised_like_any_other(server: Server) -> None:
    [made] = push(server, {"queue": "q", "payload": 1})
    [again] = push(server, {"queue": "q", "payload": 1, "transactionId": made["transaction_id"]})
    assert (again["status"], again["message_id"]) == ("duplicate", made["message_id"])


def test_transactions_are_recognised_after_a_restart(tmp_path: Path) -> None:
    item = {"queue": "q", "transactionId": "t", "payload": 1}
    with serving(tmp_path / "data") as server:
        [first] = push(server, item)
    with serving(tmp_path / "data") as server:
        [again] = push(server, item)
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])


def test_partition_keeps_its_order_in_a_queue_of_several_logs(server: Server) -> None:
    server.create("q", partitions=4)
    for start in (0, 100):
        items = [{"queue": "q", "partition": f"p{n % 7}", "payload": n} for n in range(start, start + 100)]
        assert set(statuses(push(server, *items))) == {"queued"}
    found: dict[str, list[int]] = {}
    for number in range(4):
        for message in stored(server, "q", number):
            found.setdefault(message["key"], []).append(int(message["value"]))
    assert found == {f"p{each}": list(range(each, 200, 7)) for each in range(7)}


def test_payload_is_kept_byte_for_byte(shared_server: Server) -> None:
    for payload in [
        b'{ "b": 1.10,\n"a": [1e400, -0.0, 12345678901234567890123] }',
        b'{"a": 1, "a": 2}',
        b'"\\ud83d\\ude00 \\u0000 \\/"',
        '"ü😀 | \u2028"'.encode(),
        b"[" * 500 + b"]" * 500,
        b"null",
    ]:
        push(shared_server, b'{"queue": "kept", "payload": ' + payload + b"}")
        assert stored(shared_server, "kept")[-1]["value"].encode() == payload
        popped = shared_server.get("/api/v1/pop/queue/kept?autoAck=true")
        assert b'"data":' + payload + b"," in popped.body


def test_bad_item_is_named_and_nothing_is_stored(shared_server: Server) -> None:
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"queue": "bad,name"}, "bad_topic", "items[1].queue"),
        ({"queue": ""}, "bad_topic", "items[1].queue"),
        ({"queue": 7}, "bad_value", "items[1].queue"),
        ({}, "bad_value", "items[1]"),
        ({"queue": "q", "partition": "x" * 251}, "bad_value", "items[1].partition"),
        ({"queue": "q", "partition": "ü" * 126}, "bad_value", "items[1].partition"),
        ({"queue": "q", "partition": "a\nb"}, "bad_value", "items[1].partition"),
        ({"queue": "q", "partition": "a\u0000b"}, "bad_value", "items[1].partition"),
        ({"queue": "q", "transactionId": "\u001b[0m"}, "bad_value", "items[1].transactionId"),
        ({"queue": "q", "transactionId": 5}, "bad_value", "items[1].transactionId"),
        ({"queue": "q", "traceId": "t" * 300}, "bad_value", "items[1].traceId"),
        ({"queue": "q", "namespace": "n" * 300}, "bad_value", "items[1].namespace"),
        ({"queue": "q", "task": "a\tb"}, "bad_value", "items[1].task"),
        ({"queue": "q", "task": 7}, "bad_value", "items[1].task"),
        ({"queue": "q", "transaction_id": "t"}, "bad_value", "items[1]"),
        ({"queue": "q", "payload": "x" * MESSAGE_BYTES_MAX}, "too_large", "items[1].payload"),
    ]
    good = {"queue": "good", "payload": 1}
    for item, code, names in wrong:
        answer = raw(shared_server, json.dumps({"items": [good, item, good]}).encode())
        assert (answer.code, answer.status) == (code, 413 if code == "too_large" else 400), item
        assert names in answer.message
    assert shared_server.get("/v1/topics/good").code == "topic_not_found"


def test_refusal_says_which_item_which_field_and_what_is_expected(shared_server: Server) -> None:
    for body, words in [
        (b"", 'the body is empty; send an object such as {"items": '),
        (b"[]", "the body: expected an object such as .*, got a list"),
        (b"{}", "the body: items is missing; send an object such as"),
        (b'{"queue": "q"}', "there is no field 'queue', it has items, qos, .*; an item stands in items"),
        (b'{"items": null}', "items: expected a list of items, got null"),
        (b'{"items": [7]}', r"items\[0\]: expected an object such as .*, got a number"),
        (b'{"items": [{}]}', r"items\[0\].queue: it is missing; expected the queue's name as text"),
        (b'{"items": [{"queue": 7}]}', r"items\[0\].queue: expected the queue's name as text, got a number"),
        (b'{"items": [{"queue": ""}]}', r"items\[0\].queue: the queue's name is empty"),
        (
            b'{"items": [{"queue": "q", "body": 1}]}',
            r"items\[0\]: there is no field 'body', an item has queue, payload",
        ),
        (
            b'{"items": [{"queue": "q", "partition": 1}]}',
            r"partition: expected text, or nothing for Default, got a num",
        ),
        (b'{"items": [{"queue": "q", "partition": "\\n"}]}', r"printable text of at most 250 bytes, got char.*'\\n'"),
        (b'{"items": [{"queue": "q", "traceId": "' + b"t" * 300 + b'"}]}', "of at most 250 bytes, got 300 bytes"),
        (b'{"items": [], "qos": 3}', r"qos: expected 0 \(may be lost\) or 1 \(durable\)"),
        (b'{"items": [{"queue": "q", "payload": }]}', "not JSON: .* at byte 37, behind .*payload"),
    ]:
        refused = raw(shared_server, body)
        assert re.search(words, refused.message), refused.message


def test_empty_partition_is_the_one_that_nobody_named(server: Server) -> None:
    item = {"queue": "q", "transactionId": "t", "payload": 1}
    results = push(server, {**item, "partition": ""}, item, {**item, "partition": "Default"})
    assert statuses(results) == ["queued", "duplicate", "duplicate"]
    assert server.get("/api/v1/pop/queue/q/partition/Default?autoAck=true").json["partition"] == "Default"


def test_body_that_is_no_json_is_refused(shared_server: Server) -> None:
    for body in [
        b'{"items": [{"queue": "q", "payload": NaN}]}',
        b'{"items": [{"queue": "q", "payload": "\xff"}]}',
        b'{"items": [{"queue": "q", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"items": [{"queue": "q", "payload": {"a" 1}}]}',
        b'{"items": [{"queue": "q", "payload": "\\ud800"}]}',
        b'{"items": [{"queue": "q\\ud800"}]}',
        b'{"items": [{"queue": "q", "transactionId": "\\ud800"}]}',
        b'{"items": [',
        b"",
    ]:
        assert raw(shared_server, body.replace(b'"queue": "q', b'"queue": "never-made')).code == "bad_json"
    assert shared_server.get("/v1/topics/never-made").code == "topic_not_found"


def test_push_of_nothing_is_answered_with_nothing(server: Server) -> None:
    assert push(server) == []
    assert raw(server, b'{"items": [], "qos": 0, "bufferMs": 100, "bufferMax": 10}').json == []
    assert raw(server, b'{"items": 5}').code == "bad_value"
    assert server.call("POST", "/api/v1/push", b"{}", {"Content-Type": "text/plain"}).status == 415


def test_queue_that_is_not_there_is_not_made_where_none_may_be(tmp_path: Path) -> None:
    with serving(tmp_path / "data", broker={"auto_create": False}) as server:
        server.create("there")
        answer = raw(server, b'{"items": [{"queue": "there"}, {"queue": "missing"}]}')
        assert answer.code == "topic_not_found" and "items[1].queue" in answer.message
        assert stored(server, "there") == []


def test_where_part_fails_each_item_says_what_became_of_it(server: Server) -> None:
    """One queue cannot take anything, as when its leader is away."""
    server.create("well")
    server.create("ill")
    backend = server.broker.backend
    append = backend.append

    def fails(partition: Any, batch: bytearray) -> Any:
        if partition.topic == "ill":
            raise Unavailable("it is away")
        return append(partition, batch)

    backend.append = fails  # type: ignore[method-assign]
    items = [{"queue": queue, "transactionId": "t"} for queue in ("well", "ill", "well")]
    answer = server.call("POST", "/api/v1/push", {"items": items})
    assert answer.status == 503 and answer.headers["retry-after"]
    assert statuses(answer.json) == ["queued", "failed", "duplicate"]
    assert answer.json[1]["error"] == {"code": "unavailable", "message": "it is away"}
    assert server.call("POST", "/api/v1/push", {"items": items[1:2]}).code == "unavailable"
    backend.append = append  # type: ignore[method-assign]
    assert statuses(push(server, *items)) == ["duplicate", "queued", "duplicate"]


def test_message_that_waits_on_the_brokers_disk_is_buffered(server: Server) -> None:
    """As a store answers that keeps messages while it is away."""
    server.create("q")

    def keeps(partition: Any, batch: bytearray) -> Any:
        kept = server.loop.create_future()
        kept.set_result(NO_OFFSET)
        return kept

    server.broker.backend.append = keeps  # type: ignore[method-assign]
    assert statuses(push(server, {"queue": "q"}, {"queue": "q"})) == ["buffered"] * 2


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp", "Cf", "Co", "Cn")), min_size=1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(TEXTS.filter(lambda text: len(text.encode()) <= 250), st.integers()), min_size=1, max_size=5))
def test_whatever_partitions_are_called_their_messages_come_back(
    shared_server: Server, items: list[tuple[str, int]]
) -> None:
    results = push(shared_server, *({"queue": "any", "partition": name, "payload": each} for name, each in items))
    popped = shared_server.get("/api/v1/pop/queue/any?autoAck=true&batch=100").json["messages"]
    assert [(each["partition"], each["data"]) for each in popped] == items
    assert [each["transactionId"] for each in popped] == [each["transaction_id"] for each in results]


@given(st.text() | st.text(st.characters(max_codepoint=130)))
def test_texts_are_printable_as_python_has_it(text: str) -> None:
    assert push_calls._is_printable(text) == text.isprintable()
