from __future__ import annotations

from holdfast.model.limits import PARTITIONS_PER_TOPIC_MAX
from tests.http.http_server import Server


def test_topic_is_created_with_what_was_asked_for(server: Server) -> None:
    wanted = {"topic": "orders", "partitions": 3, "retention_ms": 60_000, "retention_bytes": None}
    created = server.call("POST", "/v1/topics", wanted)
    assert created.status == 201
    assert created.headers["location"] == "/v1/topics/orders"
    described = server.get("/v1/topics/orders").json
    assert described == created.json
    partitions = described.pop("partitions")
    assert described.pop("created_ms") > 0
    assert described == {
        "topic": "orders",
        "retention_ms": 60_000,
        "retention_bytes": None,
        "messages": 0,
        "size_bytes": 0,
        "delivers_from": "orders",
        "assumed": False,
    }
    described_partition = {"start_offset": 0, "end_offset": 0, "size_bytes": 0, "segments": 1, "damaged_batches": 0}
    assert partitions == [{"partition": number, "leader": "n1", **described_partition} for number in range(3)]


def test_topics_are_listed_by_name(server: Server) -> None:
    assert server.get("/v1/topics").json == {"topics": []}
    server.create("zebra")
    server.create("ant")
    assert [one["topic"] for one in server.get("/v1/topics").json["topics"]] == ["ant", "zebra"]


def test_deleted_topic_is_gone_with_its_messages_and_cursors(server: Server) -> None:
    server.publish("orders", "a")
    server.get("/v1/topics/orders/cursors/billing/messages")
    gone = server.call("DELETE", "/v1/topics/orders")
    assert (gone.status, gone.body) == (204, b"")
    assert server.get("/v1/topics/orders").code == "topic_not_found"
    assert server.get("/v1/cursors").json == {"cursors": []}
    assert server.call("DELETE", "/v1/topics/orders").code == "topic_not_found"
    assert server.publish("orders", "b") == [{"partition": 0, "offset": 0, "duplicate": False}]


def test_topic_that_exists_is_not_created_again(server: Server) -> None:
    server.create("orders")
    again = server.call("POST", "/v1/topics", {"topic": "orders"})
    assert (again.status, again.code) == (409, "topic_exists")


def test_bad_topic_settings_say_which_field_is_wrong(server: Server) -> None:
    for body, code, named in [
        ({"topic": "orders", "partitions": 0}, "bad_value", "partitions"),
        ({"topic": "orders", "partitions": PARTITIONS_PER_TOPIC_MAX + 1}, "bad_value", "partitions"),
        ({"topic": "orders", "partitions": "3"}, "bad_value", "partitions: expected 'int', got 'str'"),
        ({"topic": "orders", "retention_ms": -1}, "bad_value", "retention_ms"),
        ({"topic": "orders", "retention_mss": 1}, "bad_value", "retention_mss"),
        ({"partitions": 1}, "bad_value", "topic"),
        ({"topic": 7}, "bad_value", "topic"),
        ([], "bad_value", "the body"),
        ({"topic": ""}, "bad_topic", "empty"),
        ({"topic": ".."}, "bad_topic", "'..'"),
        ({"topic": "a,b"}, "bad_topic", "'a,b'"),
        ({"topic": " a"}, "bad_topic", "' a'"),
        ({"topic": "a\nb"}, "bad_topic", "printable"),
        ({"topic": "/" * 67}, "bad_topic", "201 characters where it is percent-encoded"),
        ({"topic": "x" * 201}, "bad_topic", "201"),
    ]:
        refused = server.call("POST", "/v1/topics", body)
        assert (refused.status, refused.code) == (400, code), (body, refused)
        assert named in refused.message, (body, refused.message)
    assert server.get("/v1/topics").json == {"topics": []}


def test_name_in_a_path_can_never_become_another_path(server: Server) -> None:
    server.create("orders")
    for name in ("%2e%2e", "a%00b", "%20", "a%7Cb", "a%2Cb", "%EF%BF%BD"):
        refused = server.get(f"/v1/topics/{name}")
        assert (refused.status, refused.code) == (400, "bad_topic"), (name, refused)
        assert server.call("DELETE", f"/v1/topics/{name}").code == "bad_topic"
    for name in ("..%2F..%2Fetc", "orders%2Fpartitions%2F0", "a%5Cb", "{topic}", "%C3%A9"):
        refused = server.get(f"/v1/topics/{name}")
        assert (refused.status, refused.code) == (404, "topic_not_found"), (name, refused)
    assert server.get("/v1/topics/%ff").code == "bad_value"
    assert server.call("POST", "/v1/topics//messages", {"messages": [{"value": "a"}]}).code == "not_found"
    assert server.get("/v1/topics/%6frders").json["topic"] == "orders"
