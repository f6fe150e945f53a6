"""A few connections that are kept open and shared; one try of one request at a time on each."""

from __future__ import annotations

import asyncio

from holdfast.client.addresses import Addresses
from holdfast.client.connection import Connection, Request, Response
from holdfast.client.errors import AttemptFailed, ClientClosed
from holdfast.client.limits import CONNECT_TIMEOUT_S, IDLE_CONNECTION_S_MAX, RETRIED_STATUSES
from holdfast.client.refusals import error_body, is_foreign


class Pool:
    """At most `connections_max` connections; who finds all of them busy waits for the first one free."""

    def __init__(self, addresses: Addresses, connections_max: int) -> None:
        self.addresses = addresses
        self._slots = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []
        self._closed = False

    async def attempt(self, request: Request, timeout_s: float) -> Response:
        """Send `request` once to whichever broker is preferred now. Raises `AttemptFailed`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise AttemptFailed(
                str(self.addresses), f"all connections were busy for {timeout_s:.1f} s", sent=False
            ) from None
        try:
            connection = await self._connection(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    response = await connection.exchange(request)
            except TimeoutError:
                failure = AttemptFailed(str(connection.address), f"no answer within {timeout_s:.1f} s", sent=True)
                self.addresses.failed(connection.address, failure.reason)
                raise failure from None
            except AttemptFailed as failure:
                self.addresses.failed(connection.address, failure.reason)
                raise
            finally:
                self._give_back(connection)
            self.addresses.worked(connection.address)
            error = error_body(response) if response.status >= 400 else None
            self.addresses.answered(connection.address, None if error is None else error.code)
            if response.status in RETRIED_STATUSES or (error is not None and is_foreign(error)):
                self.addresses.pass_over(connection.address)
            return response
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close what is idle; connections in use are closed as their exchange ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _connection(self, deadline: float) -> Connection:
        if self._closed:
            raise ClientClosed("the client is closed")
        now = asyncio.get_running_loop().time()
        address = self.addresses.preferred()
        while self._idle:
            connection = self._idle.pop()
            is_fresh = connection.reusable and now - connection.idle_since < IDLE_CONNECTION_S_MAX
            # Other connections to a broker that does not answer would not be answered either.
            if is_fresh and connection.address == address:
                return connection
            connection.abort()
        try:
            return await Connection.open(address, min(CONNECT_TIMEOUT_S, max(0.001, deadline - now)))
        except AttemptFailed as failure:
            self.addresses.failed(address, failure.reason)
            raise

    def _give_back(self, connection: Connection) -> None:
        if connection.reusable and not self._closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
