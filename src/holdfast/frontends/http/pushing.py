"""Pushes on their way: what comes in one turn of the event loop becomes one write.

A store that commits pays for each write, so requests of one item each, from many connections, are gathered. Items
are columns (`push_columns.py`), and what became of each part is told to those who wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.broker.broker import Broker
from holdfast.broker.publishing import PushedPart
from holdfast.broker.results import refuse, spread
from holdfast.frontends.http.push_columns import BUFFERED, DUPLICATE, FAILED, QUEUED, Columns, Outcomes
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import MIB
from holdfast.wire.push_batch import Pushed

# What is gathered of one turn of the loop before it is pushed.
_GATHERED_ITEMS_MAX: Final = 5_000
_GATHERED_BYTES_MAX: Final = 4 * MIB


class _Waiting(NamedTuple):
    """The items of one request that go to one queue."""

    columns: Columns
    done: asyncio.Future[Outcomes]


class Pushes:
    """Everything that is being pushed through one front end."""

    def __init__(self, broker: Broker, log: Callable[..., None]) -> None:
        self._broker = broker
        self._log = log
        # By queue, and whether they may be lost.
        self._waiting: dict[tuple[str, bool], list[_Waiting]] = {}
        self._items = 0
        self._bytes = 0

    async def push(self, columns: Columns, size: int, *, may_be_lost: bool = False) -> Outcomes:
        """What became of each, in their order. `size` is about what they take; who gives up is pushed all the same."""
        queues = set(columns.queues)
        if not queues:
            return Outcomes((), (), ())
        if len(queues) == 1:
            return await asyncio.shield(self.gather(queues.pop(), columns, size, may_be_lost=may_be_lost))
        by_queue: dict[str, list[int]] = {}
        for place, queue in enumerate(columns.queues):
            by_queue.setdefault(queue, []).append(place)
        parts = [
            self.gather(queue, columns.only(places), size // len(by_queue), may_be_lost=may_be_lost)
            for queue, places in by_queue.items()
        ]
        found = [await asyncio.shield(part) for part in parts]
        return Outcomes.put_together(zip(by_queue.values(), found, strict=True), len(columns.queues))

    def gather(self, queue: str, columns: Columns, size: int, *, may_be_lost: bool = False) -> asyncio.Future[Outcomes]:
        """Items of one queue, of about that size, which are pushed at the end of this turn of the loop."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self.flush)
        done: asyncio.Future[Outcomes] = loop.create_future()
        self._waiting.setdefault((queue, may_be_lost), []).append(_Waiting(columns, done))
        self._items += len(columns.queues)
        self._bytes += size
        if self._items > _GATHERED_ITEMS_MAX or self._bytes > _GATHERED_BYTES_MAX:
            self.flush()
        return done

    def flush(self) -> None:
        """Push what was gathered."""
        waiting, self._waiting = self._waiting, {}
        self._items = self._bytes = 0
        for (queue, may_be_lost), requests in waiting.items():
            self._push(queue, requests, may_be_lost=may_be_lost)

    def _push(self, queue: str, requests: list[_Waiting], *, may_be_lost: bool) -> None:
        try:
            pushed = Columns.joined([each.columns for each in requests]).pushed()
        except Exception as error:  # noqa: BLE001 - a bug: nobody may be left waiting for it
            self._log("http_request_failed", operation="push", error=repr(error))
            for each in requests:
                refuse(each.done, error)
            return
        parts: asyncio.Future[list[PushedPart]]
        try:
            parts = self._broker.publish_large_push(queue, pushed, may_be_lost=may_be_lost)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, also of a bug
            if len(requests) > 1:
                # What is too much together may be right one by one; what is wrong with one is not the others' fault.
                for each in requests:
                    self._push(queue, [each], may_be_lost=may_be_lost)
                return
            if not isinstance(error, HoldfastError):
                self._log("http_request_failed", operation="push", error=repr(error))
            parts = asyncio.get_running_loop().create_future()
            parts.set_exception(error)
        parts.add_done_callback(lambda done: _settle(requests, pushed, done))


def _settle(requests: Sequence[_Waiting], pushed: Pushed, done: asyncio.Future[list[PushedPart]]) -> None:
    """Tell each request what became of its items."""
    statuses: list[str] = [QUEUED] * len(pushed.names)
    errors: dict[int, BaseException] = {}
    failure = asyncio.CancelledError() if done.cancelled() else done.exception()
    parts = [PushedPart(range(len(pushed.names)), failure)] if failure is not None else done.result()
    for places, fate in parts:
        if isinstance(fate, BaseException):
            for place in places:
                statuses[place], errors[place] = FAILED, fate
        elif fate.buffered and len(places) == len(statuses):
            statuses = [BUFFERED] * len(statuses)
        elif fate.buffered:
            for place in places:
                statuses[place] = BUFFERED
        elif fate.duplicates:
            for place, published in zip(places, spread(fate), strict=True):
                statuses[place] = DUPLICATE if published.duplicate else QUEUED
    outcomes = Outcomes(pushed.transaction_ids, pushed.ids, statuses, errors)
    start = 0
    for request in requests:
        end = start + len(request.columns.queues)
        if not request.done.done():
            request.done.set_result(outcomes.between(start, end))
        start = end
