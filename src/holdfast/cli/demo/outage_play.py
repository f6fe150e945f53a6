"""The play with a database: customers push, the database is killed, then the broker, too, and both come back.

Each customer sends its next message when the one before is acknowledged, so what it sent has an order. While the broker
is dead its client tries again, with the ids the messages have; nobody else notices anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.cli.demo.outage_score import Answer, Mark, OutageScore
from holdfast.cli.demo.process import BrokerProcess
from holdfast.model.errors import HoldfastError
from holdfast.node.extras import needs_postgres

if TYPE_CHECKING:
    import asyncpg

    from holdfast.backends.postgres.server import EmbeddedServer
    from holdfast.cli.demo.view import View
    from holdfast.client import Client

QUEUE: Final = "orders"
CUSTOMERS: Final = 4
# What is not in the database by then never will be.
_REPLAY_S: Final = 60.0
_CLIENT_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.1


class Plan(NamedTuple):
    """How fast, for how long, and when what is lost and comes back, in seconds from the first message."""

    rate: float
    seconds: float
    database_lost_s: float
    broker_lost_s: float
    broker_back_s: float
    database_back_s: float

    @classmethod
    def over(cls, seconds: float, rate: float) -> Plan:
        """The database is away for half of the time, and the broker for a moment in the middle of that."""
        return cls(rate, seconds, *(share * seconds for share in (0.25, 0.45, 0.5, 0.75)))


async def perform_in(directory: Path, plan: Plan, score: OutageScore, view: View) -> None:
    """The whole play, with a database and a broker of its own. A plain kill, or a terminal that closes, ends both."""
    with needs_postgres():
        from holdfast.backends.postgres.server import EmbeddedServer

        server = EmbeddedServer(directory / "postgres", comes_back=False)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        url = await server.start()
        broker = BrokerProcess(directory / "broker", "--store", url)
        try:
            await OutagePlay(broker, server, url, plan, score, view).run()
        except ExceptionGroup as failures:
            # The first thing that went wrong is the cause of the others.
            raise failures.exceptions[0] from failures
        finally:
            await asyncio.to_thread(broker.kill)
    finally:
        await server.stop()


class OutagePlay:
    """One performance."""

    def __init__(
        self,
        broker: BrokerProcess,
        server: EmbeddedServer,
        url: str,
        plan: Plan,
        score: OutageScore,
        view: View,
    ) -> None:
        self._broker = broker
        self._server = server
        self._url = url
        self._plan = plan
        self._score = score
        self._view = view
        self._tell = view.tell

    async def run(self) -> None:
        from holdfast.client import connect

        self._score.states["database"] = "serves"
        self._tell(f"PostgreSQL serves (process {self._server.pid})")
        started_s = await asyncio.to_thread(self._broker.start)
        self._score.states["broker"] = "serves"
        self._tell(f"broker started on {self._broker.address} in {started_s:.1f} s (process {self._broker.pid})")
        try:
            async with connect(self._broker.address, timeout_s=_CLIENT_TIMEOUT_S) as client:
                await client.create_topic(QUEUE)
                self._view.begin()
                self._tell("the first message is sent: time counts from here, here and in the picture")
                async with asyncio.TaskGroup() as group:
                    looking = group.create_task(self._look())
                    breaking = group.create_task(self._break_it())
                    await self._push(client)
                    await breaking
                    self._tell(f"{self._score.sent:,} messages sent; waiting until all are in the database")
                    await self._replayed()
                    looking.cancel()
            self._score.stored = await self._stored()
        finally:
            await asyncio.to_thread(self._broker.stop)

    def _now_s(self) -> float:
        return self._view.seconds

    # --- customers ----------------------------------------------------------------------------------

    async def _push(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for customer in range(1, CUSTOMERS + 1):
                group.create_task(self._push_of(client, customer))

    async def _push_of(self, client: Client, customer: int) -> None:
        number, pause_s = 0, CUSTOMERS / self._plan.rate
        due_s = pause_s * customer / CUSTOMERS
        while due_s < self._plan.seconds:
            await asyncio.sleep(due_s - self._now_s())
            number += 1
            await self._push_one(client, customer, number)
            # Whoever was held up sends the next one at once, and goes on at the rate.
            due_s = max(due_s + pause_s, self._now_s())

    async def _push_one(self, client: Client, customer: int, number: int) -> None:
        sent_s = self._now_s()
        self._score.sent += 1
        line = self._score.ledger.send(QUEUE, customer, number)
        value = b'{"customer":%d,"number":%d}' % (customer, number)
        try:
            published = await client.publish(QUEUE, value, key=f"customer-{customer}", id=f"{customer}-{number}")
        except HoldfastError as error:
            # Nobody was promised anything; that it was not taken is part of the verdict.
            self._score.refused += 1
            self._tell(f"message {number} of customer {customer} was not acknowledged: {error.message}")
        else:
            self._score.answers.append(Answer(customer, number, sent_s, self._now_s(), published.buffered))
            self._score.ledger.acknowledge(line)

    # --- what is done to them -----------------------------------------------------------------------

    async def _break_it(self) -> None:
        plan = self._plan
        await self.happens_at(plan.database_lost_s, "database killed", self._kill_database(), is_loss=True)
        await self.happens_at(plan.broker_lost_s, "broker killed", self._kill_broker(), is_loss=True)
        await self.happens_at(plan.broker_back_s, "broker back", self._start_broker())
        await self.happens_at(plan.database_back_s, "database back", self._start_database())

    async def happens_at(
        self, due_s: float, label: str, act: Coroutine[Any, Any, str], *, is_loss: bool = False
    ) -> None:
        """One moment for the picture and for the words: a loss is there when it begins, a return when it is done."""
        await asyncio.sleep(due_s - self._now_s())
        began_s = self._now_s()
        words = await act
        mark = Mark(began_s if is_loss else self._now_s(), label, is_loss)
        self._score.marks.append(mark)
        self._tell(words, mark.at_s)

    async def _kill_database(self) -> str:
        pid, sent = self._server.pid, self._score.sent
        await asyncio.to_thread(self._server.kill)
        self._score.states["database"] = "killed"
        return f"PostgreSQL is killed (SIGKILL to process {pid} and its sessions) after {sent} messages"

    async def _kill_broker(self) -> str:
        pid, buffered = self._broker.pid, self._score.buffered
        await asyncio.to_thread(self._broker.kill)
        self._score.states["broker"] = "killed"
        return f"the broker is killed, too (SIGKILL to process {pid}), with {buffered:,} buffered messages"

    async def _start_broker(self) -> str:
        started_s = await asyncio.to_thread(self._broker.start)
        self._score.states["broker"] = "serves again"
        return f"the broker is back after {started_s:.1f} s, without a database"

    async def _start_database(self) -> str:
        await self._server.start()
        self._score.states["database"] = "serves again"
        return f"PostgreSQL is back (process {self._server.pid})"

    # --- looking ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Count the rows, as somebody with `psql` would."""
        from holdfast.backends.postgres.database import TROUBLE

        while True:
            with contextlib.suppress(*TROUBLE):
                # It is away, or has just come back; the next look may find it.
                self._score.rows = await self._counted()
            await asyncio.sleep(_LOOK_S)

    async def _counted(self) -> int:
        async with _connected(self._url) as database:
            return int(await database.fetchval("SELECT count(*) FROM holdfast.queue_messages WHERE queue = $1", QUEUE))

    async def _replayed(self) -> None:
        back_s = next((mark.at_s for mark in self._score.marks if mark.label == "database back"), None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPLAY_S):
                while self._score.rows < len(self._score.answers):
                    await asyncio.sleep(_LOOK_S / 2)
            if back_s is not None:
                self._score.replayed_s = self._now_s() - back_s

    async def _stored(self) -> dict[int, list[int]]:
        """The numbers of each customer in the order of their rows."""
        stored: dict[int, list[int]] = {}
        async with _connected(self._url) as database:
            rows = await database.fetch(
                """SELECT (payload::jsonb ->> 'customer')::int AS customer,
                (payload::jsonb ->> 'number')::int AS number,
                (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
                FROM holdfast.queue_messages WHERE queue = $1 ORDER BY partition, "offset" """,
                QUEUE,
            )
        for row in rows:
            stored.setdefault(row["customer"], []).append(row["number"])
            self._score.ledger.receive(
                QUEUE,
                row["customer"],
                row["number"],
                broker=self._broker.address,
                receiver="database",
                time_ms=row["created_ms"],
            )
        return stored


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    import asyncpg

    database = await asyncpg.connect(url, timeout=2.0)
    try:
        yield database
        await database.close()
    finally:
        # A session that broke in the middle of a query cannot be closed in order.
        database.terminate()
