"""Numbered queues over HTTP: the paths, bodies and answers that their clients know."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.model.limits import MESSAGE_BYTES_MAX
from tests.http.http_server import JSON, Answer, Client, Server, answer_of

APPLY = {
    "/apply_create_queue": {"queue_id": 1},
    "/apply_append": {"message_id": 1, "queue_id": 1, "value": 5},
    "/apply_set_pointer": {"queue_id": 1, "client_id": "c", "message_id": 1},
}


class QueueClient:
    """Asks one broker; what is not 200 fails the test."""

    def __init__(self, broker: Client) -> None:
        self._broker = broker

    def __call__(self, path: str, **body: Any) -> Any:
        answer = self._broker.call("POST", path, body)
        assert answer.status == 200, answer
        return answer.json

    def refused(self, path: str, body: object) -> Answer:
        answer = self._broker.call("POST", path, body)
        assert answer.status >= 400, answer
        return answer


@pytest.fixture
def queue(server: Server) -> Iterator[QueueClient]:
    yield QueueClient(server)


def test_client_appends_and_reads_as_the_queue_api_says(queue: QueueClient) -> None:
    assert queue("/create_queue") == {"queue_id": 1}
    assert queue("/create_queue") == {"queue_id": 2}
    assert [queue("/append", queue_id=1, value=value) for value in (5, 6)] == [{"message_id": 1}, {"message_id": 2}]
    assert queue("/read", queue_id=1, client_id="c") == {"message_id": 1, "value": 5}
    assert queue("/read", queue_id=1, client_id="other client") == {"message_id": 1, "value": 5}
    assert queue("/read", queue_id=1, client_id="c") == {"message_id": 2, "value": 6}
    assert queue("/read", queue_id=1, client_id="c") == {"message_id": None, "value": None}
    assert queue("/get_all_queues") == {"queue_ids": [1, 2]}
    assert queue("/get_all_messages") == {
        "messages": [
            {"message_id": 1, "queue_id": 1, "value": 5},
            {"message_id": 2, "queue_id": 1, "value": 6},
        ]
    }
    assert queue("/get_all_pointers") == {
        "pointers": [
            {"queue_id": 1, "client_id": "c", "message_id": 2},
            {"queue_id": 1, "client_id": "other client", "message_id": 1},
        ]
    }


VALUES = [0, -1, 1.5, 10**30, "text", "ü \n", None, True, [], {"a": [1, {"b": None}]}]


def test_value_may_be_any_json_and_other_front_ends_see_its_bytes(queue: QueueClient, server: Server) -> None:
    queue("/create_queue")
    for value in VALUES:
        queue("/append", queue_id=1, value=value)
    assert [queue("/read", queue_id=1, client_id="c")["value"] for _ in VALUES] == VALUES
    stored = server.get("/v1/topics/queue-1/partitions/0/messages").json["messages"]
    assert [json.loads(message["value"]) for message in stored] == VALUES
    assert stored[-1]["value"] == '{"a":[1,{"b":null}]}'


def test_message_that_is_no_json_is_read_as_what_it_is(queue: QueueClient, server: Server) -> None:
    queue("/create_queue")
    server.publish("queue-1", "plain", "007", " [1]")
    body = {"messages": [{"base64": "/wA="}]}
    assert server.call("POST", "/v1/topics/queue-1/messages", body).status == 200
    expected = [
        {"message_id": 1, "value": "plain", "encoding": "text"},
        {"message_id": 2, "value": "007", "encoding": "text"},
        {"message_id": 3, "value": [1]},
        {"message_id": 4, "value": "/wA=", "encoding": "base64"},
    ]
    assert [queue("/read", queue_id=1, client_id="c") for _ in expected] == expected
    assert queue("/get_all_messages")["messages"] == [{"queue_id": 1, **each} for each in expected]


def test_reader_of_another_front_end_shares_the_pointer_of_its_name(queue: QueueClient, server: Server) -> None:
    queue("/create_queue")
    for value in range(3):
        queue("/append", queue_id=1, value=value)
    queue("/read", queue_id=1, client_id="worker")
    got = server.get("/v1/topics/queue-1/cursors/worker/messages?max=1&auto_ack=true").json["messages"]
    assert [message["value"] for message in got] == ["1"]
    assert queue("/read", queue_id=1, client_id="worker") == {"message_id": 3, "value": 2}


def test_long_listings_come_in_pages_that_leave_nothing_out(queue: QueueClient) -> None:
    for _ in range(3):
        number = queue("/create_queue")["queue_id"]
        for value in range(number):
            queue("/append", queue_id=number, value=value)
            queue("/read", queue_id=number, client_id=f"client {value}")

    def pages(path: str, field: str, limit: int, **more: Any) -> list[Any]:
        found: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            answer = queue(path, limit=limit, **after, **more)
            assert len(answer[field]) <= limit
            found += answer[field]
            if answer["next"] is None:
                return found
            after = {"after": answer["next"]}

    for path, field in (
        ("/get_all_queues", "queue_ids"),
        ("/get_all_messages", "messages"),
        ("/get_all_pointers", "pointers"),
    ):
        everything = queue(path)[field]
        assert len(everything) in {3, 6}
        for limit in (1, 2, 3, 6, 100):
            assert pages(path, field, limit) == everything
    assert [each["value"] for each in pages("/get_all_messages", "messages", 2, queue_id=3)] == [0, 1, 2]


def test_ten_thousand_messages_are_listed_whole(queue: QueueClient, server: Server) -> None:
    queue("/create_queue")
    for _ in range(10):
        server.publish("queue-1", *["1" * 50] * 1000)
    listed = queue("/get_all_messages")["messages"]
    assert [each["message_id"] for each in listed] == list(range(1, 10_001))


def test_short_and_general_way_answer_the_same(queue: QueueClient, server: Server) -> None:
    """What has an unusual head goes through the parser; nobody may notice."""
    queue("/create_queue")
    bodies: list[tuple[str, object]] = [
        ("/append", {"queue_id": 1, "value": {"a": 1}}),
        ("/append", {"queue_id": 9, "value": 1}),
        ("/append", {"queue_id": 1}),
        ("/append", b"{"),
        ("/append", b'{"queue_id":1,"value":"\xff"}'),
        ("/read", {"queue_id": 9, "client_id": "c"}),
        ("/read", {"queue_id": 1, "client_id": ""}),
    ]
    for path, body in bodies:
        short = server.call("POST", path, body)
        general = server.call("POST", path, body, {"TE": "trailers", "Content-Type": "application/json"})
        assert short.status == general.status
        if short.status >= 400:
            assert short.body == general.body
        assert short.headers.keys() == general.headers.keys()
    assert [queue("/read", queue_id=1, client_id="c")["message_id"] for _ in range(3)] == [1, 2, None]


def test_wrong_request_is_refused_and_changes_nothing(queue: QueueClient) -> None:
    queue("/create_queue")
    wrong: list[tuple[str, object, int, str]] = [
        ("/append", {"queue_id": 7, "value": 1}, 404, "queue_not_found"),
        ("/read", {"queue_id": 7, "client_id": "c"}, 404, "queue_not_found"),
        ("/append", {"queue_id": "1", "value": 1}, 400, "bad_value"),
        ("/append", {"queue_id": 0, "value": 1}, 400, "bad_value"),
        ("/append", {"queue_id": 1.5, "value": 1}, 400, "bad_value"),
        ("/append", {"queue_id": None, "value": 1}, 400, "bad_value"),
        ("/append", {"queue_id": 1}, 400, "bad_value"),
        ("/append", {"value": 1}, 400, "bad_value"),
        ("/append", {"queue_id": 1, "value": 1, "extra": 1}, 400, "bad_value"),
        ("/append", {"queue_id": 1, "value": 1, "id": ""}, 400, "bad_id"),
        ("/append", {"queue_id": 1, "value": 1, "id": "x" * 300}, 400, "bad_id"),
        ("/append", [], 400, "bad_value"),
        ("/append", b"", 400, "bad_json"),
        ("/append", b'{"queue_id":1,"value":', 400, "bad_json"),
        ("/append", b'{"queue_id":1,"value":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "bad_json"),
        ("/append", b'{"queue_id":1,"value":"\xff"}', 400, "bad_json"),
        ("/append", {"queue_id": 1, "value": "x" * MESSAGE_BYTES_MAX}, 413, "too_large"),
        ("/read", {"queue_id": 1}, 400, "bad_value"),
        ("/read", {"queue_id": 1, "client_id": 5}, 400, "bad_value"),
        ("/read", {"queue_id": 1, "client_id": ""}, 400, "bad_value"),
        ("/read", {"queue_id": 1, "client_id": "x" * 129}, 400, "bad_value"),
        ("/read", {"queue_id": 1, "client_id": "c", "request_id": "x" * 201}, 400, "bad_value"),
        ("/get_all_messages", {"queue_id": 7}, 404, "queue_not_found"),
        ("/get_all_messages", {"limit": 0}, 400, "bad_value"),
        ("/get_all_pointers", {"limit": 10_001}, 400, "bad_value"),
        ("/create_queue", {"name": "x"}, 400, "bad_value"),
        ("/heartbeat", {"leader_id": 1}, 400, "bad_value"),
        ("/heartbeat", {"leader_id": 1, "leader_url": "not an address"}, 400, "bad_value"),
        ("/set_peer_urls", {"peer_urls": "http://127.0.0.1:1"}, 400, "bad_value"),
        ("/set_follower_urls", {"follower_urls": ["ftp://x"]}, 400, "bad_value"),
        ("/apply_append", {"queue_id": 1}, 400, "bad_value"),
        # Nothing is written past the consensus.
        *((path, body, 409, "replaced_by_consensus") for path, body in APPLY.items()),
    ]
    for path, body, status, code in wrong:
        refused = queue.refused(path, body)
        assert (refused.status, refused.code) == (status, code), (path, body)
    assert queue("/get_all_queues") == {"queue_ids": [1]}
    assert queue("/get_all_messages") == {"messages": []}
    assert queue("/get_all_pointers") == {"pointers": []}


def test_calls_between_brokers_are_understood_and_change_nothing(queue: QueueClient) -> None:
    before = queue("/broker_info")
    for path, body in (
        ("/heartbeat", {"leader_id": 9, "leader_url": "http://127.0.0.1:8001"}),
        ("/set_follower_urls", {"follower_urls": ["http://127.0.0.1:8002", "http://127.0.0.1:8003/"]}),
        ("/set_peer_urls", {"peer_urls": []}),
    ):
        answer = queue(path, **body)
        assert answer["ok"] and not answer["changed"] and "nothing was changed" in answer["note"]
    assert queue("/broker_info") == before
    assert before["broker_id"] == 1 and before["is_leader"] and before["leader_id"] == 1


def test_bug_in_one_call_leaves_the_connection_and_the_budget_as_they_were(
    queue: QueueClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue("/create_queue")

    def broken(*_: object) -> None:
        raise RuntimeError("nobody has thought of this")

    connection = server.connect()
    with contextlib.closing(connection):
        with monkeypatch.context() as patched:
            patched.setattr(server.frontend._services.queues, "append", broken)
            for _ in range(3):
                connection.request("POST", "/append", b'{"queue_id":1,"value":1}', JSON)
                failed = answer_of(connection.getresponse())
                assert (failed.status, failed.code) == (500, "internal")
        connection.request("POST", "/append", b'{"queue_id":1,"value":1}', JSON)
        assert answer_of(connection.getresponse()).json == {"message_id": 1}
    wait_until(lambda: server.load.body_bytes == 0, "everything that was held is given back")
    assert [event for event, _ in server.logged] == ["http_request_failed"] * 3
    server.logged.clear()
