"""A node behind the proxy: its connections, and whether it is well."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Final

from holdfast.client.addresses import Address
from holdfast.model.errors import Overloaded
from holdfast.proxy.settings import Settings
from holdfast.proxy.upstream import Answer, NodeConnection, NodeFailed

# Who waits for a connection of a node that has all it may have; beyond that, they are told to come again.
_WAITING_MAX: Final = 1024


class Node:
    """One node of a group."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.host = str(address).encode()
        # Until it was asked for the first time it counts as well.
        self.is_up = True
        self.is_leader = False
        self.problem = ""
        self._settings = settings
        self._idle: list[NodeConnection] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def connections(self) -> int:
        return self._open

    def take_idle(self) -> NodeConnection | None:
        """A connection that is there already, to use alone; `give_back` afterwards."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            self._closed()
        return None

    async def take(self) -> NodeConnection:
        """The same, or a new one. Raises `NodeFailed`, `Overloaded`."""
        connection = self.take_idle()
        if connection is not None:
            return connection
        while self._open >= self._settings.connections_per_node_max:
            if len(self._waiting) >= _WAITING_MAX:
                raise Overloaded(f"{self.address} has as many requests as a proxy gives it; try again in a moment")
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
            connection = self.take_idle()
            if connection is not None:
                return connection
        self._open += 1
        try:
            async with asyncio.timeout(self._settings.connect_s):
                _, made = await asyncio.get_running_loop().create_connection(
                    NodeConnection, self.address.host, self.address.port
                )
        except TimeoutError:
            self._closed()
            raise self._down(f"no connection within {self._settings.connect_s:g} s") from None
        except OSError as error:
            self._closed()
            raise self._down(os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)) from error
        except BaseException:
            self._closed()
            raise
        return made

    def give_back(self, connection: NodeConnection) -> None:
        """It is not used any more: kept if its exchange ended well, else hung up on."""
        if connection.is_reusable:
            self._idle.append(connection)
            self._next_turn()
        else:
            connection.abort()
            self._closed()

    def _closed(self) -> None:
        self._open -= 1
        self._next_turn()

    def _next_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _down(self, reason: str) -> NodeFailed:
        self.is_up = False
        self.problem = reason
        return NodeFailed(reason, sent=False)

    def request(self, path: bytes, body: bytes) -> bytes:
        """A small request, with a head that a broker's short way knows."""
        return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
            path,
            self.host,
            len(body),
            body,
        )

    async def exchange(self, path: bytes, body: bytes, timeout_s: float) -> Answer:
        """One small request. Raises `NodeFailed`."""
        connection = await self.take()
        timer = asyncio.get_running_loop().call_later(timeout_s, connection.abort)
        try:
            return await connection.answer(self.request(path, body))
        except NodeFailed as error:
            # A connection that was idle may have been closed by the other side: that says nothing of the node.
            self.problem = str(error)
            raise
        finally:
            timer.cancel()
            self.give_back(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
