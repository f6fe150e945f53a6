"""Pushes that the backend has: answered by it in time, or kept by the spill, none before one that was given earlier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.backends.spill.deadline import AdaptiveDeadline
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.stats import SpillStats
from holdfast.broker import results
from holdfast.model.errors import HoldfastError, LeaderChanged, OutcomeUnknown, ShuttingDown, Unavailable
from holdfast.model.ids import PartitionId
from holdfast.model.messages import BatchPublished

# Partition, batch, the mark of what may have stored it, and since when somebody waits.
Keep = Callable[[PartitionId, bytearray, str | None, float], asyncio.Future[BatchPublished]]


class _Attempt(NamedTuple):
    """A push that the backend has, and what it is worth waiting for."""

    partition: PartitionId
    batch: bytearray
    mark: str | None
    # Since when it is under way, from when on its deadline counts, and since when somebody waits for it.
    given_s: float
    began_s: float
    since_s: float
    future: asyncio.Future[BatchPublished]
    promise: asyncio.Future[BatchPublished]


class Attempts:
    """All that is under way, and the one timer that watches the oldest of it."""

    def __init__(
        self,
        target: Target,
        deadline: AdaptiveDeadline,
        stats: SpillStats,
        *,
        on_trouble: Callable[[str], None],
        keep: Keep,
    ) -> None:
        self._target = target
        self._deadline = deadline
        self._stats = stats
        self._on_trouble = on_trouble
        self._keep = keep
        # In the order in which they were given to the backend.
        self._under_way: dict[asyncio.Future[BatchPublished], _Attempt] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def stop(self) -> None:
        """Keep what is under way: nobody waits for the backend any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.give_up()

    def wait_for(
        self,
        future: asyncio.Future[BatchPublished],
        partition: PartitionId,
        batch: bytearray,
        mark: str | None,
        since_s: float | None = None,
    ) -> asyncio.Future[BatchPublished]:
        """What becomes of a push that was just given to the backend, within the deadline, which began when it came."""
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        now_s = time.monotonic()
        since_s = now_s if since_s is None else since_s
        # Half of what a push may take, at the least: the backend has done nothing wrong yet.
        began_s = max(since_s, now_s - self._deadline.seconds / 2)
        attempt = _Attempt(partition, batch, mark, now_s, began_s, since_s, future, promise)
        self._under_way[future] = attempt
        future.add_done_callback(self._on_tried)
        self._look_at(self._due_s_of(attempt))
        return promise

    def _due_s_of(self, attempt: _Attempt) -> float:
        return min(attempt.began_s + self._deadline.seconds, attempt.since_s + self._deadline.ceiling_s)

    def _on_tried(self, future: asyncio.Future[BatchPublished]) -> None:
        attempt = self._under_way.get(future)
        error = results.failure(future)
        if attempt is None:
            return  # given up before
        if isinstance(error, Unavailable | OutcomeUnknown):
            self._on_trouble(error.message)
            return
        del self._under_way[future]
        self._settle(attempt, error)

    def _settle(self, attempt: _Attempt, error: BaseException | None) -> None:
        if error is not None:
            results.refuse(attempt.promise, error)
            return
        self._deadline.note(time.monotonic() - attempt.given_s)
        if not attempt.promise.done():
            attempt.promise.set_result(attempt.future.result())

    def _look_at(self, due_s: float) -> None:
        """Look then whether something is overdue, unless that is done before."""
        if self._timer is not None:
            if self._due_s <= due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        left_s = max(0.0, due_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._under_way:
            due_s = min(map(self._due_s_of, self._under_way.values()))
            if due_s <= time.monotonic():
                waited_ms = self._deadline.seconds * 1000
                self._deadline.missed()
                self._on_trouble(f"it did not answer within {waited_ms:.0f} ms")
            else:
                self._look_at(due_s)

    def give_up(self) -> None:
        """Keep what the backend has not answered, in the order in which it was given there."""
        if not self._under_way:
            return
        fates = self._target.abandon()
        attempts, self._under_way = list(self._under_way.values()), {}
        # A backend sends nothing of it from now on. Sent later, one would overtake those that are kept before it.
        is_given_up = {attempt.future for attempt in attempts if attempt.future.cancel()}
        for attempt in attempts:
            future = attempt.future
            if future in fates:
                self._keep_attempt(attempt, fates[future])
            elif future in is_given_up:
                self._keep_attempt(attempt, attempt.mark)
            else:
                error = results.failure(future)
                if isinstance(error, OutcomeUnknown):
                    self._keep_unknown(attempt, error)
                elif isinstance(error, Unavailable) and not isinstance(error, ShuttingDown):
                    self._keep_attempt(attempt, None)
                else:
                    self._settle(attempt, error)

    def _keep_unknown(self, attempt: _Attempt, error: OutcomeUnknown) -> None:
        """Keep it with a marker, by which replay finds out whether it is stored; without one, nobody could tell."""
        mark = (error.mark if isinstance(error, LeaderChanged) else None) or attempt.mark
        if mark is None:
            self._settle(attempt, error)
        else:
            self._keep_attempt(attempt, mark)

    def _keep_attempt(self, attempt: _Attempt, mark: str | None) -> None:
        if mark is not None:
            self._stats.unknown_fates += 1
        try:
            kept = self._keep(attempt.partition, attempt.batch, mark, attempt.since_s)
        except HoldfastError as error:
            results.refuse(attempt.promise, _after_a_try(error, mark))
            return

        def settle(done: asyncio.Future[BatchPublished]) -> None:
            error = results.failure(done)
            if error is not None:
                results.refuse(attempt.promise, _after_a_try(error, mark))
            elif not attempt.promise.done():
                attempt.promise.set_result(done.result())

        kept.add_done_callback(settle)


def _after_a_try(error: BaseException, mark: str | None) -> BaseException:
    """What could not be kept may have been stored all the same."""
    if mark is None or not isinstance(error, HoldfastError):
        return error
    return LeaderChanged(f"the store did not answer, and it could not be kept: {error.message}")
