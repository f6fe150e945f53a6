"""A node behind the proxy: its connections, and whether it is well."""

from __future__ import annotations

import asyncio

from holdfast.client.addresses import Address
from holdfast.proxy.pool import Pool
from holdfast.proxy.settings import Settings
from holdfast.proxy.upstream import Answer, NodeFailed


class Node:
    """One node of a group."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.host = str(address).encode()
        # Until it was asked for the first time it counts as well.
        self.is_up = True
        self.is_leader = False
        self.problem = ""
        self.calls = Pool(address, settings.connections_per_node_max, settings.connect_s, self._unreachable)
        self.streams = Pool(address, settings.streams_per_node_max, settings.connect_s, self._unreachable)
        # However busy a node is, whether it is well can be asked.
        self.checks = Pool(address, 1, settings.connect_s, self._unreachable)
        self._pools = (self.calls, self.streams, self.checks)

    @property
    def connections(self) -> int:
        return sum(pool.open for pool in self._pools)

    def _unreachable(self, reason: str) -> None:
        self.is_up = False
        self.problem = reason

    def post(self, path: bytes, body: bytes) -> bytes:
        """A small request, with a head that a broker's short way knows."""
        return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
            path,
            self.host,
            len(body),
            body,
        )

    def get(self, target: bytes) -> bytes:
        return b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (target, self.host)

    async def exchange(self, request: bytes, timeout_s: float, pool: Pool | None = None) -> Answer:
        """One small request, within this time whatever it waits for. Raises `NodeFailed`."""
        pool = pool or self.calls
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        connection = await pool.take(until_s)
        timer = loop.call_at(until_s, connection.time_out)
        try:
            return await connection.answer(request)
        except NodeFailed as error:
            # A connection that was idle may have been closed by the other side: that says nothing of the node.
            self.problem = str(error)
            raise
        finally:
            timer.cancel()
            pool.give_back(connection)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
