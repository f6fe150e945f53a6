"""Brokers that answer as a test says: servers over HTTP, and clients that stand for nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from holdfast.client import ConnectionLost, RemoteError

# Status, body and headers of an answer, by the method and the path that are asked for.
Script = Callable[[str, str], tuple[int, bytes, Mapping[str, str]]]


@contextmanager
def http_server(script: Script) -> Iterator[tuple[str, int]]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body, headers = script(self.command, self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield "127.0.0.1", server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class FakeNode:
    """A node that knows a topic as of some time, knows none, or does not answer."""

    def __init__(self, created_ms: int | None, *, is_away: bool = False) -> None:
        self._created_ms = created_ms
        self.is_away = is_away

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def topics(self) -> list[Any]:
        return []

    def describe(self, topic: str) -> Any:
        if self.is_away:
            raise ConnectionLost("away") if self._created_ms is None else RemoteError("no_quorum", "no", 503)
        if self._created_ms is None:
            raise RemoteError("topic_not_found", "no", 404)
        one = SimpleNamespace(partition=0, start_offset=0, end_offset=5, size_bytes=9)
        return SimpleNamespace(topic=topic, created_ms=self._created_ms, partitions=[one])

    def offset_at(self, topic: str, place: str, number: int) -> int:
        self.describe(topic)
        return 70 + number
