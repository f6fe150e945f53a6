"""Connecting to a receiver: its name is resolved anew each time, and the connection goes to what was judged."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, Final, TypeVar

from holdfast.broker.callback_addresses import CallbackAddress, CallbackPolicy
from holdfast.model.errors import CallbackRefused, ConnectionLost

# A receiver that cannot be reached within it is away; a name server that needs longer is tried again.
_CONNECT_S: Final = 5.0
# Threads of their own, since a name server that hangs must not keep the disk's threads from anybody.
_RESOLVING_MAX: Final = 4
# A machine that vanished is noticed after about a minute, though nothing is sent to it.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

P = TypeVar("P", bound=asyncio.Protocol)
_SocketAddress = tuple[Any, ...]


class Dialer:
    """Makes the connections of one node."""

    def __init__(self, policy: CallbackPolicy) -> None:
        self._policy = policy
        self._resolvers = ThreadPoolExecutor(_RESOLVING_MAX, thread_name_prefix="holdfast-resolve")

    def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def connect(self, address: CallbackAddress, make: Callable[[], P]) -> P:
        """Raises `CallbackRefused` where it may not go there, `ConnectionLost` where nobody is there."""
        self._policy.check(address)
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connect(address, make)
        except TimeoutError:
            raise ConnectionLost(f"{address} does not answer") from None
        except OSError as error:
            raise ConnectionLost(f"{address}: {_reason(error)}") from error

    async def _connect(self, address: CallbackAddress, make: Callable[[], P]) -> P:
        problem: Exception | None = None
        for family, there in await self._resolved(address):
            try:
                self._policy.check_ip(ip_address(str(there[0]).partition("%")[0]))
                return await self._connect_to(family, there, make)
            except (OSError, CallbackRefused) as error:
                # That one of its addresses is out of bounds matters only where no other one answers.
                problem = error if problem is None or isinstance(error, OSError) else problem
        raise problem or ConnectionLost(f"{address} has no address")

    async def _resolved(self, address: CallbackAddress) -> list[tuple[int, _SocketAddress]]:
        if (ip := address.ip) is not None:
            family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
            return [(family, (str(ip), address.port))]
        found = await asyncio.get_running_loop().run_in_executor(
            self._resolvers,
            lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM),
        )
        return [(family, there) for family, _, _, _, there in found]

    async def _connect_to(self, family: int, there: _SocketAddress, make: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        connected = socket.socket(family, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            await loop.sock_connect(connected, there)
            if is_connected_to_itself(connected):
                raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
            _, protocol = await loop.create_connection(make, sock=connected)
        except BaseException:
            connected.close()
            raise
        return protocol


def is_connected_to_itself(connected: socket.socket) -> bool:
    """A port that nobody listens at may be given to the very socket that looks for it."""
    return bool(connected.getsockname() == connected.getpeername())


def _reason(error: OSError) -> str:
    """As the system words it: event loops put addresses in its place."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
