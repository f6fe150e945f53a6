"""A node that does not belong to its cluster yet asks to be let in, again and again until it is.

Whoever is asked has that decided by the control log (`membership_calls`).
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster import requests
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import Method
from holdfast.model.errors import HoldfastError

log = structlog.get_logger("holdfast.cluster")

_PERIOD_S: Final = 0.25
# Who is told to wait asks less often.
_PERIOD_MAX_S: Final = 2.0
_ASK_S: Final = 10.0
_SAID_S: Final = 5.0
_decode_reply = msgspec.msgpack.Decoder(requests.JoinReply).decode


class Joining:
    """Asks to be let in for as long as this node is in no configuration of the control group that it knows."""

    def __init__(self, neighbours: Neighbours, control: Replica) -> None:
        self._neighbours = neighbours
        self._control = control
        # Whether this node heard of a leader since it was started: it was no stranger then.
        self.has_belonged = False
        self._task: asyncio.Task[None] | None = None
        self._said_at = 0.0
        self._was_asked = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _is_in(self) -> bool:
        raft = self._control.raft
        return raft.replica in raft.members.everybody

    async def _run(self) -> None:
        pause_s = _PERIOD_S
        while True:
            self.has_belonged |= self._control.raft.hears_leader
            if self._is_in or self._neighbours.known.is_removed:
                pause_s = 4 * _PERIOD_S
            else:
                pause_s = _PERIOD_S if await self._ask() else min(2 * pause_s, _PERIOD_MAX_S)
            await asyncio.sleep(pause_s)

    async def _ask(self) -> bool:
        """Whether there is no reason to wait longer before it is asked again."""
        neighbours = self._neighbours
        wanted = requests.JoinRequest(neighbours.node, neighbours.own_life, neighbours.addresses.get("peer", ""))
        linked = neighbours.known.linked
        for node in linked:
            if not self._was_asked:
                log.debug("asks_to_join", asked=node)
            try:
                reply = _decode_reply(await neighbours.request(node, Method.JOIN, requests.encode(wanted), _ASK_S))
            except (HoldfastError, msgspec.MsgspecError) as error:
                self._say("not_let_in_yet", asked=node, reason=str(error))
                continue
            for other, address in reply.peers.items():
                neighbours.known.introduce(other, address)
            if not self._was_asked:
                self._was_asked = True
                log.info("joining", asked=node, hint="this node gets what the others have, then it votes")
            return True
        return not linked

    def _say(self, event: str, **facts: object) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_at >= _SAID_S or not self._said_at:
            self._said_at = now_s
            log.warning(event, **facts)
