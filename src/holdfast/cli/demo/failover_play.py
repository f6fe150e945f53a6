"""The play with a pair: a publisher at a steady rate, a subscriber at both brokers, and a primary that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.demo.failover_score import Arrival, FailoverScore
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.cli.demo.pair_process import PairProcesses
    from holdfast.client import ConnectionChange, PairPublisher, PairSubscriber

TOPIC: Final = "topicC"
# A subscriber that has not caught up by then never will.
_CATCH_UP_S: Final = 30.0


class Plan(NamedTuple):
    """How fast, and what happens when, in seconds."""

    rate: float
    kill_after_s: float
    then_s: float


async def perform(pair: PairProcesses, plan: Plan, score: FailoverScore, tell: Callable[[str], None]) -> None:
    """The whole play. A plain kill, or a terminal that closes, ends it in order."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await FailoverPlay(pair, plan, score, tell).run()
    except ExceptionGroup as failures:
        # The first thing that went wrong is the cause of the others.
        raise failures.exceptions[0] from failures


class FailoverPlay:
    """One performance."""

    def __init__(self, pair: PairProcesses, plan: Plan, score: FailoverScore, tell: Callable[[str], None]) -> None:
        self._pair = pair
        self._plan = plan
        self._score = score
        self._tell = tell
        self._roles = {address: role for role, address in pair.addresses.items()}
        self._began = 0.0

    async def run(self) -> None:
        from holdfast.client import PairPublisher, PairSubscriber

        addresses = self._pair.addresses.values()
        self._score.states = {"primary": "serves", "backup": "waits"}
        async with (
            PairSubscriber(TOPIC, *addresses, on_change=self._teller("subscriber")) as subscriber,
            PairPublisher(*addresses, on_change=self._teller("publisher")) as publisher,
        ):
            self._tell("publisher and subscriber are connected")
            self._began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(subscriber))
                breaking = group.create_task(self._break_it())
                await self._publish(publisher)
                await breaking
                self._tell(f"{len(self._score.sent):,} messages sent; waiting for the subscriber")
                await self._caught_up()
                reading.cancel()
            self._score.resent, self._score.switches = publisher.counts.resent, publisher.counts.switches
            self._score.recognised = subscriber.duplicates

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    def _teller(self, who: str) -> Callable[[ConnectionChange], None]:
        return lambda change: self._tell(f"{who}: {change}, the {self._roles[change.broker]}")

    async def _publish(self, publisher: PairPublisher) -> None:
        """1, 2, 3, … leave when they are due, whether those before are answered or not."""
        seconds = self._plan.kill_after_s + self._plan.then_s
        async with asyncio.TaskGroup() as group:
            for number in range(1, max(1, round(seconds * self._plan.rate)) + 1):
                await asyncio.sleep(max(0.0, (number - 1) / self._plan.rate - self._now_s()))
                group.create_task(self._publish_one(publisher, number))

    async def _publish_one(self, publisher: PairPublisher, number: int) -> None:
        self._score.sent[number] = self._now_s()
        line = self._score.ledger.send(TOPIC, "publisher", number)
        try:
            await publisher.publish(TOPIC, b"%d" % number)
        except HoldfastError as error:
            # Nobody was promised anything; that it was not taken is part of the verdict.
            self._score.refused += 1
            self._tell(f"message {number} was not acknowledged: {error.message}")
        else:
            self._score.acknowledged.append(number)
            self._score.ledger.acknowledge(line)

    async def _read(self, subscriber: PairSubscriber) -> None:
        async for message in subscriber:
            role = self._roles[message.broker]
            if role == "backup" and self._score.states["backup"] != "serves":
                self._score.states["backup"] = "serves"
                self._tell(f"first message from the backup: {int(message.value)}")
            number = int(message.value)
            self._score.arrivals.append(Arrival(number, self._now_s(), role))
            self._score.ledger.receive(TOPIC, "publisher", number, broker=message.broker, receiver="subscriber")

    async def _break_it(self) -> None:
        await asyncio.sleep(self._plan.kill_after_s)
        pid = self._pair.pid("primary")
        self._score.kill_s = self._now_s()
        await asyncio.to_thread(self._pair.kill, "primary")
        self._score.states["primary"] = "killed"
        self._tell(f"the primary is killed (SIGKILL to process {pid}) after message {len(self._score.sent)}")

    async def _caught_up(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while self._score.judged().lost:
                    await asyncio.sleep(0.05)
