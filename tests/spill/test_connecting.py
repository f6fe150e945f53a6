"""To connect may take longer than a push is given: the way back to the database is found all the same."""

from __future__ import annotations

import asyncio
import socket

import pytest
from asyncpg import Connection
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.postgres.database import Database
from tests.spill.conftest import Open

CONNECT_S = 0.7


async def test_database_is_found_again_though_connecting_takes_longer_than_a_push_may(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url, deadline_ms_min=300, deadline_ms_max=300)
    await store.create_in_store()
    await store.push(b"1")
    server.kill()
    assert (await store.push(b"2"))[0].buffered
    connect = Database._connect

    async def slow(self: Database) -> Connection:
        await asyncio.sleep(CONNECT_S)
        return await connect(self)

    monkeypatch.setattr(Database, "_connect", slow)
    await server.start()
    await store.drained()
    pushed: list[bytes] = []

    async def is_direct() -> bool:
        pushed.append(b"%d" % (3 + len(pushed)))
        return not (await store.push(pushed[-1]))[0].buffered

    # A busy machine may be late with one or another; a writer that is never connected keeps all of them waiting.
    await until(is_direct, "the writer is connected by now")
    await store.drained()
    assert await store.values() == [b"1", b"2", *pushed]


async def test_silent_database_is_said_to_be_silent_for_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """To connect has a limit of its own, shorter than that of everything else."""
    monkeypatch.setattr("holdfast.backends.postgres.database._CONNECT_S_MAX", 0.2)
    # The kernel takes the connection; nobody ever answers on it.
    silent = socket.create_server(("127.0.0.1", 0))
    host, port = silent.getsockname()
    database = Database(f"postgresql://app@{host}:{port}/shop", timeout_s=5.0, application="test")
    began_s = asyncio.get_running_loop().time()
    await database.start()
    waited_s = asyncio.get_running_loop().time() - began_s
    assert database.problem is not None and database.problem.endswith("connect within 0.2 s")
    assert waited_s < 5.0
    await database.stop()
    silent.close()
