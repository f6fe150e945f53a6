"""Nodes that have nothing but links, and remember what they heard."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from testkit.wait import until

from holdfast.backends.cluster.links import LinkTiming, PeerLinks
from holdfast.consensus.messages import Message
from holdfast.testing.ports import free_port
from holdfast.wire.peer import Hello

_boots = itertools.count()
QUICK = LinkTiming(refused_retry_s=0.02)


class LinkNode:
    """`LinkEvents`, and the links it listens to."""

    def __init__(self, node: str, timing: LinkTiming = QUICK, port: int = 0, **changes: Any) -> None:
        self.node = node
        self.port = port or free_port()
        self.said = Hello(**{"cluster": "c1", "node": node, "life": "1", "boot": f"b{next(_boots)}", **changes})
        self.links = PeerLinks(lambda: self.said, self, timing)
        self.heard: list[tuple[str, int, Message]] = []
        self.frames: list[int] = []
        self.events: list[tuple[str, str]] = []
        self.dropped_groups: list[set[int]] = []
        # Raised, one for each call, instead of taking the messages.
        self.bugs: list[Exception] = []
        self.heard_at: dict[str, list[float]] = {}
        self.unwanted: dict[str, str] = {}
        self.nobody_there: list[str] = []
        self.answer: Callable[[str, int, memoryview], Awaitable[bytes]] = self._echo

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, *peers: LinkNode) -> None:
        await self.links.start("127.0.0.1", self.port)
        self.know(*peers)

    def know(self, *peers: LinkNode) -> None:
        self.links.set_peers({peer.node: peer.address for peer in peers})

    async def up(self, *peers: LinkNode) -> None:
        for peer in peers:
            await until(partial(self.links.is_up, peer.node), f"{self.node} reaches {peer.node}")

    async def _echo(self, node: str, method: int, body: memoryview) -> bytes:
        return f"{node} {method} ".encode() + bytes(body)

    # --- events ---

    def on_messages(self, hello: Hello, messages: list[tuple[int, Message]]) -> None:
        if self.bugs:
            raise self.bugs.pop()
        self.frames.append(len(messages))
        self.heard += [(hello.node, group, message) for group, message in messages]

    async def on_request(self, node: str, method: int, body: memoryview) -> bytes:
        return await self.answer(node, method, body)

    def on_up(self, hello: Hello) -> None:
        self.events.append(("up", hello.node))

    def on_down(self, node: str) -> None:
        self.events.append(("down", node))

    def on_dropped(self, node: str, groups: Collection[int]) -> None:
        self.events.append(("dropped", node))
        self.dropped_groups.append(set(groups))

    def on_nobody_there(self, node: str) -> None:
        self.nobody_there.append(node)

    def on_heard(self, node: str) -> None:
        self.heard_at.setdefault(node, []).append(asyncio.get_running_loop().time())

    def on_namesake(self, hello: Hello) -> None: ...

    def refusal(self, hello: Hello) -> str | None:
        return self.unwanted.get(hello.node)


def pairs(nodes: tuple[LinkNode, ...]) -> Iterator[tuple[LinkNode, LinkNode]]:
    return itertools.permutations(nodes, 2)


@asynccontextmanager
async def cluster(*nodes: LinkNode) -> AsyncIterator[tuple[LinkNode, ...]]:
    """All of them connected with each other."""
    try:
        for node in nodes:
            await node.start(*(other for other in nodes if other is not node))
        for one, other in pairs(nodes):
            await one.up(other)
        yield nodes
    finally:
        for node in nodes:
            await node.links.stop()
