"""A whole broker behind its HTTP front end, in a thread of its own, and a plain client for it.

Nothing is faked: the backend on a real directory, a cluster of one, real sockets, and the standard library's
HTTP client, which shares no code with the server.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from testkit.http_client import JSON, Answer, Client, answer_of

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.callback_table import ClusterCallbacks
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.broker.broker import Broker
from holdfast.broker.callback_addresses import CallbackPolicy
from holdfast.frontends.http import HttpFrontend, Info
from holdfast.frontends.http.server import Load
from holdfast.model.ids import TimestampMs
from holdfast.storage.directory import DataDirectory
from holdfast.transactions.service import Transactions

__all__ = ["BATCHES", "JSON", "Answer", "Client", "Server", "answer_of", "now_ms", "serving"]

T = TypeVar("T")
BATCHES = "application/vnd.holdfast.batches"


class Server(Client):
    """A running broker; what it does inside happens on its own loop, reached through `run`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, frontend: HttpFrontend, broker: Broker, port: int) -> None:
        super().__init__(port)
        self.loop = loop
        self.frontend = frontend
        self.broker = broker
        self.logged: list[tuple[str, dict[str, object]]] = []

    @property
    def load(self) -> Load:
        return self.frontend.load

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


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

        def log(event: str, /, **fields: object) -> None:
            logged.append((event, fields))

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
            log=log,
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
        thread.join(60)
    for other in ready[1:]:
        assert isinstance(other, Server), f"the server ended badly: {other!r}"
