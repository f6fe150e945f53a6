"""Web pages of other sites cannot use the broker through their visitors' browsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.frontends.http.origin import OriginRule
from holdfast.model.errors import CrossOrigin
from tests.http.http_server import Server, serving

BODY = {"messages": [{"value": "a"}]}
EVIL = "http://evil.example"


def test_page_of_another_site_cannot_change_anything(server: Server) -> None:
    server.publish("orders", "a")
    for headers in (
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{server.port}.evil.example"},
        {"Origin": "http://[broken"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Referer": f"{EVIL}/page"},
    ):
        for method, path, body in (
            ("POST", "/v1/topics/orders/messages", BODY),
            ("POST", "/v1/topics", {"topic": "x"}),
            ("DELETE", "/v1/topics/orders", None),
            ("PUT", "/v1/topics/orders/cursors/c", {"to": "latest"}),
            ("DELETE", "/v1/topics/orders/cursors/c", None),
            ("GET", "/v1/topics/orders/cursors/c/messages?auto_ack=true", None),
        ):
            refused = server.call(method, path, body, headers)
            assert (refused.status, refused.code) == (403, "cross_origin"), (headers, method, path)
    assert server.get("/v1/cursors").json == {"cursors": []}
    assert server.get("/v1/topics/orders").json["messages"] == 1


def test_browser_form_of_another_site_cannot_publish(server: Server) -> None:
    """What a page can send without asking first: forms and plain text."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        body = b'{"messages": [{"value": "a"}]}'
        assert server.call("POST", "/v1/topics/orders/messages", body, {"Content-Type": kind}).status == 415


def test_no_answer_allows_another_origin_to_read_it(server: Server) -> None:
    for method, path in (("OPTIONS", "/v1/topics/orders/messages"), ("GET", "/v1/topics"), ("GET", "/docs")):
        answer = server.call(method, path, headers={"Origin": EVIL, "Access-Control-Request-Method": "POST"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_own_page_and_plain_programs_may_do_everything(server: Server) -> None:
    for headers in (
        {},
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Referer": f"{server.url}/docs"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert server.call("POST", "/v1/topics/orders/messages", BODY, headers).status == 200


def test_name_that_points_to_loopback_is_not_served(server: Server) -> None:
    """A page whose own name was made to point at 127.0.0.1 would be of the same origin as the broker."""
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        refused = server.call("GET", "/v1/topics", headers={"Host": host})
        assert (refused.status, refused.code) == (403, "cross_origin"), host
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8090", "10.0.0.1", "a.localhost", ""):
        assert server.call("GET", "/v1/topics", headers={"Host": host}).status == 200, host


def test_names_of_a_proxy_can_be_allowed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", host_names_allowed=["Broker.Example"]) as server:
        headers = {"Host": "broker.example", "Origin": "https://broker.example"}
        assert server.call("POST", "/v1/topics/orders/messages", BODY, headers).status == 200
        headers = {"Host": "127.0.0.1", "Origin": "https://broker.example"}
        assert server.call("POST", "/v1/topics/orders/messages", BODY, headers).status == 200
        assert server.call("GET", "/v1/topics", headers={"Host": "evil.example"}).status == 403


def test_broker_on_a_network_address_answers_to_any_name() -> None:
    rule = OriginRule("0.0.0.0")
    rule.check({b"host": b"broker.internal:8090"}, changes_state=True)
    rule.check({b"host": b"broker.internal", b"origin": b"https://broker.internal"}, changes_state=True)
    with pytest.raises(CrossOrigin):
        rule.check({b"host": b"broker.internal", b"origin": b"http://evil.example"}, changes_state=True)


def test_rule_remembers_a_bounded_number_of_names() -> None:
    rule = OriginRule("127.0.0.1")
    for number in range(1000):
        rule.check({b"host": b"127.0.0.1:%d" % number}, changes_state=False)
    assert len(rule._hosts_seen) <= 64
