"""The schema: made once, by whoever comes first, and never touched by a broker that does not know it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.backends.postgres.queries import migrations
from holdfast.model.errors import ConfigError
from tests.postgres.stores import open_store, query
from tests.support.postgres import database_for


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


async def test_newer_schema_is_refused_with_what_to_do(url: str) -> None:
    await query(url, "INSERT INTO holdfast.versions (version, name) VALUES (1000, 'later')")
    with pytest.raises(ConfigError, match=r"version 1000.*update this one"):
        await open_store(url)


async def test_missing_database_is_said_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await open_store(url.replace("?", "_missing?"))
