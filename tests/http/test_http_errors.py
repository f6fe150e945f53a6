"""Every way in which a request can be wrong ends in a clear answer, and never in a broken broker."""

from __future__ import annotations

import json
import socket
import string
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import DamagedData, DiskFull, HoldfastError, ShuttingDown, StorageFailed
from tests.http.http_server import JSON, Answer, Server, answer_of, serving

PUBLISH = "/v1/topics/orders/messages"


def test_unknown_path_points_to_the_docs(shared_server: Server) -> None:
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v2/topics",
        "/v1/topics/",
        "/v1/topics/orders/messages/",
        "//",
        "/docs/../x",
        "/%2e",
    ]:
        answer = shared_server.get(path)
        assert (answer.status, answer.code) == (404, "not_found"), path
        assert "/docs" in answer.message


def test_wrong_method_says_which_would_be_right(shared_server: Server) -> None:
    for method, path, allowed in [
        ("DELETE", "/v1/topics", "GET, HEAD, POST"),
        ("GET", PUBLISH, "POST"),
        ("PATCH", "/v1/topics/orders", "DELETE, GET, HEAD"),
        ("OPTIONS", "/v1/topics", "GET, HEAD, POST"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/v1/topics/orders/cursors/x/ack", "POST"),
    ]:
        answer = shared_server.call(method, path)
        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", allowed)


def test_head_is_answered_like_get_without_the_body(shared_server: Server) -> None:
    answer = shared_server.call("HEAD", "/health")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) == len(shared_server.get("/health").body)


def test_malformed_body_says_where(shared_server: Server) -> None:
    for body, code, named in [
        (b"", "bad_json", "byte 0"),
        (b"{", "bad_json", "byte 1"),
        (b'{"messages": [{"value": "a"', "bad_json", "byte 27"),
        (b'{"messages": [}', "bad_json", "(byte 14)"),
        (b'{"messages": []} x', "bad_json", "trailing characters"),
        (b"\xff\xfe\x00", "bad_json", "byte 0"),
        (b'{"messages": [{"value": "\xff"}]}', "bad_json", "byte 25"),
        (b'{"messages": [{"json": "\xff"}]}', "bad_json", "byte 24"),
        (b'{"messages": [{"value": "\\ud800"}]}', "bad_json", "half of a surrogate pair"),
        (b'{"messages": [{"json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "bad_json", "nested too deeply"),
        (b"null", "bad_value", "the body: expected 'object', got 'null'"),
        (b'"messages"', "bad_value", "the body"),
    ]:
        refused = shared_server.call("POST", PUBLISH, body)
        assert (refused.status, refused.code) == (400, code), refused
        assert named in refused.message, refused.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
message_like = st.dictionaries(
    st.sampled_from(["value", "json", "base64", "key", "id", "headers", "partition", "extra"]), json_values, max_size=4
)


def published(server: Server) -> int:
    return server.broker.stats.published_messages


@settings(max_examples=300, deadline=None)
@given(st.one_of(json_values, st.fixed_dictionaries({"messages": st.lists(message_like | json_values, max_size=4)})))
def test_any_json_is_published_or_refused_whole(shared_server: Server, body: Any) -> None:
    before = published(shared_server)
    answer = shared_server.call("POST", PUBLISH, json.dumps(body).encode())
    if answer.status == 200:
        results = answer.json["results"]
        assert len(results) == len(body["messages"])
        assert published(shared_server) - before == sum(not one["duplicate"] for one in results)
    else:
        assert answer.status in {400, 404, 413}
        codes = {"bad_value", "bad_message", "bad_id", "bad_json", "too_large", "partition_not_found"}
        assert answer.code in codes
        assert published(shared_server) == before


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [
            ("POST", "/v1/topics"),
            ("POST", PUBLISH),
            ("POST", "/v1/topics/orders/cursors/c/ack"),
            ("PUT", "/v1/topics/orders/cursors/c"),
        ]
    ),
    st.binary(max_size=200),
)
def test_binary_garbage_is_refused(shared_server: Server, call: tuple[str, str], body: bytes) -> None:
    answer = shared_server.call(*call, body)
    assert answer.status in {400, 404}
    assert answer.code in {"bad_json", "bad_value", "topic_not_found", "cursor_not_found"}


@settings(max_examples=200, deadline=None)
@given(st.text(string.printable.replace("#", "").replace("?", ""), max_size=40), st.text(max_size=30))
def test_any_path_and_query_gets_an_answer(shared_server: Server, path: str, query: str) -> None:
    answer = shared_server.get(f"/v1/{quote(path)}?{quote(query)}")
    assert answer.status in {200, 400, 404, 405}
    if answer.status != 200:
        assert answer.code


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_bytes_that_are_no_http_get_an_answer_or_a_closed_connection(shared_server: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=60) as raw:
        raw.sendall(sent + b"\r\n\r\n")
        raw.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while piece := raw.recv(65536):
                received += piece
        except ConnectionResetError:
            pass
    assert not received or received.startswith(b"HTTP/1.1 "), received
    assert b"Traceback" not in received
    assert shared_server.get("/health").status == 200


def test_bad_http_has_the_shape_of_every_error(shared_server: Server) -> None:
    for sent in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET http:// HTTP/1.1\r\n\r\n",
    ):
        answer = raw_call(shared_server, sent)
        assert (answer.status, answer.code) == (400, "bad_http"), (sent, answer)
        assert answer.headers["connection"] == "close"


def raw_call(server: Server, sent: bytes) -> Answer:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(sent)
        response = HTTPResponse(raw)
        response.begin()
        return answer_of(response)


def test_body_must_say_that_it_is_json(server: Server) -> None:
    body = b'{"messages": [{"value": "a"}]}'
    for given_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        refused = server.call("POST", PUBLISH, body, {"Content-Type": given_type})
        assert (refused.status, refused.code) == (415, "unsupported_media_type"), given_type
    compressed = server.call("POST", PUBLISH, body, {**JSON, "Content-Encoding": "gzip"})
    assert (compressed.status, compressed.code) == (415, "unsupported_media_type")
    for good in ("application/json", "Application/JSON; charset=utf-8"):
        assert server.call("POST", PUBLISH, body, {"Content-Type": good}).status == 200
    assert len(server.get("/v1/topics/orders/partitions/0/messages").json["messages"]) == 2


def test_troubles_of_the_world_keep_their_code(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[tuple[HoldfastError, int]] = [
        (DiskFull("the disk is full"), 507),
        (StorageFailed("a sync failed"), 503),
        (ShuttingDown("the broker is shutting down"), 503),
        (DamagedData("batch 7 fails its checksum", 8), 500),
    ]
    for error, status in errors:
        monkeypatch.setattr(server.broker, "publish_values", Mock(side_effect=error))
        answer = server.call("POST", PUBLISH, {"messages": [{"value": "a"}]})
        assert (answer.status, answer.code) == (status, error.code)
        assert answer.json["error"].get("next_offset") == getattr(error, "next_offset", None)
        assert ("retry-after" in answer.headers) == (status == 503)


def test_bug_of_ours_is_logged_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "data") as server:
        monkeypatch.setattr(server.broker, "topics", Mock(side_effect=RuntimeError("secret detail")))
        answer = server.get("/v1/topics")
        assert (answer.status, answer.code) == (500, "internal")
        assert b"secret" not in answer.body
        [(event, fields)] = server.logged
        assert event == "http_request_failed" and fields["operation"] == "listTopics"
        assert "secret detail" in str(fields["traceback"])
        assert server.get("/health").status == 200


def test_ready_says_why_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.get("/ready").json == {"ready": True, "reason": None}
    monkeypatch.setattr(server.broker.backend, "problem", lambda: "the disk is full")
    answer = server.get("/ready")
    assert (answer.status, answer.json) == (503, {"ready": False, "reason": "the disk is full"})
    assert server.get("/health").json == {"status": "alive", "database": "disconnected"}


def test_info_says_who_answers(shared_server: Server) -> None:
    info = shared_server.get("/v1/info").json
    assert info == {
        "version": "1.2.3",
        "node": "n1",
        "cluster": "c",
        "addresses": {"http": "127.0.0.1"},
        "started_ms": 1,
        "uptime_ms": 2,
        "auto_create": True,
    }
