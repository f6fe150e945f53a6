"""What time it is, as the clocks of several nodes agree on it.

What is too old follows from a clock, and one clock may be wrong by a day. Where a group has voters on several nodes,
the time is the latest that a majority of them has reached: one of three may be ahead or behind as far as it likes. Two
go by the one that is behind. A broker that stands alone has only its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.requests import ClockReply, Method
from holdfast.model.errors import BadPeerFrame, HoldfastError
from holdfast.model.ids import TimestampMs

_REPLY_S: Final = 1.0
_QUICK_REPLY_S: Final = 0.1
_PATIENCE_S: Final = 3.0
_PAUSE_S: Final = 0.02
_decode = msgspec.msgpack.Decoder(ClockReply).decode


def agreed_ms(clocks: Mapping[str, TimestampMs], voters: Collection[str]) -> TimestampMs | None:
    """The latest time that a majority of the voters has reached, or none if too few clocks are known."""
    known = sorted((clocks[voter] for voter in voters if voter in clocks), reverse=True)
    quorum = len(voters) // 2 + 1
    return known[quorum - 1] if len(known) >= quorum else None


class Clocks:
    """Asks the other nodes what time it is."""

    def __init__(self, node: str, peers: Peers, now_ms: Callable[[], TimestampMs]) -> None:
        self._node = node
        self._peers = peers
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        # Those who ask the same voters at the same time share one question: many topics have the same ones.
        self._asking: dict[frozenset[str], asyncio.Task[TimestampMs | None]] = {}

    async def read(self, nodes: Collection[str], reply_s: float = _REPLY_S) -> dict[str, TimestampMs]:
        """The clocks of these nodes and of this one, without those that do not answer."""
        asked = [node for node in nodes if node != self._node and self._peers.is_up(node)]
        answers = await asyncio.gather(*(self._ask(node, reply_s) for node in asked))
        clocks = {node: answer for node, answer in zip(asked, answers, strict=True) if answer is not None}
        clocks[self._node] = self._now_ms()
        return clocks

    async def agreed_ms(self, voters: Callable[[], Collection[str]]) -> TimestampMs | None:
        """What time it is for a group; none if too few of its voters answer for a while.

        The voters may change meanwhile: one of a pair that goes on alone has its own clock only.
        """
        while True:
            key = frozenset(voters())
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = self._loop.create_task(self._asked(key, voters))
            found = await asyncio.shield(asking)
            if found is not None or frozenset(voters()) == key:
                return found

    def close(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    async def _asked(self, key: frozenset[str], voters: Callable[[], Collection[str]]) -> TimestampMs | None:
        try:
            return await self._agreed_ms(voters)
        finally:
            del self._asking[key]

    async def _agreed_ms(self, voters: Callable[[], Collection[str]]) -> TimestampMs | None:
        deadline = self._loop.time() + _PATIENCE_S
        # Publishers wait for this: a node that hangs is not waited for if the others are enough.
        reply_s = _QUICK_REPLY_S
        while True:
            clocks = await self.read(voters(), reply_s)
            found = agreed_ms(clocks, voters())
            if found is not None or self._loop.time() >= deadline:
                return found
            reply_s = min(2 * reply_s, _REPLY_S)
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self, node: str, reply_s: float) -> TimestampMs | None:
        try:
            return TimestampMs(_decode(await self._peers.request(node, Method.CLOCK, b"", reply_s)).now_ms)
        except BadPeerFrame:
            return self._now_ms()  # an older build, which cannot tell
        except HoldfastError:
            return None
