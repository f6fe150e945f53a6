"""Telling receivers that they were subscribed or removed, over a connection to them: `SUBACK` and `UNSUBACK`.

The node that took the request does so once it is decided, over a connection that is closed behind the line, so it does
not matter which node delivers. It tries once. A receiver that cannot be reached then is not told, and the log says so.

What one receiver is told comes in order: the connection for a line is made when the one before is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from holdfast.broker.callback_addresses import parse_callback_address
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.model.callbacks import Callback
from holdfast.model.errors import CallbackRefused, ConnectionLost
from holdfast.wire.callbacks import removed_line, subscribed_line

# Lines that are under way or wait for the one before; more are not sent.
_AT_ONCE_MAX: Final = 256

OnFailure = Callable[[Callback, str], None]
_Lines = deque[tuple[Callback, bytes]]


class Announcer:
    """The lines that are under way, by address."""

    def __init__(self, dialer: Dialer, on_failure: OnFailure) -> None:
        self._dialer = dialer
        self._on_failure = on_failure
        self._lines: dict[str, _Lines] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def subscribed(self, callback: Callback) -> None:
        self._begin(callback, subscribed_line(callback.topic.encode()))

    def removed(self, callback: Callback) -> None:
        self._begin(callback, removed_line(callback.topic.encode()))

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _begin(self, callback: Callback, line: bytes) -> None:
        if sum(map(len, self._lines.values())) >= _AT_ONCE_MAX:
            self._on_failure(callback, f"{_AT_ONCE_MAX} receivers are being told already")
            return
        lines = self._lines.get(callback.address)
        if lines is not None:
            lines.append((callback, line))
            return
        self._lines[callback.address] = lines = deque([(callback, line)])
        task = asyncio.get_running_loop().create_task(self._tell_all(callback.address, lines))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _tell_all(self, address: str, lines: _Lines) -> None:
        try:
            while lines:
                await self._tell(address, lines[0][1])
                lines.popleft()
        except (CallbackRefused, ConnectionLost) as error:
            # The lines that wait are for the same receiver, which is away now.
            for callback, _ in lines:
                self._on_failure(callback, error.message)
        finally:
            del self._lines[address]

    async def _tell(self, address: str, line: bytes) -> None:
        connection = await self._dialer.connect(parse_callback_address(address), self._connection)
        connection.say(line)
        await connection.over.wait()

    def _connection(self) -> _Connection:
        return _Connection(self._dialer)


class _Connection(asyncio.Protocol):
    """Says one line and hangs up. What is answered is not read."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._transport: asyncio.Transport
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._dialer.opened()

    def say(self, line: bytes) -> None:
        self._transport.write(line)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._dialer.hung_up()
        self.over.set()
