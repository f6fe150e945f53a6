"""What a receiver's name means now: a name server that hangs keeps nobody waiting but those who need it.

A lookup cannot be ended from outside, and may take a thread for as long as it likes. So each has a thread of its own,
which a stop does not wait for. There is one for each name at most; and names that were not answered in time share a few
of them until they are, however many they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Final

from holdfast.model.errors import ConnectionLost

_LOOKUP_S: Final = 5.0
# Lookups at the same time: of names that were answered before or are new, and of those that were not answered in time.
_PROMPT_MAX: Final = 16
_SLOW_MAX: Final = 8
# Threads that are there at the same time; beyond the two above, those whose name was found to be slow meanwhile.
_THREADS_MAX: Final = 256

Found = list[tuple[int, tuple[Any, ...]]]


class Resolver:
    """Looks names up for one node."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[Found]] = {}
        # Of the names that receivers have, so it is not larger than they are many.
        self._slow: set[str] = set()
        self._prompt_slots = asyncio.Semaphore(_PROMPT_MAX)
        self._slow_slots = asyncio.Semaphore(_SLOW_MAX)

    async def resolve(self, host: str, port: int) -> Found:
        """Families and socket addresses. Raises `ConnectionLost` in time, `OSError`, `UnicodeError`."""
        found = await self._looked_up(host)
        return [(family, (there[0], port, *there[2:])) for family, there in found]

    async def _looked_up(self, host: str) -> Found:
        slots = self._slow_slots if host in self._slow else self._prompt_slots
        async with slots:
            lookup = self._under_way.get(host)
            if lookup is None:
                lookup = self._begin(host)
            try:
                # From now on: who waited for others was not answered late.
                async with asyncio.timeout(_LOOKUP_S):
                    found = await asyncio.shield(lookup)
            except TimeoutError:
                self._slow.add(host)
                raise ConnectionLost(f"no name server answers what {host} is") from None
            self._slow.discard(host)
            return found

    def _begin(self, host: str) -> asyncio.Future[Found]:
        if len(self._under_way) >= _THREADS_MAX:
            raise ConnectionLost(f"{host} is not looked up: no name server answers for {_THREADS_MAX} other names")
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[Found] = loop.create_future()
        # Nobody may be left who waits for it.
        lookup.add_done_callback(lambda done: (self._under_way.pop(host), done.cancelled() or done.exception()))

        def settle(found: Found, error: Exception | None) -> None:
            if not lookup.done():
                lookup.set_result(found) if error is None else lookup.set_exception(error)

        def look_up() -> None:
            found: Found = []
            problem: Exception | None = None
            try:
                told = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = [(family, there) for family, _, _, _, there in told]
            except (OSError, UnicodeError) as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(settle, found, problem)

        self._under_way[host] = lookup
        try:
            threading.Thread(target=look_up, name="holdfast-resolve", daemon=True).start()
        except RuntimeError as error:
            lookup.set_exception(ConnectionLost(f"{host} is not looked up: {error}"))
        return lookup
