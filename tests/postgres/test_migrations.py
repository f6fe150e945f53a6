"""The schema: made once, by whoever comes first, and never touched by a broker that does not know it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
from testkit.postgres import database_for

from holdfast.backends.postgres import schema
from holdfast.backends.postgres.queries import Migration, migrations
from holdfast.model.errors import ConfigError
from tests.postgres.stores import open_store, query


async def test_empty_database_gets_the_schema_once_however_many_brokers_come_at_the_same_time(tmp_path: Path) -> None:
    url = database_for(tmp_path, is_empty=True)
    assert not await query(url, "SELECT FROM pg_namespace WHERE nspname = 'holdfast'")
    opened = await asyncio.gather(*(open_store(url, f"n{number}") for number in range(4)))
    assert len({each.backend.store_id for each in opened}) == 1
    await opened[0].create()
    assert [each.offset for each in await opened[0].publish(b"a")] == [0]
    for each in opened:
        await each.backend.stop()
    steps = await query(url, "SELECT version, name FROM holdfast.versions ORDER BY version")
    assert [tuple(step) for step in steps] == [(step.version, step.name) for step in migrations()]


async def test_schema_that_is_there_stays_as_it_is(url: str) -> None:
    before = await query(url, "SELECT * FROM holdfast.versions")
    await (await open_store(url)).backend.stop()
    assert await query(url, "SELECT * FROM holdfast.versions") == before


async def test_step_that_takes_longer_than_any_other_call_may_is_taken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Migration(len(migrations()) + 1, "slow", "SELECT pg_sleep(1)")
    monkeypatch.setattr(schema, "migrations", lambda: (*migrations(), slow))
    opened = await asyncio.gather(*(open_store(url, f"n{number}", timeout_s=0.4) for number in range(2)))
    assert [each.backend.problem() for each in opened] == [None, None], "the one that had to wait, too"
    [limit] = await opened[0].backend.database.fetch("SHOW statement_timeout")
    assert limit[0] == "400ms", "everything else has its limit"
    for each in opened:
        await each.backend.stop()
    assert [row[0] for row in await query(url, "SELECT name FROM holdfast.versions WHERE name = 'slow'")] == ["slow"]


async def test_newer_schema_is_refused_with_what_to_do(url: str) -> None:
    await query(url, "INSERT INTO holdfast.versions (version, name) VALUES (1000, 'later')")
    with pytest.raises(ConfigError, match=r"version 1000.*update this one"):
        await open_store(url)


async def test_missing_database_is_said_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await open_store(url.replace("?", "_missing?"))


async def test_ids_and_messages_of_before_are_known_after_the_later_steps(tmp_path: Path) -> None:
    url = database_for(tmp_path, is_empty=True)
    [first, *_] = migrations()
    await query(url, "CREATE SCHEMA holdfast")
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE holdfast.versions (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz)"
    )
    await connection.execute(first.statements)
    await connection.execute("INSERT INTO holdfast.versions VALUES (1, $1, now())", first.name)
    ids = ["plain", "ü" * 50, "0191e2cd-09aa-70ca-a04c-6567f4442e96", "0191E2CD-09AA-70CA-A04C-6567F4442E96"]
    await connection.execute(
        """
        INSERT INTO holdfast.topics (name, token, partitions, created_ms) VALUES ('t', 'token', 1, 0);
        INSERT INTO holdfast.partitions (topic_id, partition, next_offset) VALUES (1, 0, 4);
        """
    )
    headers = b"\x02\x1ctransaction-id\x04tx"
    for offset, each in enumerate(ids):
        await connection.execute(
            "INSERT INTO holdfast.messages VALUES (1, 0, $1, now(), $2, NULL, $3, $4, 'tx', NULL)",
            offset,
            each,
            b"%d" % offset,
            headers,
        )
        await connection.execute("INSERT INTO holdfast.ids VALUES (1, 0, $1, $2)", each, offset)
    await connection.close()
    store = await open_store(url)
    try:
        found = await store.read()
        assert [(each.id, each.value, each.headers) for each in found] == [
            (each, b"%d" % offset, [("transaction-id", b"tx")]) for offset, each in enumerate(ids)
        ]
        told = await store.publish(*[b"again"] * 5, ids=[*ids, "new"])
        assert [(each.offset, each.duplicate) for each in told] == [
            (0, True),
            (1, True),
            (2, True),
            (3, True),
            (4, False),
        ]
    finally:
        await store.backend.stop()
    shown = await query(url, 'SELECT id FROM holdfast.queue_messages ORDER BY "offset"')
    assert [row["id"] for row in shown] == [*ids, "new"]
