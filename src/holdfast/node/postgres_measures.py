"""What a broker measures of a PostgreSQL that it stores in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.model.metrics import Metric, metric

if TYPE_CHECKING:
    from holdfast.backends.postgres.backend import PostgresBackend


def measured(backend: PostgresBackend) -> Iterator[Metric]:
    database, writer, reading = backend.database, backend.writer, backend.reading
    yield metric("gauge", "store_up", "1 while the database is there.", int(database.is_up))
    yield metric("counter", "store_outages_total", "How often the database went away.", database.outages)
    yield metric("counter", "store_transactions_total", "Transactions that stored messages.", writer.transactions)
    yield metric("counter", "store_transaction_seconds_total", "Seconds those transactions took.", writer.seconds)
    yield metric("counter", "store_messages_total", "Messages that this broker stored.", writer.stored_messages)
    yield metric("counter", "store_duplicates_total", "Messages that the database had already.", writer.duplicates)
    yield metric(
        "counter", "store_unknown_commits_total", "Commits of which nobody knows what became.", writer.unknown_commits
    )
    yield metric("gauge", "store_waiting_bytes", "Bytes that wait to be stored.", writer.waiting_bytes)
    yield metric("counter", "store_reads_total", "Questions to the database for messages and ends.", reading.queries)
    yield metric("counter", "store_tail_reads_total", "Reads answered from memory.", reading.tails.hits)
    yield metric("gauge", "store_tail_bytes", "Bytes of newest messages kept in memory.", reading.tails.bytes)
    yield metric("counter", "store_notices_total", "Notices received.", backend.notices.received)
    staleness_s = backend.notices.staleness_ms / 1000
    yield metric("gauge", "store_staleness_seconds", "Since it last heard everything.", staleness_s)
    yield metric(
        "counter", "store_expired_messages_total", "Messages retention deleted.", backend.retention.deleted_messages
    )
