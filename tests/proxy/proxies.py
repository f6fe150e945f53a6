"""Proxies in threads, before real brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testkit.http_client import Client
from testkit.processes import BrokerProcess

from holdfast.client.addresses import Address
from holdfast.proxy.process import RunningProxy
from holdfast.proxy.settings import Settings, parse_groups


class ProxyClient(Client):
    """A proxy in a thread of its own, and a client for it."""

    def __init__(self, port: int, running: RunningProxy, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(port)
        self.running = running
        self.loop = loop

    def ask(self, path: str, **body: Any) -> Any:
        answer = self.call("POST", path, body)
        assert answer.status == 200, answer
        return answer.json

    @property
    def nodes_up(self) -> list[bool]:
        return [node.is_up for group in self.running.groups for node in group.nodes]


@contextmanager
def proxying(groups: Sequence[str], **more: Any) -> Iterator[ProxyClient]:
    """A proxy before these groups, for as long as the block lasts."""
    ready: list[ProxyClient] = []
    started, done = threading.Event(), threading.Event()

    async def life() -> None:
        settings = Settings(listen=Address("127.0.0.1", 0), groups=parse_groups(groups), check_s=0.1, **more)
        running = RunningProxy(settings)
        _, port = await running.start()
        ready.append(ProxyClient(port, running, asyncio.get_running_loop()))
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, done.wait)
        await running.stop()

    thread = threading.Thread(target=lambda: asyncio.run(life()), name="proxy-under-test")
    thread.start()
    try:
        assert started.wait(20)
        yield ready[0]
    finally:
        done.set()
        thread.join(60)


class Brokers:
    """Brokers of one group, by name."""

    def __init__(self, processes: dict[str, BrokerProcess]) -> None:
        self.processes = processes

    @property
    def addresses(self) -> str:
        return ",".join(process.server for process in self.processes.values())
