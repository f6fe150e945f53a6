"""Telling the broker what is done: in the background, many acknowledgements in one request.

While one request is under way the next acknowledgements gather. Those that nobody waits for are
gathered a moment longer, so that a fast reader costs the broker some twenty requests a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from holdfast.client.ack_ranges import AckRanges
from holdfast.client.api import Api
from holdfast.client.errors import ClientClosed, another
from holdfast.client.limits import ACK_GATHER_S
from holdfast.model.errors import HoldfastError

_log = logging.getLogger("holdfast.client")


class Acks:
    """The acknowledgements of one named subscription."""

    def __init__(self, api: Api, topic: str, name: str, positions: Mapping[int, int]) -> None:
        self._api = api
        self._topic = topic
        self._name = name
        self._ranges = {partition: AckRanges(offset) for partition, offset in positions.items()}
        self._stored = dict(positions)
        self._unsent: set[int] = set()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def done(self, partition: int, start: int, end: int) -> bool:
        """Note it and see to it that it is sent; whether everything before it is done, too."""
        self._check_open()
        self._ranges[partition].done(start, end)
        return self._moved(partition, end)

    def all_done_below(self, partition: int, end: int) -> None:
        self._check_open()
        self._ranges[partition].all_done_below(end)
        self._moved(partition, end)

    async def stored(self, partition: int, end: int) -> None:
        """Wait until the broker has stored that everything below `end` is done."""
        if self._stored[partition] >= end:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((partition, end, future))
        self._wake()
        await future

    async def flush(self) -> None:
        """Send all that is noted and wait until it is stored."""
        for partition, ranges in self._ranges.items():
            await self.stored(partition, ranges.done_below)

    async def close(self) -> None:
        """Stop sending. What was not flushed before will be delivered again to the next reader."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the subscription {self._name} is closed; its next reader gets the message again")

    def _moved(self, partition: int, end: int) -> bool:
        done_below = self._ranges[partition].done_below
        if done_below > self._stored[partition]:
            self._unsent.add(partition)
            if self._task is None:
                self._task = asyncio.create_task(self._send_all(), name=f"acks of {self._name}")
        return done_below >= end

    def _wake(self) -> None:
        self._urgent.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name=f"acks of {self._name}")

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                if not self._waiting:
                    self._urgent.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), ACK_GATHER_S)
                await self._send({partition: self._ranges[partition].done_below for partition in self._unsent})
        except HoldfastError as error:
            if not self._waiting:
                _log.warning("acknowledgements of %s on %s are not stored yet: %s", self._name, self._topic, error)
            self._release(error)
        except BaseException as error:
            self._release(error)
            raise
        finally:
            self._task = None

    async def _send(self, offsets: dict[int, int]) -> None:
        self._unsent.clear()
        try:
            await self._api.ack(self._topic, self._name, offsets)
        except BaseException:
            self._unsent.update(offsets)
            raise
        self._stored.update(offsets)
        self._unsent.difference_update(
            [partition for partition in self._unsent if self._ranges[partition].done_below <= self._stored[partition]]
        )
        still_waiting = []
        for partition, end, future in self._waiting:
            if self._stored[partition] < end:
                still_waiting.append((partition, end, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still_waiting

    def _release(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if future.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(another(error))
