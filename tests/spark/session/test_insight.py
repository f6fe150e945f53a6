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
from holdfast.pipelines.insight_findings import WINDOWS_MAX, Insight, fitting_window_ms, look
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
    messages = spark.createDataFrame(rows, by_hand.SCHEMA)
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


def test_messages_that_failed_later_count_in_their_own_window(spark: SparkSession) -> None:
    at_ms, late_ms = 1_700_000_040_000, 1_700_000_040_000 + 5 * MINUTE_MS
    message = {"topic": "t0", "partition": 1, "id": "x", "key": None, "value": b"v", "headers": [], "time_ms": at_ms}
    log = [{**message, "offset": offset} for offset in range(4)]
    reason = ("holdfast-dead-error", b"ValueError: no price")

    def letter(offset: int, number: bytes) -> by_hand.Message:
        place = [("holdfast-dead-topic", b"t0"), ("holdfast-dead-partition", b"1"), ("holdfast-dead-offset", number)]
        own = {"topic": "t0.dead", "offset": offset, "time_ms": late_ms, "headers": [*place, reason]}
        return {**message, **own}

    log.append(letter(0, b"3"))
    settings = {"topics": ["t0"], "asked_ms": late_ms + MINUTE_MS, "window_ms": MINUTE_MS}
    found = looked_at(spark, log, **settings)
    shares = [(row["window_ms"], row["dead"], row["dead_share"]) for row in found.windows]
    assert shares == [(at_ms - at_ms % MINUTE_MS, 1, 0.25)] and found.topics[0]["dead_share"] == 0.25
    assert found.totals["dead_share"] == 0.25
    assert "percent of messages that failed" in insight_page.drawn(found)

    # One whose message is not there, or that names no number, has the time when it came, and is drawn as well.
    found = looked_at(spark, [*log, letter(1, b"77"), letter(2, b"?")], **settings)
    assert [(row["messages"], row["dead"]) for row in found.windows] == [(4, 1), (0, 2)]
    assert "dead letters in each window" in insight_page.drawn(found)


def test_no_more_than_all_messages_fail(spark: SparkSession) -> None:
    """Several letters of one message, and letters of messages that are gone, make no share of messages."""
    at_ms = 1_700_000_040_000
    message = {"topic": "t0", "partition": 0, "id": "x", "key": None, "value": b"v", "headers": [], "time_ms": at_ms}
    log = [{**message, "offset": offset} for offset in range(8, 10)]
    for offset in range(41):
        place = (("holdfast-dead-topic", b"t0"), ("holdfast-dead-partition", b"0"))
        # Five consumers each buried all eight that are expired by now, and one of those that are there.
        told = (*place, ("holdfast-dead-offset", b"%d" % (offset % 8 if offset < 36 else 8)))
        log.append(
            {**message, "topic": "t0.dead", "offset": offset, "headers": [*told, ("holdfast-dead-error", b"E: ")]}
        )
    found = looked_at(spark, log, topics=["t0"], asked_ms=at_ms + MINUTE_MS, window_ms=MINUTE_MS)
    for row in (found.totals, found.topics[0], found.windows[0]):
        assert (row["dead"], row["failed"], row["dead_share"]) == (41, 1, 0.5)
    assert "41 dead letters (50.0 % of the messages failed)" in insight_page.summary(found)


@pytest.mark.parametrize(
    ("counts", "hot"),
    [
        ([100] * 50, []),
        ([110, *[90] * 49], []),
        ([1] * 400, []),
        ([6, *[1] * 400], []),
        ([60, *[1] * 400], [0]),
        ([90, 10], [0]),
        ([50, 50], []),
        ([3, 1], []),
        ([7], [0]),
        ([1], []),
        ([300, 200, *[1] * 100], [0, 1]),
    ],
)
def test_topic_whose_keys_are_used_evenly_has_no_hot_key(
    counts: list[int], hot: list[int], spark: SparkSession
) -> None:
    topic, message = "t", {"partition": 0, "id": "", "value": b"v" * 50, "headers": [], "time_ms": 1_700_000_040_000}
    keys = [b"%04d" % key for key, count in enumerate(counts) for _ in range(count)]
    log = [{**message, "topic": topic, "offset": offset, "key": key} for offset, key in enumerate(keys)]
    found = looked_at(spark, log, topics=[topic], asked_ms=1_900_000_000_000)
    for by in ("messages", "bytes"):
        assert [each["key"] for each in found.hot_keys[by]] == [f"{key:04d}" for key in hot]
    assert found.topics[0]["hottest_key_share"] == round(max(counts) / sum(counts), 6)
    assert ("No key has notably more" in insight_page.drawn(found)) is not bool(hot)


def test_keys_that_dice_choose_are_not_hot(spark: SparkSession) -> None:
    dice = random.Random(20261119)
    message = {"partition": 0, "id": "", "headers": [], "time_ms": 1_700_000_040_000}
    for keys in (3, 100, 3000):
        log = [
            {
                **message,
                "topic": "t",
                "offset": offset,
                "key": b"%d" % dice.randrange(keys),
                "value": b"v" * dice.randint(1, 900),
            }
            for offset in range(3000)
        ]
        assert looked_at(spark, log, topics=["t"], asked_ms=1_900_000_000_000).hot_keys == {"messages": [], "bytes": []}


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


@pytest.mark.parametrize(
    ("asked_ms", "span_ms", "expected_ms"),
    [
        (None, 0, 1000),
        (None, 119_999, 1000),
        (None, 120_000, 2000),
        (None, 3 * 365 * 86_400_000, 10 * 86_400_000),
        (1000, 100_000, 1000),
        (60_000, 30 * 86_400_000, 32 * 60_000),
    ],
)
def test_windows_are_never_too_many(asked_ms: int | None, span_ms: int, expected_ms: int) -> None:
    width = fitting_window_ms(asked_ms, 0, span_ms)
    assert width == expected_ms and span_ms // width + 2 <= WINDOWS_MAX


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
