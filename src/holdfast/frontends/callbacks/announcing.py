"""Telling receivers that they were subscribed or removed, over a connection to them: `SUBACK` and `UNSUBACK`.

The node that took the request does so once it is decided, over a connection that is closed behind the line, so it does
not matter which node delivers. It tries once. A receiver that cannot be reached then is not told, and the log says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from holdfast.broker.callback_addresses import parse_callback_address
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.model.callbacks import Callback
from holdfast.model.errors import CallbackRefused, ConnectionLost
from holdfast.wire.callbacks import removed_line, subscribed_line

# Told at once; more are not told.
_AT_ONCE_MAX: Final = 256

OnFailure = Callable[[Callback, str], None]


class Announcer:
    """The lines that are under way."""

    def __init__(self, dialer: Dialer, on_failure: OnFailure) -> None:
        self._dialer = dialer
        self._on_failure = on_failure
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
        if len(self._under_way) >= _AT_ONCE_MAX:
            self._on_failure(callback, f"{_AT_ONCE_MAX} receivers are being told already")
            return
        task = asyncio.get_running_loop().create_task(self._tell(callback, line))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _tell(self, callback: Callback, line: bytes) -> None:
        try:
            connection = await self._dialer.connect(parse_callback_address(callback.address), self._connection)
        except (CallbackRefused, ConnectionLost) as error:
            self._on_failure(callback, error.message)
        else:
            connection.say(line)

    def _connection(self) -> _Connection:
        return _Connection(self._dialer)


class _Connection(asyncio.Protocol):
    """Says one line and hangs up. What is answered is not read."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._dialer.opened()

    def say(self, line: bytes) -> None:
        self._transport.write(line)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._dialer.hung_up()
