"""Reads that must not be old: wait until this node shows everything that was acknowledged anywhere before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.replica import Replica, still_leads
from holdfast.backends.cluster.requests import ConfirmReply, ConfirmRequest, Method, encode
from holdfast.model.errors import HoldfastError, LeaderChanged, Unavailable
from holdfast.model.ids import LogIndex
from holdfast.model.member_errors import NodeRemoved

# So long is tried to find a leader that a majority stands behind.
PATIENCE_S: Final = 3.0
_PAUSE_S: Final = 0.02
_decode = msgspec.msgpack.Decoder(ConfirmReply).decode


class Confirming:
    """Asks leaders what is committed; those who ask at the same time share one question."""

    def __init__(self, peers: Peers, no_quorum: Callable[[Replica], HoldfastError]) -> None:
        self._peers = peers
        self._no_quorum = no_quorum
        self._loop = asyncio.get_running_loop()
        # Questions that were not asked yet: whoever comes now may share them.
        self._next: dict[Replica, asyncio.Task[LogIndex]] = {}
        self._asking: set[asyncio.Task[LogIndex]] = set()

    async def confirm(self, replica: Replica, patience_s: float = PATIENCE_S) -> LogIndex:
        """Returns once everything that was committed when it was called is shown here. Raises `NoQuorum`."""
        try:
            async with asyncio.timeout(patience_s):
                task = self._next.get(replica)
                if task is None:
                    task = self._next[replica] = self._loop.create_task(self._ask(replica))
                    self._asking.add(task)
                    task.add_done_callback(self._asked_all)
                index = await asyncio.shield(task)
                await replica.wait_until_shown(index)
        except TimeoutError:
            raise self._no_quorum(replica) from None
        replica.is_current = True
        return index

    def _asked_all(self, task: asyncio.Task[LogIndex]) -> None:
        self._asking.discard(task)
        # Whoever asked may have given up already; then nobody wants the reason, and that is fine.
        if not task.cancelled():
            task.exception()

    async def _ask(self, replica: Replica) -> LogIndex:
        # One turn of the loop for others to join; from then on it would be too late for them.
        await asyncio.sleep(0)
        del self._next[replica]
        deadline = self._loop.time() + PATIENCE_S
        while self._loop.time() < deadline:
            try:
                return await self._asked(replica)
            except (Unavailable, LeaderChanged):
                if isinstance(removed := self._no_quorum(replica), NodeRemoved):
                    raise removed from None
                await asyncio.sleep(_PAUSE_S)
        raise self._no_quorum(replica)

    async def _asked(self, replica: Replica) -> LogIndex:
        leader = replica.leader_node
        if replica.raft.leading is not None:
            return await replica.confirmed_index()
        if leader is None or leader == replica.node:
            raise Unavailable(f"{replica.name} has no leader now")
        request = encode(ConfirmRequest(replica.group))
        body = await self._peers.request(leader, Method.CONFIRM, request, PATIENCE_S, still_leads(leader, replica))
        return LogIndex(_decode(body).index)

    def close(self) -> None:
        for task in self._asking:
            task.cancel()
