"""A broker over a PostgreSQL, each on a disk of its own, and everything that can be done to them."""

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

from chaos.disks import Disk, DiskKind
from holdfast.backends.postgres.database import TROUBLE
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.cli.demo.process import BrokerProcess

# A server makes files of 16 MiB, a few of them at once.
_DATABASE_BYTES: Final = 320 << 20
_SPILL_BYTES: Final = 160 << 20
_CONNECTIONS_MAX: Final = 40
_CONNECT_S: Final = 5.0
_LONGEST_S: Final = 3.0


class Scene:
    """What runs, and how to hurt it. Every fault ends with everything as it was."""

    def __init__(self, directory: Path, *, small_disks: bool) -> None:
        kind: DiskKind = "small" if small_disks else "plain"
        self._database_disk = Disk(directory / "database", kind, _DATABASE_BYTES)
        self._broker_disk = Disk(directory / "broker", kind, _SPILL_BYTES)
        self.has_small_disks = small_disks
        # A server that has no room for its journal ends; with a small one there is always some to begin with.
        settings = (f"max_connections={_CONNECTIONS_MAX}", "max_wal_size=64MB", "min_wal_size=32MB", "wal_keep_size=0")
        self.server = EmbeddedServer(self._database_disk.place / "postgres", *settings, comes_back=False)
        self.url = ""
        self.broker: BrokerProcess
        # When the broker was away, or had no room: nobody promised answers then.
        self.is_broker_well = True

    async def start(self) -> None:
        self.url = await self.server.start()
        self.broker = BrokerProcess(self._broker_disk.place, "--store", self.url)
        await asyncio.to_thread(self.broker.start)

    async def close(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never started
            await asyncio.to_thread(self.broker.kill)
        self.server.kill(signal.SIGCONT)
        await self.server.stop()
        await asyncio.to_thread(self._broker_disk.close)
        await asyncio.to_thread(self._database_disk.close)

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

    # --- the broker -----------------------------------------------------------------------------------

    async def broker_killed(self, dice: random.Random) -> None:
        await self._kill_broker()
        await asyncio.sleep(dice.uniform(0, 0.3))
        await self._start_broker()

    async def broker_restarted(self, dice: random.Random) -> None:
        self.is_broker_well = False
        await asyncio.to_thread(self.broker.stop)
        await self._start_broker()

    async def both_killed(self, dice: random.Random) -> None:
        """First the database; the broker dies with what it has taken meanwhile, and comes back without a database."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0, 2.0))
        await self._kill_broker()
        if dice.random() < 0.7:
            await self._start_broker()
            await asyncio.sleep(dice.uniform(0, 1.5))
            await self.server.start()
        else:
            await self.server.start()
            await self._start_broker()

    async def broker_killed_in_replay(self, dice: random.Random) -> None:
        """What was taken while the database was away is being written when the broker dies."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0.5, 2.0))
        await self.server.start()
        await asyncio.sleep(dice.uniform(0, 0.4))
        await self._kill_broker()
        await self._start_broker()

    async def broker_paused(self, dice: random.Random) -> None:
        self.is_broker_well = False
        os.kill(self.broker.pid, signal.SIGSTOP)
        await asyncio.sleep(dice.uniform(0, 2.0))
        os.kill(self.broker.pid, signal.SIGCONT)
        self.is_broker_well = True

    async def spill_full(self, dice: random.Random) -> None:
        """Neither the database nor the broker's own disk takes anything: nothing may be acknowledged."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0.2, 1.0))
        self.is_broker_well = False
        await asyncio.to_thread(self._broker_disk.fill)
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        await asyncio.to_thread(self._broker_disk.make_room)
        self.is_broker_well = True
        await asyncio.sleep(dice.uniform(0, 1.0))
        await self.server.start()

    async def _kill_broker(self) -> None:
        self.is_broker_well = False
        await asyncio.to_thread(self.broker.kill)

    async def _start_broker(self) -> None:
        await asyncio.to_thread(self.broker.start)
        self.is_broker_well = True

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
