"""Brokers over one PostgreSQL, each on a disk of its own, and everything that can be done to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import asyncpg
from testkit.disks import Disk, DiskKind

from holdfast.backends.postgres.database import TROUBLE
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill import files
from holdfast.cli.demo.process import BrokerProcess

# A server makes files of 16 MiB, a few of them at once.
_DATABASE_BYTES: Final = 320 << 20
_SPILL_BYTES: Final = 160 << 20
_CONNECTIONS_MAX: Final = 40
_CONNECT_S: Final = 5.0
_LONGEST_S: Final = 3.0


class Scene:
    """What runs, and how to hurt it. Every fault ends with everything as it was."""

    def __init__(self, directory: Path, *, small_disks: bool, brokers: int = 1) -> None:
        kind: DiskKind = "small" if small_disks else "plain"
        self._database_disk = Disk(directory / "database", kind, _DATABASE_BYTES)
        self._broker_disks = [Disk(directory / f"broker-{number}", kind, _SPILL_BYTES) for number in range(brokers)]
        self.has_small_disks = small_disks
        # A server that has no room for its journal ends; with a small one there is always some to begin with.
        settings = (f"max_connections={_CONNECTIONS_MAX}", "max_wal_size=64MB", "min_wal_size=32MB", "wal_keep_size=0")
        self.server = EmbeddedServer(self._database_disk.place / "postgres", *settings, comes_back=False)
        self.url = ""
        self.brokers: list[BrokerProcess] = []
        # Brokers that are away, or have no room: nobody promised answers of those.
        self.unwell: set[BrokerProcess] = set()

    async def start(self) -> None:
        self.url = await self.server.start()
        for number, disk in enumerate(self._broker_disks, 1):
            self.brokers.append(BrokerProcess(disk.place, "--store", self.url, "--node", f"n{number}"))
            await asyncio.to_thread(self.brokers[-1].start)

    async def close(self) -> None:
        for broker in self.brokers:
            await asyncio.to_thread(broker.kill)
        self.server.kill(signal.SIGCONT)
        await self.server.stop()
        for disk in (*self._broker_disks, self._database_disk):
            await asyncio.to_thread(disk.close)

    async def waiting(self) -> int:
        """How many messages the brokers keep that are not stored yet, those in `failed` included."""
        spills = [broker.data / "spill" for broker in self.brokers]
        waiting = 0
        for spill in spills:
            with contextlib.suppress(FileNotFoundError):  # a file was stored and deleted
                waiting += await asyncio.to_thread(files.count_waiting, spill)
                waiting += await asyncio.to_thread(files.count_failed, spill)
                continue
            waiting += 1
        return waiting

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.url, timeout=_CONNECT_S)
        try:
            yield connection
        finally:
            connection.terminate()

    # --- the database ---------------------------------------------------------------------------------

    async def database_killed(self, dice: random.Random) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0, _LONGEST_S))
        await self.server.start()

    async def database_paused(self, dice: random.Random) -> None:
        self.server.kill(signal.SIGSTOP)
        await asyncio.sleep(dice.uniform(0, _LONGEST_S))
        self.server.kill(signal.SIGCONT)

    async def database_restarted(self, dice: random.Random) -> None:
        await self.server.stop()
        await asyncio.sleep(dice.uniform(0, 0.5))
        await self.server.start()

    async def database_full(self, dice: random.Random) -> None:
        await asyncio.to_thread(self._database_disk.fill)
        await asyncio.sleep(dice.uniform(0.5, _LONGEST_S))
        await asyncio.to_thread(self._database_disk.make_room)
        # One that could not write its journal has ended by itself.
        with contextlib.suppress(*TROUBLE):
            async with self.session():
                return
        await self.server.stop()
        await self.server.start()

    async def database_read_only(self, dice: random.Random) -> None:
        await self._set_read_only("on")
        await asyncio.sleep(dice.uniform(0.2, _LONGEST_S))
        await self._set_read_only("off")

    async def _set_read_only(self, value: str) -> None:
        async with self.session() as session:
            await session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            await session.execute("SELECT pg_reload_conf()")

    async def database_has_no_connection_left(self, dice: random.Random) -> None:
        """All are taken, and those of the broker are ended, so that it has to ask for new ones."""
        taken: list[asyncpg.Connection] = []
        try:
            with contextlib.suppress(asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError):
                while True:
                    taken.append(await asyncpg.connect(self.url, timeout=_CONNECT_S))
                    if len(taken) == _CONNECTIONS_MAX // 2:
                        await taken[0].execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE application_name LIKE 'holdfast%' AND pid <> pg_backend_pid()"
                        )
            await asyncio.sleep(dice.uniform(0.2, _LONGEST_S))
        finally:
            for connection in taken:
                connection.terminate()

    async def database_slow(self, dice: random.Random) -> None:
        """Nobody else may write a message meanwhile."""
        async with self.session() as session, session.transaction():
            await session.execute("LOCK TABLE holdfast.messages IN EXCLUSIVE MODE")
            await asyncio.sleep(dice.uniform(0.2, _LONGEST_S))

    # --- one of the brokers ---------------------------------------------------------------------------

    async def broker_killed(self, dice: random.Random) -> None:
        broker = dice.choice(self.brokers)
        await self._kill(broker)
        await asyncio.sleep(dice.uniform(0, 0.3))
        await self._start(broker)

    async def broker_restarted(self, dice: random.Random) -> None:
        broker = dice.choice(self.brokers)
        self.unwell.add(broker)
        await asyncio.to_thread(broker.stop)
        await self._start(broker)

    async def both_killed(self, dice: random.Random) -> None:
        """First the database; the broker dies with what it has taken meanwhile, and comes back without a database."""
        broker = dice.choice(self.brokers)
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0, 2.0))
        await self._kill(broker)
        if dice.random() < 0.7:
            await self._start(broker)
            await asyncio.sleep(dice.uniform(0, 1.5))
            await self.server.start()
        else:
            await self.server.start()
            await self._start(broker)

    async def broker_killed_in_replay(self, dice: random.Random) -> None:
        """What was taken while the database was away is being written when the broker dies."""
        broker = dice.choice(self.brokers)
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0.5, 2.0))
        await self.server.start()
        await asyncio.sleep(dice.uniform(0, 0.4))
        await self._kill(broker)
        await self._start(broker)

    async def broker_paused(self, dice: random.Random) -> None:
        broker = dice.choice(self.brokers)
        self.unwell.add(broker)
        os.kill(broker.pid, signal.SIGSTOP)
        await asyncio.sleep(dice.uniform(0, 2.0))
        os.kill(broker.pid, signal.SIGCONT)
        self.unwell.remove(broker)

    async def spill_full(self, dice: random.Random) -> None:
        """Neither the database nor the broker's own disk takes anything: nothing may be acknowledged."""
        broker = dice.choice(self.brokers)
        disk = self._broker_disks[self.brokers.index(broker)]
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0.2, 1.0))
        self.unwell.add(broker)
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        await asyncio.to_thread(disk.make_room)
        self.unwell.remove(broker)
        await asyncio.sleep(dice.uniform(0, 1.0))
        await self.server.start()

    async def _kill(self, broker: BrokerProcess) -> None:
        self.unwell.add(broker)
        await asyncio.to_thread(broker.kill)

    async def _start(self, broker: BrokerProcess) -> None:
        await asyncio.to_thread(broker.start)
        self.unwell.remove(broker)

    # --- all of it ------------------------------------------------------------------------------------

    def faults(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        anywhere: list[Callable[[random.Random], Awaitable[None]]] = [
            self.database_killed,
            self.database_paused,
            self.database_restarted,
            self.database_read_only,
            self.database_has_no_connection_left,
            self.database_slow,
            self.broker_killed,
            self.broker_restarted,
            self.broker_paused,
            self.both_killed,
            self.broker_killed_in_replay,
        ]
        return [*anywhere, self.database_full, self.spill_full] if self.has_small_disks else anywhere
