"""What a recovery asks the database beside what brokers do."""

from __future__ import annotations

from holdfast.backends.postgres import recovering
from tests.postgres.stores import query


async def test_ids_of_any_age_are_asked_for_within_the_databases_calendar(url: str) -> None:
    """An id that is there, and was not gathered before, would end the recovery otherwise."""
    counts = "SELECT now() > now() - $1::bigint * interval '1 millisecond' AS counts"
    assert [row["counts"] for row in await query(url, counts, recovering._ANY_AGE_MS)] == [True]
