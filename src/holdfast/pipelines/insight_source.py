"""Where `insight` gets what it looks at: messages from the connector, topics and cursors from a broker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.model.errors import TopicNotFound
from holdfast.pipelines.errors import BadPipelineSetting
from holdfast.pipelines.insight_rules import DEAD_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.client import BlockingClient

_COLUMNS: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, id string, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


class Chosen(NamedTuple):
    """Topics that are looked at, dead letter topics that they have, where readers are, and how much all is."""

    topics: list[str]
    dead: list[str]
    cursors: list[dict[str, Any]]
    bytes: int

    def read(self, spark: SparkSession, servers: str, since_ms: int | None) -> DataFrame:
        """Their messages. What expires meanwhile is not looked at, which is no reason to fail."""
        names = ",".join(dict.fromkeys((*self.topics, *self.dead)))
        start = {} if since_ms is None else {"startingTimestamp": str(since_ms)}
        options = {"servers": servers, "subscribe": names, "includeHeaders": "true", "failOnDataLoss": "false", **start}
        return spark.read.format("holdfast").options(**options).schema(_COLUMNS).load()


def choose(servers: str, topics: Sequence[str], pattern: str | None) -> Chosen:
    """Topics by name, by a regular expression that whole names match, or both; all of them where nothing is said."""
    from holdfast.client import connect_blocking

    with connect_blocking(servers if "://" in servers else f"holdfast://{servers}") as broker:
        there = {str(each.topic): each for each in broker.topics()}
        # Of those that a broker does not list, it says what is wrong with their names.
        there |= {name: broker.describe(name) for name in topics if name not in there}
        chosen = list(dict.fromkeys((*topics, *_others(there, topics, pattern))))
        if not chosen:
            raise TopicNotFound("there is no topic yet" if pattern is None else f"no topic matches {pattern!r}")
        dead = [name + DEAD_SUFFIX for name in chosen if name + DEAD_SUFFIX in there]
        cursors = [each for name in chosen for each in _cursors(broker, name)]
        size = sum(there[name].size_bytes for name in {*chosen, *dead})
        return Chosen(chosen, dead, cursors, size)


def _others(there: Iterable[str], topics: Sequence[str], pattern: str | None) -> list[str]:
    if pattern is not None:
        try:
            return sorted(name for name in there if re.fullmatch(pattern, name))
        except re.error as error:
            raise BadPipelineSetting(f"--topics-like {pattern!r} is no regular expression: {error}") from error
    # Dead letters are errors of their topics, here, and not a topic that somebody has published to.
    return [] if topics else sorted(name for name in there if not name.endswith(DEAD_SUFFIX))


def _cursors(broker: BlockingClient, topic: str) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "cursor": cursor.name,
            "lag": cursor.lag,
            "partitions": [{"partition": each.partition, "lag": each.lag} for each in cursor.partitions if each.lag],
        }
        for cursor in broker.cursors(topic)
    ]
