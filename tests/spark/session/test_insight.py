"""Insight counts what the log has and nothing else: held against plain Python, and from a real broker."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import pipelines
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import insight_page
from holdfast.pipelines.insight_findings import Insight, look
from tests.spark import insight_by_hand as by_hand

WINDOW_MS = 60_000
TOPICS = [f"t{number}" for number in range(6)]
SUMS = ("messages", "bytes", "headers", "header_bytes", "keyed", "with_id", "p50_bytes", "p99_bytes", "max_bytes")
MINUTE_MS = 60_000


def looked_at(spark: SparkSession, log: list[by_hand.Message], **settings: Any) -> Insight:
    rows = [
        (
            each["topic"],
            each["partition"],
            each["offset"],
            datetime.fromtimestamp(each["time_ms"] / 1000, UTC),
            each["id"],
            each["key"],
            each["value"],
            each["headers"],
        )
        for each in log
    ]
    messages = spark.createDataFrame(rows, by_hand.SCHEMA, verifySchema=False)
    return look(messages, settings.pop("topics", TOPICS), settings.pop("cursors", ()), **settings)


def summed(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, int]]:
    return {tuple(row[key] for key in keys): {name: row[name] for name in SUMS} for row in rows if row["messages"]}


def test_every_number_is_what_plain_python_counts(spark: SparkSession) -> None:
    log = by_hand.random_log(random.Random(20261118), TOPICS)
    cursors = [{"topic": "t1", "cursor": "slow", "lag": 7, "partitions": []}]
    found = looked_at(spark, log, cursors=cursors, asked_ms=1_900_000_000_000, window_ms=WINDOW_MS, top=2)

    def expected(*keys: str) -> dict[tuple[Any, ...], Any]:
        return by_hand.groups(log, TOPICS, WINDOW_MS, *keys)

    assert summed(found.topics, "topic") == expected("topic")
    assert summed(found.partitions, "topic", "partition") == expected("topic", "partition")
    assert summed(found.windows, "topic", "window_ms") == expected("topic", "window_ms")
    fine = ("topic", "partition", "window_ms")
    assert summed(found.partition_windows, *fine) == expected(*fine)
    assert summed(found.sizes, "window_ms") == expected("window_ms")
    assert summed([found.totals]) == expected()
    seconds = (found.until_ms - found.from_ms) / 1000
    dead = by_hand.errors(log, TOPICS)
    assert sum(dead.values()) > 10
    assert {(each["topic"], each["kind"]): each["dead"] for each in found.errors} == dead
    assert sum(row["dead"] for row in found.windows) == dead.total() == found.totals["dead"]
    for row in found.topics:
        topic = row["topic"]
        assert row["messages_per_s"] == round(row["messages"] / seconds, 3)
        busiest = max(each["messages"] for key, each in expected("topic", "window_ms").items() if key[0] == topic)
        assert row["messages_per_s_max"] == round(busiest / 60, 3)
        loads = [each["messages"] for key, each in expected("topic", "partition").items() if key[0] == topic]
        assert row["partition_skew"] == round(max(loads) * len(loads) / sum(loads), 6)
        assert row["even_keys"] == by_hand.even_keys(log, topic)
        assert row["dead"] == sum(count for key, count in dead.items() if key[0] == topic)
        for by in ("messages", "bytes"):
            ranked = [(each["key"], each[by]) for each in found.hot_keys[by] if each["topic"] == topic]
            assert ranked == by_hand.hot_keys(log, topic, by, 2)
    assert found.left_out == {} and [row["lag_max"] for row in found.topics if row["topic"] == "t1"] == [7]
    page = insight_page.drawn(found)
    assert page.count("<svg") == 4 and "prefers-color-scheme: dark" in page and "http:" not in page


def test_failures_count_at_the_time_of_their_message_and_no_more_than_all_fail(spark: SparkSession) -> None:
    at_ms, late_ms = 1_700_000_040_000, 1_700_000_040_000 + 5 * MINUTE_MS
    message = {"partition": 1, "id": "x", "key": None, "value": b"v", "headers": [], "time_ms": at_ms}

    def messages(topic: str, *offsets: int) -> list[by_hand.Message]:
        return [{**message, "topic": topic, "offset": offset} for offset in offsets]

    def letters(topic: str, time_ms: int, *numbers: object) -> list[by_hand.Message]:
        """Dead letters of the messages of these numbers."""
        reasons = [("holdfast-dead-topic", topic.encode()), ("holdfast-dead-partition", b"1")]
        reasons.append(("holdfast-dead-error", b"ValueError: no price"))
        own = {"topic": f"{topic}.dead", "time_ms": time_ms}
        return [
            {**message, **own, "offset": at, "headers": [("holdfast-dead-offset", str(number).encode()), *reasons]}
            for at, number in enumerate(numbers)
        ]

    log = messages("later", *range(4)) + letters("later", late_ms, 3)
    # One whose message is not there, or that names no number, has the time when it came.
    log += messages("gone", *range(4)) + letters("gone", late_ms, 3, 77, "?")
    # Five consumers each buried all eight that are expired by now, and one of those that are there.
    log += messages("often", 8, 9) + letters("often", at_ms, *(offset % 8 for offset in range(36)), *[8] * 5)
    found = looked_at(spark, log, topics=["later", "gone", "often"], asked_ms=late_ms + MINUTE_MS, window_ms=MINUTE_MS)
    windows = {
        topic: [(row["messages"], row["dead"], row["dead_share"]) for row in found.windows if row["topic"] == topic]
        for topic in ("later", "gone", "often")
    }
    assert windows == {"later": [(4, 1, 0.25)], "gone": [(4, 1, 0.25), (0, 2, None)], "often": [(2, 41, 0.5)]}
    assert {row["topic"]: (row["dead"], row["failed"], row["dead_share"]) for row in found.topics} == {
        "later": (1, 1, 0.25),
        "gone": (3, 1, 0.25),
        "often": (41, 1, 0.5),
    }
    assert [found.totals[name] for name in ("dead", "failed", "dead_share")] == [45, 3, 0.3]
    assert "45 dead letters (30.0 % of the messages failed)" in insight_page.summary(found)
    assert "dead letters in each window" in insight_page.drawn(found)
    found.windows = [row for row in found.windows if row["topic"] == "later"]
    assert "percent of messages that failed" in insight_page.drawn(found)


# How often each key of a topic is used, and which of them are hot.
KEY_COUNTS = {
    "even": ([100] * 50, []),
    "nearly": ([110, *[90] * 49], []),
    "once": ([1] * 400, []),
    "six": ([6, *[1] * 400], []),
    "sixty": ([60, *[1] * 400], [0]),
    "nine-of-ten": ([90, 10], [0]),
    "halves": ([50, 50], []),
    "three-of-four": ([3, 1], []),
    "only": ([7], [0]),
    "alone": ([1], []),
    "two": ([300, 200, *[1] * 100], [0, 1]),
}


def test_topic_whose_keys_are_used_evenly_or_at_random_has_no_hot_key(spark: SparkSession) -> None:
    dice = random.Random(20261119)
    message = {"partition": 0, "id": "", "headers": [], "time_ms": 1_700_000_040_000, "value": b"v" * 50}
    log: list[by_hand.Message] = []
    for topic, (counts, _) in KEY_COUNTS.items():
        keys = [b"%04d" % key for key, count in enumerate(counts) for _ in range(count)]
        log += [{**message, "topic": topic, "offset": offset, "key": key} for offset, key in enumerate(keys)]
    rolled = {"3-keys": 3, "100-keys": 100, "3000-keys": 3000}
    for topic, keys_max in rolled.items():
        for offset in range(3000):
            own = {"key": b"%d" % dice.randrange(keys_max), "value": b"v" * dice.randint(1, 900)}
            log.append({**message, **own, "topic": topic, "offset": offset})
    found = looked_at(spark, log, topics=[*KEY_COUNTS, *rolled], asked_ms=1_900_000_000_000)
    expected = [(topic, f"{key:04d}") for topic, (_, hot) in KEY_COUNTS.items() for key in hot]
    for by in ("messages", "bytes"):
        assert sorted((each["topic"], each["key"]) for each in found.hot_keys[by]) == sorted(expected)
    shares = {row["topic"]: row["hottest_key_share"] for row in found.topics}
    for topic, (counts, _) in KEY_COUNTS.items():
        assert shares[topic] == round(max(counts) / sum(counts), 6)
    assert "No key has notably more" in insight_page.drawn(found)


@pytest.mark.night
def test_window_that_is_not_over_has_no_rate_yet(spark: SparkSession) -> None:
    message = {"topic": "t0", "partition": 0, "offset": 0, "id": "0-0", "key": None, "value": b"v", "headers": []}
    at_ms = 1_700_000_040_000
    log = [{**message, "time_ms": at_ms}, {**message, "time_ms": at_ms + MINUTE_MS}]
    asked_ms = at_ms + MINUTE_MS + 1000
    found = looked_at(spark, log, topics=["t0", "empty"], asked_ms=asked_ms, window_ms=MINUTE_MS, since_ms=at_ms + 1)
    assert [row["messages_per_s"] for row in found.windows] == [None]
    assert [(row["topic"], row["messages"]) for row in found.topics] == [("t0", 1), ("empty", 0)]
    # Nothing is drawn that would be empty.
    assert insight_page.drawn(found).count("<svg") == 1 and "not over yet" in insight_page.drawn(found)


def test_topics_of_a_broker_with_their_dead_letters_and_readers(
    spark: SparkSession, broker: holdfast.BlockingClient, servers: str, topic: str
) -> None:
    for number in range(30):
        broker.publish(topic, f"order {number}", key="hot" if number % 3 else f"k{number}", headers={"h": "1"})
    broker.publish(f"{topic}.dead", "order 3", headers={"holdfast-dead-error": "ValueError: no price"})
    broker.seek(topic, "billing", "earliest")
    found = pipelines.insight(spark, pattern=f"{topic}", servers=servers, window_ms=MINUTE_MS, top=1)
    (row,) = found.topics
    assert (row["messages"], row["keys"], row["headers"], row["dead"], row["lag_max"]) == (30, 11, 30, 1, 30)
    assert [(each["key"], each["share"]) for each in found.hot_keys["messages"]] == [("hot", round(20 / 30, 6))]
    assert [(each["kind"], each["dead"]) for each in found.errors] == [("ValueError", 1)]
    assert found.cursors[0]["cursor"] == "billing"
    for settings, code in (({"topics": ["missing"]}, "topic_not_found"), ({"pattern": "("}, "bad_option")):
        with pytest.raises(HoldfastError) as refused:
            pipelines.insight(spark, servers=servers, **settings)
        assert refused.value.code == code
