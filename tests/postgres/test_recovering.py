"""What a recovery asks the database beside what brokers do."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from holdfast.backends.postgres import recovering
from holdfast.backends.postgres.recovering import RecoveryDatabase
from tests.postgres.stores import query


async def test_ids_of_any_age_are_asked_for_within_the_databases_calendar(url: str) -> None:
    """An id that is there, and was not gathered before, would end the recovery otherwise."""
    counts = "SELECT now() > now() - $1::bigint * interval '1 millisecond' AS counts"
    assert [row["counts"] for row in await query(url, counts, recovering._ANY_AGE_MS)] == [True]


async def test_task_that_falls_silent_does_not_keep_live_brokers_waiting_for_a_minute(url: str) -> None:
    """The database itself ends its transaction, with the lock on the partition's row."""

    def fall_silent() -> float:
        driver = RecoveryDatabase(url, "driver")
        driver.prepare_schema()
        task = RecoveryDatabase(url, "task", timeout_s=0.2)
        task.reached(uuid4(), "orders", 0, 1)
        lock = "BEGIN; SELECT * FROM holdfast.partitions FOR UPDATE"
        assert task._connection is not None
        task._loop.run_until_complete(task._connection.execute(lock))
        began_s = time.monotonic()
        driver._run(lambda connection: connection.fetch("SELECT * FROM holdfast.partitions FOR UPDATE"))
        took_s = time.monotonic() - began_s
        task._let_go()
        task.close()
        driver.close()
        return took_s

    assert await asyncio.to_thread(fall_silent) < 3
    assert recovering.STEP_S <= 5


async def test_database_that_is_slow_is_given_more_time(url: str) -> None:
    def ask() -> float:
        task = RecoveryDatabase(url, "task", timeout_s=0.1)
        task._run(lambda connection: connection.fetchval("SELECT pg_sleep(0.3)"))
        task.close()
        return task._database.timeout_s

    assert await asyncio.to_thread(ask) >= 0.3
