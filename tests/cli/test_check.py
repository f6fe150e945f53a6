"""`holdfast check`: the exit code is the answer."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest
from testkit.commands import holdfast

from holdfast.testing.ports import free_port
from tests.cli.program import Broker


def test_ready_broker(broker: Broker) -> None:
    broker.ok("publish", "checked", "x")
    shown = broker.ok("check")
    assert f"{broker.server} is ready" in shown.text
    assert "after the disk has it" in shown.text and "damaged batches" in shown.text
    facts = broker.ok("check", "--json").json
    assert facts["ready"] is True and facts["reason"] is None
    assert facts["addresses"] == {"http": broker.server, "text": broker.text}
    assert facts["messages"] >= 1 and facts["damaged_batches"] == 0
    assert facts["acknowledges_after_sync"] is True


def test_nobody_there(broker: Broker) -> None:
    address = f"127.0.0.1:{free_port()}"
    alone = holdfast("check", "--server", address)
    assert alone.code == 2
    assert f"{address} is unreachable" in alone.text and "holdfast serve" in alone.text
    both = holdfast("check", "--server", f"{broker.server},{address}", "--json")
    assert both.code == 2
    assert [each["reachable"] for each in both.json_lines] == [True, False]


def test_port_that_is_not_a_brokers(broker: Broker) -> None:
    assert holdfast("check", "--server", broker.text, "--timeout", "2s").code == 2


class _FullDisk(BaseHTTPRequestHandler):
    """A broker whose disk is full, as far as health goes."""

    answers: ClassVar = {
        "/ready": (503, {"ready": False, "reason": "the disk is full; make room and publishing goes on"}),
        "/v1/info": (200, {"version": "1", "node": "n1", "addresses": {}, "started_ms": 0, "uptime_ms": 90_000}),
        "/metrics": (200, {"metrics": []}),
        "/v1/topics": (200, {"topics": []}),
        "/v1/cluster": (200, {"leader": "n1", "term": 1, "has_quorum": True, "missing": [], "nodes": [{"node": "n1"}]}),
    }

    def do_GET(self) -> None:
        status, content = self.answers[self.path]
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def full_disk() -> Iterator[str]:
    with socketserver.TCPServer(("127.0.0.1", 0), _FullDisk) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_broker_that_takes_no_messages_says_why(full_disk: str) -> None:
    ended = holdfast("check", "--server", full_disk)
    assert ended.code == 1
    assert "is not ready" in ended.text and "the disk is full; make room" in ended.text
    assert "1m 30s" in ended.text
