"""The play: a publisher, two readers, and a broker that is killed while all of them work.

The live reader stays connected from the first message to the last. The durable one leaves before the kill
and comes back after it; the broker has kept its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.process import BrokerProcess
from holdfast.cli.demo.tally import Verdict, judge

if TYPE_CHECKING:
    from holdfast.client import Client

TOPIC: Final = "demo"
DURABLE_NAME: Final = "auditor"
# Shares of the whole time: when the durable reader leaves, and when the broker is killed.
_LEAVES_AT: Final = 0.3
_KILLED_AT: Final = 0.4
_DOWN_S: Final = 1.0
# Readers that have not caught up by then never will.
_CATCH_UP_S: Final = 30.0
_CLIENT_TIMEOUT_S: Final = 60.0


@dataclass
class Score:
    """What happened so far; the view looks at it while the play goes on."""

    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    durable: list[int] = field(default_factory=list)
    broker: str = "starting"
    ledger: Ledger = field(default_factory=Ledger)

    def verdicts(self) -> dict[str, Verdict]:
        return {
            "live": judge(self.acknowledged, self.live),
            f"durable ({DURABLE_NAME})": judge(self.acknowledged, self.durable),
        }

    @property
    def lost(self) -> int:
        return sum(verdict.lost for verdict in self.verdicts().values())


async def perform(
    process: BrokerProcess, seconds: float, rate: float, score: Score, tell: Callable[[str], None]
) -> None:
    """The whole play. A terminal that closes, or a plain kill, must not leave a broker behind either."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await Play(process, seconds, rate, score, tell).run()
    except ExceptionGroup as failures:
        # The first thing that went wrong is the cause of the others.
        raise failures.exceptions[0] from failures


class Play:
    """One performance."""

    def __init__(
        self, process: BrokerProcess, seconds: float, rate: float, score: Score, tell: Callable[[str], None]
    ) -> None:
        self._process = process
        self._seconds = seconds
        self._rate = rate
        self._score = score
        self._tell = tell
        self._come_back = asyncio.Event()

    async def run(self) -> None:
        started_s = await asyncio.to_thread(self._process.start)
        self._score.broker = "serves"
        self._tell(f"broker started on {self._process.address} in {started_s:.1f} s (process {self._process.pid})")
        try:
            async with contextlib.AsyncExitStack() as stack:
                publisher, live, durable = [await stack.enter_async_context(self._client()) for _ in range(3)]
                await publisher.create_topic(TOPIC)
                await self._act(publisher, live, durable)
        finally:
            await asyncio.to_thread(self._process.stop)
            self._score.broker = "stopped"

    def _client(self) -> Client:
        from holdfast.client import connect

        return connect(self._process.address, timeout_s=_CLIENT_TIMEOUT_S)

    async def _act(self, publisher: Client, live: Client, durable: Client) -> None:
        async with asyncio.TaskGroup() as group:
            listening = asyncio.Event()
            readers = [
                group.create_task(self._listen(live, listening)),
                group.create_task(self._audit(durable)),
            ]
            await listening.wait()
            group.create_task(self._break_it())
            await self._publish(publisher)
            self._tell(f"{self._score.sent} messages sent; waiting for the readers")
            await self._caught_up()
            for reader in readers:
                reader.cancel()

    async def _publish(self, client: Client) -> None:
        """1, 2, 3, … at the rate; a number is acknowledged when its publish returns."""
        started = time.monotonic()
        for number in range(1, max(1, round(self._seconds * self._rate)) + 1):
            await asyncio.sleep(max(0.0, started + number / self._rate - time.monotonic()))
            self._score.sent = number
            line = self._score.ledger.send(TOPIC, "publisher", number)
            await client.publish(TOPIC, b"%d" % number)
            self._score.acknowledged.append(number)
            self._score.ledger.acknowledge(line)

    async def _listen(self, client: Client, listening: asyncio.Event) -> None:
        async with client.subscribe(TOPIC, start="latest") as messages:
            listening.set()
            async for message in messages:
                self._take(self._score.live, int(message.value), "live")

    async def _audit(self, client: Client) -> None:
        """Read under a name in two sittings, with the death of the broker between them."""
        leaves = asyncio.get_running_loop().time() + _LEAVES_AT * self._seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(leaves):
                await self._read_durably(client)
        self._tell(f"the durable reader leaves after message {self._score.durable[-1] if self._score.durable else 0}")
        await self._come_back.wait()
        before = len(self._score.durable)
        self._tell("the durable reader comes back under its name")
        reading = asyncio.ensure_future(self._read_durably(client))
        try:
            while len(self._score.durable) == before:
                await asyncio.sleep(0.02)
            self._tell(f"the durable reader goes on with message {self._score.durable[before]}")
            await reading
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read_durably(self, client: Client) -> None:
        async with client.subscribe(TOPIC, DURABLE_NAME, start="earliest") as messages:
            async for message in messages:
                self._take(self._score.durable, int(message.value), DURABLE_NAME)
                await message.ack()

    def _take(self, taken: list[int], number: int, reader: str) -> None:
        taken.append(number)
        self._score.ledger.receive(TOPIC, "publisher", number, broker=self._process.address, receiver=reader)

    async def _break_it(self) -> None:
        await asyncio.sleep(_KILLED_AT * self._seconds)
        pid = self._process.pid
        await asyncio.to_thread(self._process.kill)
        self._score.broker = "dead"
        self._tell(f"broker killed (SIGKILL to process {pid}) after message {self._score.sent}")
        await asyncio.sleep(_DOWN_S)
        started_s = await asyncio.to_thread(self._process.start)
        self._score.broker = "serves again"
        self._tell(f"broker restarted in {started_s:.1f} s (process {self._process.pid})")
        self._come_back.set()

    async def _caught_up(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while self._score.lost:
                    await asyncio.sleep(0.05)
