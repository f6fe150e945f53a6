"""Connecting to a receiver: its name is resolved anew each time, and the connection goes to what was judged."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, TypeVar

from holdfast.broker.callback_addresses import CallbackAddress, CallbackPolicy
from holdfast.frontends.callbacks.resolving import Resolver
from holdfast.model.errors import CallbackRefused, ConnectionLost
from holdfast.model.limits import CALLBACK_ATTEMPTS_PER_S

# A receiver that cannot be reached within it is away.
_CONNECT_S: Final = 5.0
# A machine that vanished is noticed after about a minute, though nothing is sent to it.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

P = TypeVar("P", bound=asyncio.Protocol)
_SocketAddress = tuple[Any, ...]


class Dialer:
    """Makes the connections of one node: so many at most, and not all at the same moment."""

    def __init__(self, policy: CallbackPolicy, connections_max: int) -> None:
        self._policy = policy
        self._connections_max = connections_max
        self._attempts = 0
        self._connections = 0
        self._resolver = Resolver()
        self._next_turn_s = 0.0

    async def turn(self) -> None:
        """Wait until one more may be tried that is away; of thousands, each waits for the others."""
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._next_turn_s)
        self._next_turn_s = turn_s + 1 / CALLBACK_ATTEMPTS_PER_S
        await asyncio.sleep(turn_s - now_s)

    async def connect(self, address: CallbackAddress, make: Callable[[], P]) -> P:
        """Raises `CallbackRefused` where it may not go there, `ConnectionLost` where nobody is there.

        The protocol says when it has a socket (`opened`), and when it has none any more (`hung_up`).
        """
        self._policy.check(address)
        if self._attempts + self._connections >= self._connections_max:
            raise ConnectionLost(
                f"this node has {self._connections} connections to receivers, and no files for more; raise ulimit -n"
            )
        self._attempts += 1
        try:
            return await self._connect(address, make)
        except TimeoutError:
            raise ConnectionLost(f"{address} does not answer") from None
        except OSError as error:
            raise ConnectionLost(f"{address}: {_reason(error)}") from error
        except UnicodeError as error:
            raise ConnectionLost(f"{address.host} is no name that can be looked up") from error
        finally:
            self._attempts -= 1

    def opened(self) -> None:
        self._connections += 1

    def hung_up(self) -> None:
        self._connections -= 1

    async def _connect(self, address: CallbackAddress, make: Callable[[], P]) -> P:
        problem: Exception | None = None
        for family, there in await self._resolved(address):
            try:
                ip = ip_address(str(there[0]).partition("%")[0])
                self._policy.check_ip(ip)
                if _is_own(family, there):
                    self._policy.check_own(ip)
                async with asyncio.timeout(_CONNECT_S):
                    return await self._connect_to(family, there, make)
            except (OSError, CallbackRefused) as error:
                # That one of its addresses is out of bounds matters only where no other one answers.
                problem = error if problem is None or isinstance(error, OSError) else problem
        raise problem or ConnectionLost(f"{address} has no address")

    async def _resolved(self, address: CallbackAddress) -> list[tuple[int, _SocketAddress]]:
        if (ip := address.ip) is not None:
            family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
            return [(family, (str(ip), address.port))]
        return await self._resolver.resolve(address.host, address.port)

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


def _is_own(family: int, there: _SocketAddress) -> bool:
    """Whether an address is this machine's, which nothing is sent for: it would be reached from itself."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(there)
        return bool(probe.getsockname()[0] == probe.getpeername()[0])


def is_connected_to_itself(connected: socket.socket) -> bool:
    """A port that nobody listens at may be given to the very socket that looks for it."""
    return bool(connected.getsockname() == connected.getpeername())


def _reason(error: OSError) -> str:
    """As the system words it: event loops put addresses in its place."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
