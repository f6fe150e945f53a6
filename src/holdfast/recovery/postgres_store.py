"""A PostgreSQL that recoveries are stored in: what the driver asks of it, and what each task does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from holdfast.backends.postgres.recovering import STEP_S, RecoveryDatabase
from holdfast.backends.postgres.rows import id_key
from holdfast.backends.spill import batches
from holdfast.recovery.backlog import Backlog
from holdfast.recovery.steps import Events, Overtaken, Stream

_BATCH_MESSAGES_MAX: Final = 10_000


class PostgresLedger:
    """Knows how far recoveries are (`backlog.Ledger`)."""

    def __init__(self, url: str) -> None:
        self._database = RecoveryDatabase(url, "holdfast-recover")
        self.store_id = self._database.prepare_schema()

    def topics(self) -> dict[str, int]:
        return self._database.topics()

    def make_topics(self, partitions: Mapping[str, int]) -> None:
        """Tasks make them, each when it comes to one."""

    def stored_lines(self, files: Mapping[UUID, Path]) -> dict[UUID, int]:
        return self._database.stored_lines(list(files))

    def has_begun(self, recovery: UUID) -> bool:
        return self._database.recovery_number(recovery) is not None

    def is_done(self, recovery: UUID) -> bool:
        return self._database.is_done(recovery)

    def begin(self, recovery: UUID) -> None:
        self._database.begin(recovery)

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        self._database.end(recovery, files)

    def forget(self, recovery: UUID) -> None:
        """Rows of writers are kept for a year, as those of brokers and files are."""

    def close(self) -> None:
        self._database.close()


class PostgresStore:
    """One task's connection (`steps.Store`)."""

    def __init__(self, url: str, backlog: Backlog) -> None:
        self._topics = backlog.topics
        self._new_topic_partitions = backlog.new_topic_partitions
        self._database = RecoveryDatabase(url, "holdfast-recover-task", backlog.known_since_ms, timeout_s=STEP_S)

    def reached(self, stream: Stream) -> int:
        partitions = self._topics.get(stream.queue, self._new_topic_partitions)
        return self._database.reached(stream.recovery, stream.queue, stream.number, partitions)

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        fresh = self._not_stored(events)
        made = list(batches.run_of(fresh, _BATCH_MESSAGES_MAX, is_for_rows=True))
        stored = self._database.store(stream.recovery, before, after, made)
        if stored.is_overtaken:
            raise Overtaken
        return stored.new

    def _not_stored(self, events: Events) -> Events:
        """Without those that the database has: from a push whose answer was lost, or by another way."""
        marks = {event.tried for event in events if event.tried is not None}
        if marks:
            committed = self._database.committed(marks)
            events = [event for event in events if event.tried not in committed]
        keys = [None if event.id is None else id_key(event.id) for event in events]
        known = self._database.known([key for key in keys if key is not None])
        if not known:
            return events
        return [event for event, key in zip(events, keys, strict=True) if key is None or key not in known]

    def close(self) -> None:
        self._database.close()
