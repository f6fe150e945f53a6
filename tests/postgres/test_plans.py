"""No statement on the way of a message reads a whole table, also where the planner knows nothing of it yet."""

from __future__ import annotations

from datetime import UTC, datetime

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
    "sweep_messages": (1, 1000),
    "sweep_ids": (1, 1000),
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
