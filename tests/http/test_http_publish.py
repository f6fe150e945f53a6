from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.frontends.http.publish import results_of_run
from holdfast.model.limits import MESSAGE_BYTES_MAX
from tests.http.http_server import Server, serving


def read_all(server: Server, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/partitions/{partition}/messages?max=10000"
    messages: list[dict[str, Any]] = server.get(path).json["messages"]
    return messages


def test_published_text_is_read_back_in_order(server: Server) -> None:
    values = [f'message {number} äöü "quoted" \\ \n\t\0 😀' for number in range(2500)]
    results = server.publish("orders", *values)
    assert results == [{"partition": 0, "offset": offset, "duplicate": False} for offset in range(2500)]
    assert server.publish("orders", "one more")[0]["offset"] == 2500
    assert [one["value"] for one in read_all(server, "orders")] == [*values, "one more"]


@given(partition=st.integers(0, 1023), offset=st.integers(0, 10**15), count=st.integers(1, 4000))
def test_answer_of_the_fast_road_is_what_a_json_encoder_would_write(partition: int, offset: int, count: int) -> None:
    expected = [{"partition": partition, "offset": offset + place, "duplicate": False} for place in range(count)]
    assert json.loads(results_of_run(partition, offset, count)) == {"results": expected}


def test_every_kind_of_value_comes_back_as_it_was_sent(server: Server) -> None:
    big = 123456789012345678901234567890
    body = {
        "messages": [
            {"value": "text", "key": "k", "id": "first", "headers": {"trace": "abc", "ünï": "ö"}},
            {"json": {"any": ["json", 1, 1.5, None, True, big]}},
            {"base64": base64.b64encode(b"\xff\x00\x01").decode()},
            {"value": ""},
            {"json": None},
            {"base64": ""},
        ]
    }
    answer = server.call("POST", "/v1/topics/orders/messages", body)
    assert [one["offset"] for one in answer.json["results"]] == [0, 1, 2, 3, 4, 5]
    messages = read_all(server, "orders")
    assert messages[0]["value"] == "text"
    assert (messages[0]["key"], messages[0]["id"]) == ("k", "first")
    assert messages[0]["headers"] == {"trace": "abc", "ünï": "ö"}
    assert messages[1]["value"] == f'{{"any":["json",1,1.5,null,true,{big}]}}'
    assert messages[1]["id"] == "0-1"
    assert messages[2]["base64"] == "/wAB" and "value" not in messages[2]
    assert [one.get("value") for one in messages[3:]] == ["", "null", ""]


def test_json_is_stored_with_the_digits_it_was_sent_with(server: Server) -> None:
    body = b'{"messages": [{"json": {"price" : 1.10, "big": 1e400 , "deep":[ ]} }]}'
    assert server.call("POST", "/v1/topics/orders/messages", body).status == 200
    assert read_all(server, "orders")[0]["value"] == '{"price":1.10,"big":1e400,"deep":[]}'


def test_message_sent_again_with_its_id_is_stored_once(server: Server) -> None:
    body = {"messages": [{"value": "a", "id": "1"}, {"value": "b", "id": "2"}]}
    first = server.call("POST", "/v1/topics/orders/messages", body).json["results"]
    body["messages"].append({"value": "c", "id": "3"})
    second = server.call("POST", "/v1/topics/orders/messages", body).json["results"]
    assert [one["duplicate"] for one in first + second] == [False, False, True, True, False]
    assert [one["offset"] for one in second] == [0, 1, 2]
    assert len(read_all(server, "orders")) == 3


def test_a_request_can_name_its_partition(server: Server) -> None:
    server.create("orders", partitions=3)
    body = {"messages": [{"value": "a", "partition": 2}, {"value": "b", "partition": 2, "key": "k"}]}
    results = server.call("POST", "/v1/topics/orders/messages", body).json["results"]
    assert [(one["partition"], one["offset"]) for one in results] == [(2, 0), (2, 1)]
    for wrong, status in ((3, 404), (-1, 404)):
        body = {"messages": [{"value": "a", "partition": wrong}]}
        refused = server.call("POST", "/v1/topics/orders/messages", body)
        assert (refused.status, refused.code) == (status, "partition_not_found")
    mixed = {"messages": [{"value": "a", "partition": 1}, {"value": "b"}]}
    assert server.call("POST", "/v1/topics/orders/messages", mixed).code == "bad_value"


def test_one_bad_message_refuses_the_request_whole(server: Server) -> None:
    server.publish("orders", "before")
    wrong: list[tuple[object, str, str]] = [
        ({}, "bad_value", "messages[1]: give exactly one of value, json and base64, not none"),
        ({"value": "a", "json": 1}, "bad_value", "not value and json"),
        ({"value": 7}, "bad_value", "messages[1].value: expected 'str', got 'int'"),
        ({"value": None}, "bad_value", "messages[1].value"),
        ({"valu": "a"}, "bad_value", "'valu'"),
        ({"base64": "not base64!"}, "bad_value", "messages[1].base64"),
        ({"value": "a", "key": 1}, "bad_value", "messages[1].key"),
        ({"value": "a", "headers": {"a": 1}}, "bad_value", "messages[1].headers"),
        ({"value": "a", "headers": {"holdfast-id": "x"}}, "bad_value", "holdfast-id"),
        ({"value": "a", "id": ""}, "bad_id", "message id"),
        ({"value": "a", "id": "x" * 251}, "bad_id", "message id"),
        ({"value": "a", "headers": {str(n): "" for n in range(65)}}, "bad_message", "65 headers"),
        ("text", "bad_value", "messages[1]"),
        ({"value": "x" * (MESSAGE_BYTES_MAX + 1)}, "too_large", str(MESSAGE_BYTES_MAX)),
        ({"value": "x" * MESSAGE_BYTES_MAX, "key": "k"}, "too_large", str(MESSAGE_BYTES_MAX)),
    ]
    for message, code, named in wrong:
        refused = server.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": "good"}, message]})
        assert refused.code == code, refused
        assert named in refused.message, refused.message
        assert refused.status == (413 if code == "too_large" else 400)
    assert [one["value"] for one in read_all(server, "orders")] == ["before"]


def test_nothing_to_publish_is_refused(server: Server) -> None:
    bodies: list[object] = [{"messages": []}, {}, {"messages": None}, {"messages": {}}, {"messages": "x"}]
    for body in bodies:
        refused = server.call("POST", "/v1/topics/orders/messages", body)
        assert refused.status == 400 and refused.code in {"bad_message", "bad_value"}, refused
    assert server.get("/v1/topics").json == {"topics": []}


def test_without_auto_create_a_missing_topic_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "data", broker={"auto_create": False}) as server:
        body = {"messages": [{"value": "a"}]}
        for one in (body, {"messages": [{"value": "a", "key": "k"}]}):
            refused = server.call("POST", "/v1/topics/orders/messages", one)
            assert (refused.status, refused.code) == (404, "topic_not_found")
        server.create("orders")
        assert server.call("POST", "/v1/topics/orders/messages", body).status == 200


def test_many_publishers_at_once_lose_nothing(server: Server) -> None:
    def work(number: int) -> None:
        connection = server.connect()
        for turn in range(20):
            messages = [{"value": f"{number}/{turn}/{place}"} for place in range(50)]
            connection.request("POST", "/v1/topics/orders/messages", json.dumps({"messages": messages}), headers)
            assert connection.getresponse().read().startswith(b'{"results"')
        connection.close()

    headers = {"Content-Type": "application/json"}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = read_all(server, "orders")
    assert len(messages) == 8 * 20 * 50
    assert [one["offset"] for one in messages] == list(range(8000))
    for number in range(8):
        own = [one["value"] for one in messages if str(one["value"]).startswith(f"{number}/")]
        assert own == [f"{number}/{turn}/{place}" for turn in range(20) for place in range(50)]
