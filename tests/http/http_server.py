"""A whole broker behind its HTTP front end, in a thread of its own, and a plain client for it.

Nothing is faked: the backend on a real directory, a cluster of one, real sockets, and the standard library's
HTTP client, which shares no code with the server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.callback_table import ClusterCallbacks
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.broker.broker import Broker
from holdfast.broker.callback_addresses import CallbackPolicy
from holdfast.frontends.http import HttpFrontend, Info
from holdfast.model.ids import TimestampMs
from holdfast.storage.directory import DataDirectory
from holdfast.transactions.service import Transactions

T = TypeVar("T")
JSON = {"Content-Type": "application/json"}
BATCHES = "application/vnd.holdfast.batches"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code, after a check that the error has the shape every error has."""
        assert self.headers["content-type"] == "application/json", self
        error = self.json["error"]
        assert set(error) <= {"code", "message", "next_offset"} and error["message"], self
        assert "Traceback" not in error["message"], self
        return error["code"]

    @property
    def message(self) -> str:
        return self.json["error"]["message"]


class Client:
    """Talks HTTP to a broker on this machine, with the standard library's client."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout_s: float = 30) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None and not any(name.lower() == "content-type" for name in sent):
            sent |= JSON
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            return answer_of(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def publish(self, topic: str, *values: str) -> list[dict[str, Any]]:
        answer = self.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": value} for value in values]})
        assert answer.status == 200, answer
        return answer.json["results"]

    def create(self, topic: str, partitions: int = 1) -> None:
        answer = self.call("POST", "/v1/topics", {"topic": topic, "partitions": partitions})
        assert answer.status == 201, answer


class Server(Client):
    """A running broker; what it does inside happens on its own loop, reached through `run`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, frontend: HttpFrontend, broker: Broker, port: int) -> None:
        super().__init__(port)
        self.loop = loop
        self.frontend = frontend
        self.broker = broker
        self.logged: list[tuple[str, dict[str, object]]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


def answer_of(response: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    assert headers["x-content-type-options"] == "nosniff", "a browser may guess what this is"
    return Answer(response.status, headers, response.read())


def now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


@contextmanager
def serving(path: Path, *, broker: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Server]:
    """A broker on `path`, for as long as the block lasts; `options` are those of the front end."""
    ready: list[Server | BaseException] = []
    started = threading.Event()
    done = threading.Event()

    async def life() -> None:
        directory = DataDirectory.open(path, node="n1", now_ms=now_ms())
        backend = ClusterBackend(directory, sync=parse_sync_policy("group"), now_ms=now_ms)
        await backend.start()
        running = Broker(backend, now_ms=now_ms, **(broker or {}))
        policy = CallbackPolicy(["public"], port_min=1024, is_local=False)
        running.callbacks.serve(ClusterCallbacks(backend), policy)
        transactions = Transactions(running, now_ms=now_ms)
        logged: list[tuple[str, dict[str, object]]] = []
        frontend = HttpFrontend(
            running,
            info=lambda: Info(
                version="1.2.3",
                node="n1",
                cluster="c",
                addresses={"http": "127.0.0.1"},
                started_ms=1,
                uptime_ms=2,
                auto_create=True,
            ),
            log=lambda event, **fields: logged.append((event, fields)),
            transactions=transactions,
            **options,
        )
        transactions.start()
        _, port = await frontend.start("127.0.0.1", 0)
        server = Server(asyncio.get_running_loop(), frontend, running, port)
        server.logged = logged
        ready.append(server)
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, done.wait)
        await frontend.stop(drain_s=2)
        await transactions.stop()
        await backend.stop()

    def main() -> None:
        try:
            # Both loops are supported; production takes uvloop where it is installed.
            (uvloop.run if os.environ.get("HOLDFAST_TEST_LOOP") == "uvloop" else asyncio.run)(life())
        except BaseException as error:  # noqa: BLE001 - handed to the test, which raises it
            ready.append(error)
            started.set()

    thread = threading.Thread(target=main, name="holdfast-under-test")
    thread.start()
    started.wait(30)
    try:
        if isinstance(ready[0], BaseException):
            raise ready[0]
        yield ready[0]
    finally:
        done.set()
        thread.join(30)
    for other in ready[1:]:
        assert isinstance(other, Server), f"the server ended badly: {other!r}"
