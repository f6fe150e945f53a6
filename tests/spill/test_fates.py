"""Transactions that end later than anybody listens: what is stored once they have ended is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.postgres import transaction, writing
from holdfast.backends.postgres.planning import Write
from holdfast.backends.postgres.replaying import Replaying
from holdfast.backends.postgres.writing import Writer
from tests.spill.conftest import Open
from tests.spill.test_replay import SilentCommit


class LateCommit:
    """A connection that is cut when a commit is sent; the database comes to that commit a while later."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.commit: asyncio.Task[str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, statement: str, *values: object) -> str:
        if statement != "COMMIT":
            told: str = await self._connection.execute(statement, *values)
            return told
        self.commit = asyncio.create_task(self._commit())
        raise ConnectionResetError("it is cut")

    async def _commit(self) -> str:
        await asyncio.sleep(0.7)
        told: str = await self._connection.execute("COMMIT")
        return told


async def test_first_step_of_a_file_that_is_committed_late_is_not_stored_again(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"1", b"2", b"3")
    cut: list[LateCommit] = []
    connected = Replaying._connected

    async def late(self: Replaying) -> Any:
        connection = await connected(self)
        if cut and cut[0].commit is not None:
            return connection
        cut[:] = [LateCommit(connection)]
        return cut[0]

    let_go = Replaying._let_go

    def leave_open(self: Replaying) -> None:
        if cut and self._connection is cut[0]._connection:
            self._connection = None  # the database has yet to read what was sent
        let_go(self)

    monkeypatch.setattr(Replaying, "_connected", late)
    monkeypatch.setattr(Replaying, "_let_go", leave_open)
    await server.start()
    await until(lambda: bool(cut) and cut[0].commit is not None)
    assert cut[0].commit is not None
    assert await cut[0].commit == "COMMIT"
    await store.drained()
    await store.push(b"4")
    assert await store.values() == [b"1", b"2", b"3", b"4"]
    await cut[0].close()


async def test_writes_that_were_not_tried_yet_are_not_taken_for_those_of_the_transaction_under_way(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not take one of several, so they are stored one by one; it falls silent at the first."""
    store = await opened(deadline_ms_min=400, deadline_ms_max=400)
    await store.create_in_store()
    prepare, connected = transaction.prepare, Writer._connected

    async def picky(connection: Any, writes: Sequence[Write], *more: Any) -> Any:
        if len(writes) > 1:
            raise asyncpg.DataError("one of them is wrong")
        return await prepare(connection, writes, *more)

    async def silent(self: Writer) -> Any:
        return SilentCommit(await connected(self), is_sent=True)

    with monkeypatch.context() as patched:
        patched.setattr(writing, "prepare", picky)
        patched.setattr(Writer, "_connected", silent)
        pushed = await asyncio.gather(store.push(b"1"), store.push(b"2"), store.push(b"3"))
        assert all(each.buffered for part in pushed for each in part)
    await store.drained()
    assert await store.values() == [b"1", b"2", b"3"]
    assert store.spill.stats.unknown_fates == 1
