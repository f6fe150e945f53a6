"""No statement on the way of a message reads a whole table, also where the planner knows nothing of it yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.backends.postgres import rows
from holdfast.backends.postgres.queries import sql
from tests.postgres.conftest import Open
from tests.postgres.stores import query

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
STATEMENTS: dict[str, tuple[object, ...]] = {
    "known_ids": ([1], [0], ["\n".join(rows.id_key(each) for each in "123")], 600_000),
    "read": (1, 0, 100, 200, 10_000),
    "offset_at": (1, 0, LONG_AGO),
    "expired_by_age": (1, 0, 0, LONG_AGO, 1000),
    "expired_by_size": (1, 0, 0, 1000, 1000),
    "expire": (1, 0, 0, 1000),
    "sweep_messages": (1, 1000, 10_000),
    "sweep_ids": (1, 1000),
    "swept": (1,),
    "prune_ids": (600_000, 1000),
}


async def test_statements_go_through_an_index(opened: Open, url: str) -> None:
    store = await opened()
    await store.create(partitions=3)
    for start in range(0, 6000, 1000):
        ids = [str(number) for number in range(start, start + 1000)]
        await store.publish(*[b"x" * 100] * 1000, ids=ids)
    for name, values in STATEMENTS.items():
        plan = "\n".join(row[0] for row in await query(url, f"EXPLAIN {sql(name)}", *values))
        assert "Index" in plan, f"{name}: {plan}"
        for table in ("messages", "id_keys"):
            assert f"Seq Scan on {table}" not in plan, f"{name}: {plan}"


async def test_ids_that_are_too_old_are_found_without_reading_the_others(opened: Open, url: str) -> None:
    await opened()
    fill = (
        "INSERT INTO holdfast.id_keys SELECT 1, 0, md5($1 || i)::uuid, i, now() - $2::interval "
        "FROM generate_series(1, 20000) AS i"
    )
    await query(url, fill, "old ", timedelta(days=1))
    await query(url, "DELETE FROM holdfast.id_keys")
    await query(url, "VACUUM (TRUNCATE off) holdfast.id_keys")
    # In the pages of those that were there before.
    await query(url, fill, "new ", timedelta(0))
    explained = await query(url, f"EXPLAIN (ANALYZE, TIMING off) {sql('prune_ids')}", 600_000, 10_000)
    plan = "\n".join(row[0] for row in explained)
    assert "Removed" not in plan and "Seq Scan" not in plan, plan
