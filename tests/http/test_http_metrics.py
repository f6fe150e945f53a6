from __future__ import annotations

from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from holdfast.frontends.http.accept import prefers
from holdfast.model.metrics import Metric
from tests.http.http_server import Server, serving

OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


def samples(server: Server) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (family["name"], tuple(sorted(sample["labels"].items()))): sample["value"]
        for family in server.get("/metrics").json["metrics"]
        for sample in family["samples"]
    }


def test_what_happens_is_counted(server: Server) -> None:
    server.publish("orders", "a", "b", "c")
    server.get("/v1/topics/orders/partitions/0/messages")
    server.get("/v1/topics/orders/cursors/billing/messages?max=1&auto_ack=true")
    server.get("/v1/topics/nothing")
    for _ in range(2):
        server.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": "d", "id": "once"}]})
    found = samples(server)
    assert found["holdfast_published_messages_total", ()] == 4
    assert found["holdfast_duplicates_total", ()] == 1
    assert found["holdfast_delivered_messages_total", ()] == 4
    assert found["holdfast_errors_total", (("code", "topic_not_found"),)] == 1
    assert found["holdfast_topic_messages", (("topic", "orders"),)] == 4
    assert found["holdfast_cursor_lag_messages", (("cursor", "billing"), ("topic", "orders"))] == 3
    assert found["holdfast_http_requests_total", (("operation", "publish"), ("status", "200"))] == 3
    assert found["holdfast_http_requests_total", (("operation", "describeTopic"), ("status", "404"))] == 1
    assert found["holdfast_http_connections", ()] >= 1
    assert found["holdfast_topics", ()] == 1


def test_metrics_are_read_by_foreign_parsers(server: Server) -> None:
    server.publish("orders", "a")
    for accept in ("text/plain", "text/plain;version=0.0.4", "text/plain;version=1.0.0;q=0.5,*/*;q=0.1"):
        answer = server.get("/metrics", Accept=accept)
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = {s.name: s.value for f in prometheus_families(answer.body.decode()) for s in f.samples}
        assert found["holdfast_published_messages_total"] == 1
        assert found["holdfast_topics"] == 1
    for accept in (OPENMETRICS, f"{OPENMETRICS};version=1.0.0", PROMETHEUS_ACCEPT):
        answer = server.get("/metrics", Accept=accept)
        assert answer.headers["content-type"].startswith(OPENMETRICS)
        read = openmetrics_families(answer.body.decode())  # type: ignore[no-untyped-call]
        families = {family.name: family for family in read}
        assert families["holdfast_published_messages"].type == "counter"
        assert families["holdfast_published_messages"].documentation
        assert answer.body.endswith(b"# EOF\n")


def test_json_is_what_comes_without_a_wish(shared_server: Server) -> None:
    for accept in ("", "*/*", "application/json", "text/html,application/xhtml+xml,*/*;q=0.8", ";;,q"):
        assert shared_server.get("/metrics", Accept=accept).headers["content-type"] == "application/json"


def test_the_node_adds_what_it_measures(tmp_path: Path) -> None:
    def source() -> list[Metric]:
        return [Metric(name="holdfast_test_seconds", help="A test.", type="gauge", labels={"a": 'x"\n\\'}, value=1.5)]

    with serving(tmp_path / "data", metrics_source=source) as server:
        assert samples(server)["holdfast_test_seconds", (("a", 'x"\n\\'),)] == 1.5
        text = server.get("/metrics", Accept="text/plain").body.decode()
        [family] = [one for one in prometheus_families(text) if one.name == "holdfast_test_seconds"]
        assert family.samples[0].labels == {"a": 'x"\n\\'}


def test_preference_follows_the_ranking_of_the_client() -> None:
    offers = ("application/json", "text/plain")
    for accept, expected in [
        ("", 0),
        ("text/plain", 1),
        ("text/*", 1),
        ("text/plain;q=0.5, application/json", 0),
        ("text/plain;q=0.5, application/json;q=0.4", 1),
        ("application/json;q=0, */*", 1),
        ("*/*", 0),
        ("image/png", 0),
        ("text/plain;q=high", 0),
        ("TEXT/PLAIN", 1),
    ]:
        assert prefers(accept, offers) == offers[expected], accept
