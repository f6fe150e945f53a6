"""Connections to one node for one purpose: as many as it may have, and a line of those who wait for one.

Nobody waits without a deadline. Purposes have pools of their own, so that what takes long (a tail, an upload) cannot
keep what is short waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.client.addresses import Address
from holdfast.proxy.upstream import NodeConnection, NodeFailed

# Who waits for a connection; beyond that, they go to the next node at once.
_WAITING_MAX: Final = 1024


class PoolFull(NodeFailed):
    """All connections that it may have are in use. Nothing was sent, and it says nothing of the node."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{address} has as many requests as a proxy gives it", sent=False)


class Pool:
    """`on_unreachable` is told why there is no new connection."""

    def __init__(
        self, address: Address, connections_max: int, connect_s: float, on_unreachable: Callable[[str], None]
    ) -> None:
        self._address = address
        self._connections_max = connections_max
        self._connect_s = connect_s
        self._on_unreachable = on_unreachable
        self._idle: list[NodeConnection] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self.open = 0

    def take_idle(self) -> NodeConnection | None:
        """A connection that is there already, to use alone; `give_back` afterwards."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            self._closed()
        return None

    async def take(self, until_s: float) -> NodeConnection:
        """The same, or a new one, before the loop's clock says `until_s`. Raises `NodeFailed`."""
        while True:
            connection = self.take_idle()
            if connection is not None:
                return connection
            if self.open < self._connections_max:
                return await self._connect(until_s)
            await self._turn(until_s)

    async def _connect(self, until_s: float) -> NodeConnection:
        loop = asyncio.get_running_loop()
        connect_s = min(self._connect_s, until_s - loop.time())
        self.open += 1
        try:
            async with asyncio.timeout(connect_s):
                _, made = await loop.create_connection(NodeConnection, self._address.host, self._address.port)
        except BaseException as error:
            self._closed()
            if isinstance(error, TimeoutError):
                reason = f"no connection within {connect_s:.2g} s"
            elif isinstance(error, OSError):
                reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            else:
                raise
            self._on_unreachable(reason)
            raise NodeFailed(reason, sent=False) from error
        return made

    async def _turn(self, until_s: float) -> None:
        """Wait until a connection is free. Raises `PoolFull`."""
        if len(self._waiting) >= _WAITING_MAX:
            raise PoolFull(self._address)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(until_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # Its turn came, and it does not take it.
                self._next_turn()
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise PoolFull(self._address) from None
            raise

    def give_back(self, connection: NodeConnection) -> None:
        """It is not used any more: kept if its exchange ended well, else hung up on."""
        if connection.is_reusable and not self._is_closed:
            self._idle.append(connection)
            self._next_turn()
        else:
            connection.abort()
            self._closed()

    def _closed(self) -> None:
        self.open -= 1
        self._next_turn()

    def _next_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def close(self) -> None:
        self._is_closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
