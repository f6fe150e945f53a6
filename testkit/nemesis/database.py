"""Brokers over one PostgreSQL, each on a disk of its own, and everything that can be done to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import asyncpg

from holdfast.backends.postgres.database import TROUBLE
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill import files
from holdfast.testing.node_process import NodeProcess
from holdfast.testing.ports import Ports, free_port
from testkit.disks import Disk, DiskKind

# A server makes files of 16 MiB, a few of them at once.
_DATABASE_BYTES: Final = 320 << 20
_SPILL_BYTES: Final = 160 << 20
_CONNECTIONS_MAX: Final = 40
_CONNECT_S: Final = 5.0
_START_S: Final = 60.0
_LONGEST_S: Final = 3.0


class BrokersOverDatabase:
    """What runs, and how to hurt it. Use it with `async with`. Every fault ends with everything as it was."""

    def __init__(self, directory: Path, *, small_disks: bool, brokers: int = 1) -> None:
        self.has_small_disks = small_disks
        self.url = ""
        self.brokers: list[NodeProcess] = []
        self._directory = directory
        self._count = brokers
        self._closing = contextlib.AsyncExitStack()
        self._spill_disks: list[Disk] = []

    async def __aenter__(self) -> BrokersOverDatabase:
        async with self._closing as opening:
            self._database_disk = self._disk(opening, "database", _DATABASE_BYTES)
            # A server that has no room for its journal ends; with a small one there is always some to begin with.
            settings = (f"max_connections={_CONNECTIONS_MAX}", "max_wal_size=64MB", "min_wal_size=32MB")
            place = self._database_disk.place / "postgres"
            self.server = EmbeddedServer(place, *settings, "wal_keep_size=0", comes_back=False)
            self.url = await self.server.start()
            opening.push_async_callback(self.server.stop)
            opening.callback(self.server.kill, signal.SIGCONT)
            for number in range(1, self._count + 1):
                disk = self._disk(opening, f"broker-{number}", _SPILL_BYTES)
                self._spill_disks.append(disk)
                self.brokers.append(self._broker(f"n{number}", disk))
                opening.callback(self.brokers[-1].kill)
                await self._start(self.brokers[-1])
            self._closing = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    def _disk(self, opening: contextlib.AsyncExitStack, name: str, size_bytes: int) -> Disk:
        kind: DiskKind = "small" if self.has_small_disks else "plain"
        return opening.enter_context(contextlib.closing(Disk(self._directory / name, kind, size_bytes)))

    def _broker(self, id: str, disk: Disk) -> NodeProcess:
        """Its log is not on the disk that will be full."""
        made = NodeProcess(id, self._directory, Ports(text=0, http=free_port(), peer=0))
        made.data = disk.place / "data"
        addresses = ("--http", made.http, "--text", made.text)
        made.start_with("serve", "--data", str(made.data), *addresses, "--store", self.url, "--node", id)
        return made

    async def waiting(self) -> int:
        """How many messages the brokers keep that are not stored yet, those in `failed` included."""
        waiting = 0
        for spill in [broker.data / "spill" for broker in self.brokers]:
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
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(dice.uniform(0, 0.3))
        await self._start(broker)

    async def broker_restarted(self, dice: random.Random) -> None:
        broker = dice.choice(self.brokers)
        broker.tell_to_stop()
        code = await asyncio.to_thread(broker.wait_stopped)
        assert code == 0, f"{broker.id} left with {code} when it was told to stop"
        await self._start(broker)

    async def both_killed(self, dice: random.Random) -> None:
        """First the database; the broker dies with what it has taken meanwhile, and comes back without a database."""
        broker = dice.choice(self.brokers)
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0, 2.0))
        await asyncio.to_thread(broker.kill)
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
        await asyncio.to_thread(broker.kill)
        await self._start(broker)

    async def broker_paused(self, dice: random.Random) -> None:
        broker = dice.choice(self.brokers)
        broker.pause()
        await asyncio.sleep(dice.uniform(0, 2.0))
        broker.resume()

    async def spill_full(self, dice: random.Random) -> None:
        """Neither the database nor the broker's own disk takes anything: nothing may be acknowledged."""
        broker = dice.choice(self.brokers)
        disk = self._spill_disks[self.brokers.index(broker)]
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(dice.uniform(0.2, 1.0))
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        await asyncio.to_thread(disk.make_room)
        await asyncio.sleep(dice.uniform(0, 1.0))
        await self.server.start()

    async def _start(self, broker: NodeProcess) -> None:
        # In a thread of the loop's, which lives as long as the loop: a process on a leash ends with the thread.
        await asyncio.to_thread(broker.spawn)
        await asyncio.to_thread(broker.wait_until_serving, time.monotonic() + _START_S)

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
