"""To connect may take longer than a push is given: the way back to the database is found all the same."""

from __future__ import annotations

import asyncio

import pytest
from asyncpg import Connection

from holdfast.backends.postgres.database import Database
from tests.spill.conftest import Open
from tests.support.postgres import Server

CONNECT_S = 0.7


async def test_database_is_found_again_though_connecting_takes_longer_than_a_push_may(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url, deadline_ms_min=300, deadline_ms_max=300)
    await store.create()
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
    assert not (await store.push(b"3"))[0].buffered, "the writer is connected by now"
    assert await store.values() == [b"1", b"2", b"3"]
