"""Where a recovery goes: into a PostgreSQL, or through brokers. Plain values, so that a target travels to executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.recovery.backlog import Backlog, Ledger
    from holdfast.recovery.steps import Store


class Target(Protocol):
    @property
    def knows_fates(self) -> bool:
        """Whether it can tell what brokers have stored when they got no answer."""
        ...

    def ledger(self) -> Ledger:
        """What the driver asks; to be closed."""
        ...

    def store(self, backlog: Backlog) -> Store:
        """What a task stores with."""
        ...

    def with_stored(self, ledger: Ledger, backlog: Backlog, lines: DataFrame) -> DataFrame:
        """Lines together with what Spark is to know of messages that are stored already."""
        ...


def chosen_target(store: str | None, servers: str | None) -> Target:
    """Of the two, the one that is given."""
    return PostgresTarget(store) if store is not None else BrokersTarget(servers or "")


class PostgresTarget(NamedTuple):
    url: str

    @property
    def knows_fates(self) -> bool:
        return True

    def ledger(self) -> Ledger:
        from holdfast.recovery.postgres_store import PostgresLedger

        return PostgresLedger(self.url)

    def store(self, backlog: Backlog) -> Store:
        from holdfast.recovery.postgres_store import PostgresStore

        return PostgresStore(self.url, backlog)

    def with_stored(self, ledger: Ledger, backlog: Backlog, lines: DataFrame) -> DataFrame:
        """The database finds them itself, where its messages are, and tasks make topics."""
        return lines


class BrokersTarget(NamedTuple):
    servers: str

    @property
    def knows_fates(self) -> bool:
        return False

    def ledger(self) -> Ledger:
        from holdfast.pipelines.recover_brokers import BrokersLedger

        return BrokersLedger(self.servers)

    def store(self, backlog: Backlog) -> Store:
        from holdfast.pipelines.recover_brokers import BrokersStore

        return BrokersStore(self.servers)

    def with_stored(self, ledger: Ledger, backlog: Backlog, lines: DataFrame) -> DataFrame:
        """A pass of its own finds which topics are needed: reading others would be in vain."""
        from holdfast.pipelines import recover_rules

        queues = {row["queue"] for row in lines.select("queue").distinct().collect()}
        if not queues:
            return lines
        ledger.make_topics({queue: backlog.topics.get(queue, backlog.new_topic_partitions) for queue in queues})
        options = {"servers": self.servers, "subscribe": ",".join(sorted(queues))}
        since_ms = str(max(0, backlog.known_since_ms))
        reader = lines.sparkSession.read.format("holdfast").options(**options, startingTimestamp=since_ms)
        stored = reader.schema("topic string, partition int, offset bigint, id string").load()
        return recover_rules.with_stored(lines, stored)
