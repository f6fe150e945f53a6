"""A transform takes each message to its target or to the dead letters, once, whichever way it goes."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

import holdfast
import holdfast.pipelines
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import computing, transform_raising, transform_sql
from holdfast.pipelines.streams import StreamRun
from holdfast.testing import LocalCluster

Run = Callable[..., StreamRun]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def target(topic: str) -> str:
    return f"{topic}-made"


@pytest.fixture
def run(spark: SparkSession, servers: str, topic: str, target: str, tmp_path: Path) -> Run:
    """A transform of the test's topic until all that is there is done; always with the same checkpoint."""

    def run(**options: Any) -> StreamRun:
        places = {"source": topic, "target": target, "checkpoint": str(tmp_path / "checkpoint"), "servers": servers}
        return holdfast.pipelines.transform(spark, **{**places, **options})

    return run


@pytest.mark.parametrize(
    ("way", "limit", "more"),
    [
        ("function", "30%", "40%"),
        pytest.param("state", 14, 15, marks=pytest.mark.night),
        pytest.param("sql", "14", "15", marks=pytest.mark.night),
    ],
)
def test_batch_with_too_many_dead_letters_is_not_written(
    way: str,
    limit: str | int,
    more: str | int,
    broker: holdfast.BlockingClient,
    topic: str,
    target: str,
    run: Run,
    tmp_path: Path,
) -> None:
    """A function that is wrong since its last change buries nothing: corrected, it makes everything."""

    def folded(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        return state, doubled(batch)

    ways: dict[str, dict[str, Any]] = {
        "function": {"function": doubled},
        "state": {"function": folded, "is_stateful": True},
        "sql": {"sql": "SELECT CAST(CAST(CAST(value AS STRING) AS INT) * 2 AS STRING) AS value FROM messages"},
    }
    how = ways[way]
    given = [b"x%d" % number if number < 15 else b"%d" % number for number in range(40)]
    broker.publish_many(topic, given)
    with pytest.raises(HoldfastError, match=r"15 of 40 messages in the batch .*, such as .*/0/\d+: ") as refused:
        run(**how, dead_max=limit)
    assert refused.value.code == "too_many_dead"
    assert values(broker, target) == [] == values(broker, f"{topic}.dead")
    run(**how, dead_max=more)
    # A driver that died behind the commit: what is written already is no reason to stop.
    for written in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        written.unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    run(**how, dead_max=limit)
    assert values(broker, f"{topic}.dead") == sorted(given[:15])
    assert values(broker, target) == sorted(b"%d" % (2 * number) for number in range(15, 40))


def test_limits_that_make_no_sense_are_refused(run: Run) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"function": doubled, "dead_max": text}, "dead_max is a number or a share")
        for text in ("many", "-1", "5.5", "101%", "%", "")
    ]
    wrong += [
        ({"function": doubled, "call_timeout_s": 0}, "call_timeout is 1ms to 7d"),
        ({"function": doubled, "call_timeout_s": float("nan")}, "call_timeout is 1ms to 7d"),
        ({"sql": "SELECT value FROM messages", "call_timeout_s": 1}, "call_timeout goes with a function"),
    ]
    for options, told in wrong:
        with pytest.raises(HoldfastError, match=told) as refused:
            run(**options)
        assert refused.value.code == "bad_option"


def messages(broker: holdfast.BlockingClient, topic: str) -> list[holdfast.Message]:
    found = []
    for partition in broker.describe(topic).partitions:
        found += broker.read(topic, partition=partition.partition, offset=0, messages_max=10_000)
    return found


def values(broker: holdfast.BlockingClient, topic: str) -> list[bytes]:
    return sorted(message.value for message in messages(broker, topic))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = [int(value) for value in batch["value"].to_pylist()]
    return pa.record_batch({"key": batch["key"], "value": [str(2 * number) for number in numbers]})


def slow_for_some(batch: pa.RecordBatch) -> pa.RecordBatch:
    import time

    if any(value.startswith(b"slow") for value in batch["value"].to_pylist()):
        with contextlib.suppress(Exception):
            time.sleep(3600)
    return batch.select(["value"])


@pytest.mark.parametrize("is_stateful", [False, pytest.param(True, marks=pytest.mark.night)])
def test_message_for_which_a_call_takes_too_long_holds_up_no_other(
    is_stateful: bool, run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    def folded(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        return state, slow_for_some(batch)

    broker.create_topic(topic)
    broker.publish_many(topic, [b"0", b"1", b"slow", b"3"])
    done = run(function=folded if is_stateful else slow_for_some, is_stateful=is_stateful, call_timeout_s=1)
    assert done.counts == {"made": 3, "dead": 1}
    assert values(broker, target) == [b"0", b"1", b"3"]
    [letter] = messages(broker, f"{topic}.dead")
    said = dict(letter.headers)
    assert (letter.value, said["holdfast-dead-offset"]) == (b"slow", "2")
    assert said["holdfast-dead-error"].startswith("CallTimedOut: the call took longer than 1 s, and was at test_transf")


@pytest.mark.night
@pytest.mark.parametrize("is_stateful", [False, True])
def test_call_that_cannot_be_interrupted_ends_the_pipeline_which_says_where(
    is_stateful: bool, run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    def stuck(batch: pa.RecordBatch) -> pa.RecordBatch:
        import itertools

        return batch if b"stuck" not in batch["value"].to_pylist() else sum(itertools.repeat(1))

    def folded(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        return state, stuck(batch)

    broker.create_topic(topic)
    broker.publish_many(topic, [b"0", b"stuck"])
    with pytest.raises(HoldfastError, match=rf"a worker process ended while the function ran for {topic}/0/1") as ended:
        run(function=folded if is_stateful else stuck, is_stateful=is_stateful, call_timeout_s=1, batch_rows_max=1)
    assert ended.value.code == "function_ended"
    assert values(broker, target) == []


def test_function_that_fails_on_some_rows_takes_the_others_on(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    broker.create_topic(topic, partitions=2)
    numbers = [b"x%d" % n if n % 10 == 3 else b"%d" % n for n in range(200)]
    broker.publish_many(topic, [holdfast.NewMessage(value=value, key=value) for value in numbers])
    done = run(function=doubled, batch_messages_max=120, tasks=5)
    assert (done.rows, done.batches, done.counts) == (200, 2, {"made": 180, "dead": 20})
    for partition in (0, 1):
        read = [message.value for message in broker.read(topic, partition=partition, offset=0, messages_max=1000)]
        made = [message.value for message in broker.read(target, partition=partition, offset=0, messages_max=1000)]
        assert made == [b"%d" % (2 * int(value)) for value in read if value.isdigit()], "in order, over all tasks"
    dead = messages(broker, f"{topic}.dead")
    assert sorted(message.value for message in dead) == sorted(value for value in numbers if not value.isdigit())
    for message in dead:
        said = dict(message.headers)
        [there] = broker.read(
            topic,
            partition=int(said["holdfast-dead-partition"]),
            offset=int(said["holdfast-dead-offset"]),
            messages_max=1,
        )
        assert (there.value, there.key) == (message.value, message.key)
        assert said["holdfast-dead-class"] == "ValueError" and said["holdfast-dead-topic"] == topic
    assert len(broker.describe(target).partitions) == len(broker.describe(f"{topic}.dead").partitions) == 2
    assert run(function=doubled).rows == 0, "it goes on where it was"


def test_statement_that_raises_for_some_rows_takes_the_others_on(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    sql = (
        "SELECT key, CAST(2 * CAST(CAST(value AS STRING) AS INT) AS STRING) AS value, headers FROM messages "
        "WHERE CAST(CAST(value AS STRING) AS INT) <> 5"
    )
    broker.create_topic(topic)
    broker.publish_many(topic, [b"%d" % n for n in range(20)])
    assert run(sql=sql).counts == {"made": 19, "dead": 0}
    broker.publish_many(topic, [b"20", b"x21", b"22", b"99999999999"])
    done = run(sql=sql)
    assert (done.rows, done.counts) == (4, {"made": 2, "dead": 2})
    assert values(broker, target) == sorted(b"%d" % (2 * n) for n in (*range(23),) if n not in (5, 21))
    dead = {message.value: dict(message.headers) for message in messages(broker, f"{topic}.dead")}
    assert dead.keys() == {b"x21", b"99999999999"}
    said = dead[b"x21"]
    assert said["holdfast-dead-class"] == "CAST_INVALID_INPUT" and "'x21'" in said["holdfast-dead-error"]
    assert said["holdfast-dead-offset"] == "21"
    assert run(sql=sql).rows == 0


@pytest.mark.night
def test_ids_that_brokers_refuse_are_dead_whichever_way_they_were_made(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    """A broker that refuses one message of a batch refuses the batch: at each start again."""
    strange = ("a\u00a0b", "a\u2028b", "line\n", "\u200b", "\U000e0001", "\u0378")
    ids = [b"plain", "заказ-1".encode(), "\u0f00".encode(), b"\xff", b"\xed\xa0\x80", b"", *map(str.encode, strange)]
    broker.create_topic(topic)
    broker.publish_many(topic, ids)
    done = run(sql="SELECT 'x' AS value, CAST(value AS STRING) AS id FROM messages")
    assert done.counts == {"made": 3, "dead": 9}
    assert [message.id for message in messages(broker, target)] == ["plain", "заказ-1", "\u0f00"]
    errors = [dict(message.headers)["holdfast-dead-error"] for message in messages(broker, f"{topic}.dead")]
    assert errors[0].endswith("an id is UTF-8 text") and errors[3].endswith("printable characters only")


def test_statement_finds_the_characters_that_no_id_has_as_brokers_do(spark: SparkSession) -> None:
    """Java, Arrow and Python know different releases of Unicode; brokers go by Python's."""
    kinds = [chr(each).isprintable() for each in range(sys.maxunicode + 1)]
    edges = {near for each in range(1, len(kinds)) if kinds[each] != kinds[each - 1] for near in (each - 1, each)}
    dice = random.Random(1)
    characters = [chr(each) for each in sorted(edges) if not 0xD800 <= each < 0xE000]
    ids = [*characters, *("".join(dice.choices(characters, k=3)) for _ in range(500)), "\r\n", "a\n", "", "x" * 251]
    rows = spark.createDataFrame(pa.table({"value": ids, "id": ids}))
    plain, unprintable = transform_sql.id_patterns()
    found = rows.select((~rows.id.rlike(plain) & rows.id.rlike(unprintable)).alias("bad")).toArrow()["bad"].to_pylist()
    assert found == [not text.isprintable() for text in ids]


@pytest.mark.night
def test_statement_and_event_time_that_raise_for_many_rows_take_the_others_on(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = (
        "SELECT CAST(each AS STRING) AS value FROM messages "
        "LATERAL VIEW explode(array(1, CAST(CAST(value AS STRING) AS INT))) AS each WHERE year(event_time) >= 1970"
    )
    options = {"sql": sql, "event_time": "timestamp_millis(CAST(CAST(value AS STRING) AS BIGINT))"}
    monkeypatch.setattr(transform_raising, "_PART_ROWS_MAX", 90)
    numbers = [b"x%d" % n if n % 10 == 3 else b"%d" % (10**11 * (n % 10 == 5) + n) for n in range(200)]
    broker.create_topic(topic, partitions=2)
    broker.publish_many(topic, [holdfast.NewMessage(value=value, key=value) for value in numbers])
    monkeypatch.setattr(transform_raising, "RAISING_MAX", 39)
    with pytest.raises(HoldfastError, match="more than 39 messages of a batch") as refused:
        run(**options)
    assert refused.value.code == "too_many_raise"
    assert values(broker, target) == values(broker, f"{topic}.dead") == [], "nothing of the batch is written"
    monkeypatch.setattr(transform_raising, "RAISING_MAX", 40)
    assert run(**options).counts == {"made": 320, "dead": 40}
    dead = messages(broker, f"{topic}.dead")
    assert sorted(message.value for message in dead) == sorted(
        value for value in numbers if len(value) > 3 or b"x" in value
    )
    assert all(f"'{message.value.decode()}'" in dict(message.headers)["holdfast-dead-error"] for message in dead)


@pytest.mark.night
def test_message_that_raises_in_whichever_way_does_not_end_a_statement(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    """Spark has no code in common for all that a row may raise, and for some none at all."""
    sql = (
        "SELECT CASE CAST(key AS STRING) WHEN 'map' THEN to_json(str_to_map(CAST(value AS STRING))) "
        "WHEN 'pattern' THEN CAST('x' RLIKE CAST(value AS STRING) AS STRING) "
        "WHEN 'date' THEN date_format(timestamp_millis(0), CAST(value AS STRING)) "
        "WHEN 'size' THEN CAST(size(sequence(1L, CAST(CAST(value AS STRING) AS BIGINT))) AS STRING) "
        "ELSE CAST(xpath_int(CAST(value AS STRING), 'a') AS STRING) END AS value FROM messages"
    )
    good = {b"map": b"a:1", b"pattern": b"x", b"date": b"yyyy", b"size": b"3", b"xml": b"<a>7</a>"}
    bad = {b"map": b"a:1,a:2", b"pattern": b"(", b"date": b"YYYY", b"size": b"2147483647000", b"xml": b"<a"}
    broker.create_topic(topic)
    broker.publish_many(
        topic, [holdfast.NewMessage(value=value, key=key) for each in (good, bad, good) for key, value in each.items()]
    )
    assert run(sql=sql).counts == {"made": 10, "dead": 5}
    assert run(sql=sql).rows == 0
    assert values(broker, target) == sorted([b'{"a":"1"}', b"true", b"1970", b"3", b"7"] * 2)
    dead = {message.key: message for message in messages(broker, f"{topic}.dead")}
    assert {key: message.value for key, message in dead.items() if key} == bad
    said = {key: dict(message.headers)["holdfast-dead-class"] for key, message in dead.items() if key}
    assert (said[b"map"], said[b"xml"]) == ("DUPLICATED_MAP_KEY", "SAXParseException")
    assert "document structures must start and end" in dict(dead[b"xml"].headers)["holdfast-dead-error"]


def test_statement_with_a_registered_function_takes_on_what_neither_raises_for(
    run: Run, spark: SparkSession, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    """The driver cannot run those rows by itself."""
    spark.udf.register("strict_number", lambda text: str(int(text)))
    broker.create_topic(topic)
    rows = [(b"1", b"1"), (b"x", b"1"), (b"2", b"2"), (b"java.lang.OutOfMemoryError", b"1"), (b"3", b"y")]
    broker.publish_many(topic, [holdfast.NewMessage(value=value, key=key) for value, key in rows])
    sql = (
        "SELECT concat(strict_number(CAST(value AS STRING)), CAST(CAST(CAST(key AS STRING) AS INT) AS STRING)) "
        "AS value FROM messages"
    )
    assert run(sql=sql).counts == {"made": 2, "dead": 3}
    assert run(sql=sql).rows == 0
    assert values(broker, target) == [b"11", b"22"]
    dead = {message.value: dict(message.headers) for message in messages(broker, f"{topic}.dead")}
    assert dead.keys() == {b"x", b"java.lang.OutOfMemoryError", b"3"}
    assert dead[b"x"]["holdfast-dead-error"] == "ValueError: invalid literal for int() with base 10: 'x'"
    assert dead[b"x"]["holdfast-dead-class"] == "ValueError"
    assert dead[b"3"]["holdfast-dead-class"] == "CAST_INVALID_INPUT"


@pytest.mark.night
def test_message_of_many_rows_that_raise_is_one_dead_letter_and_none_of_its_rows_are_made(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transform_raising, "RAISING_MAX", 3)
    sql = (
        "SELECT CAST(CAST(each AS INT) AS STRING) AS value FROM messages "
        "LATERAL VIEW explode(split(CAST(value AS STRING), ',')) AS each"
    )
    bad = [b"2,y,3,y,4", b"5," + b",".join([b"x"] * 200) + b",6", b"z"]
    broker.create_topic(topic)
    broker.publish_many(topic, [b"0,1", *bad, b"7,8"])
    assert run(sql=sql).counts == {"made": 4, "dead": 3}
    assert run(sql=sql).rows == 0
    assert values(broker, target) == [b"0", b"1", b"7", b"8"]
    assert values(broker, f"{topic}.dead") == sorted(bad)


def numbers_and_others(spark: SparkSession) -> DataFrame:
    texts = [b"x%d" % n if n % 4 == 3 else b"%d" % n for n in range(8)]
    places = "0 AS partition, CAST(offset AS BIGINT) AS offset, CAST(null AS BINARY) AS key, value"
    headers = "CAST(null AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers"
    table = pa.table({"value": texts, "offset": list(range(len(texts)))})
    return spark.createDataFrame(table).selectExpr(*places.split(", "), headers)


@pytest.mark.parametrize("error", [TypeError("JavaPackage"), AttributeError("metrics"), Py4JError("no such method")])
def test_release_of_spark_whose_plans_are_otherwise_finds_rows_that_raise_by_jobs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(transform_raising, "_on_the_driver", mock.Mock(side_effect=error))
    assert raising_offsets(spark) == [3, 7]


def test_driver_that_raises_where_no_job_does_blames_no_row(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = [(row, RuntimeError("there is no task here")) for row in range(8)]
    monkeypatch.setattr(transform_raising, "_errors", lambda *_: iter(everywhere))
    assert raising_offsets(spark) == [3, 7]


def raising_offsets(spark: SparkSession) -> list[int]:
    rows = numbers_and_others(spark)
    sql = "SELECT CAST(CAST(CAST(value AS STRING) AS INT) AS STRING) AS value FROM messages"
    found = transform_raising.failing(rows, lambda part: transform_sql.selected(part, sql), lambda _: None)
    assert {each.error.partition(":")[0] for each in found} == {"CAST_INVALID_INPUT"}
    return [each.offset for each in found]


def test_two_statements_in_one_session_read_each_their_own_messages(spark: SparkSession) -> None:
    def plans(name: str) -> list[str]:
        rows = spark.range(1).selectExpr(f"'{name}' AS topic")
        read = (transform_sql.selected(rows, "SELECT topic AS value FROM messages") for _ in range(15))
        return [result._jdf.queryExecution().analyzed().toString() for result in read]

    with ThreadPoolExecutor(2) as threads:
        for name, found in zip(("left", "right"), threads.map(plans, ("left", "right")), strict=True):
            assert all(f"{name} AS topic" in plan for plan in found)


def test_view_of_the_caller_that_is_called_messages_stays_as_it_is(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    spark.range(3).createOrReplaceTempView("messages")
    try:
        with pytest.raises(HoldfastError, match="a view messages of its own") as refused:
            transform_sql.selected(rows, "SELECT value FROM messages")
        assert refused.value.code == "bad_sql"
        assert spark.table("messages").count() == 3
    finally:
        spark.catalog.dropTempView("messages")
    assert transform_sql.selected(rows, "SELECT value FROM messages").isStreaming


@pytest.mark.night
def test_messages_whose_event_time_raises_belong_to_no_window_and_are_dead(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str, tmp_path: Path
) -> None:
    time = "timestamp_millis(CAST(CAST(value AS STRING) AS BIGINT))"
    broker.create_topic(topic)
    broker.publish_many(topic, [holdfast.NewMessage(value=value, key=b"k") for value in (b"1000", b"never", b"60000")])
    counted = "SELECT CAST(count(*) AS STRING) AS value FROM messages GROUP BY window(event_time, '10 seconds')"
    folded: dict[str, Any] = {"function": computing.count, "is_stateful": True, "window_s": 10}
    for options in ({"sql": counted}, folded):
        checkpoint = str(tmp_path / str(len(options)))
        done = run(**options, checkpoint=checkpoint, event_time=time, watermark_s=5)
        assert (done.rows, done.counts) == (3, {"made": 1, "dead": 1})
    dead = messages(broker, f"{topic}.dead")
    assert [(message.key, message.value) for message in dead] == [(b"k", b"never")] * 2
    assert {dict(message.headers)["holdfast-dead-class"] for message in dead} == {"EventTimeRaised"}
    assert time in dict(dead[0].headers)["holdfast-dead-error"]


@pytest.mark.night
def test_statement_that_aggregates_and_raises_says_what_to_do(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    sql = (
        "SELECT CAST(sum({}(CAST(value AS STRING) AS INT)) AS STRING) AS value FROM messages "
        "GROUP BY window(event_time, '10 seconds')"
    )
    broker.create_topic(topic)
    broker.publish_many(topic, [b"1", b"x"])
    with pytest.raises(HoldfastError, match=r"raised CAST_INVALID_INPUT: The value 'x'.*try_cast") as failed:
        run(sql=sql.format("CAST"), watermark_s=5)
    assert failed.value.code == "statement_raised"
    assert run(sql=sql.format("TRY_CAST"), watermark_s=5).rows == 2, "the same checkpoint goes on"


def test_function_over_pandas_takes_headers_and_times_on(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    def priced(frame: Any) -> Any:
        assert frame["timestamp"].dt.year.min() >= 2024
        frame = frame[frame["value"] != b"left out"]
        prices = [json.dumps({"price": int(value)}) for value in frame["value"]]
        return frame.assign(value=prices, id=[f"price/{offset}" for offset in frame["offset"]])

    broker.create_topic(topic)
    many = [b"1", b"x", b"left out", b"4"]
    broker.publish_many(topic, [holdfast.NewMessage(value=v, key=v, headers=[("trace", b"t" + v)]) for v in many])
    assert run(function=priced, batches="pandas").counts == {"made": 2, "dead": 1}
    made = messages(broker, target)
    assert [(each.id, each.key, each.json()) for each in made] == [
        ("price/0", b"1", {"price": 1}),
        ("price/3", b"4", {"price": 4}),
    ]
    assert [dict(each.headers) for each in made] == [{"trace": "t1"}, {"trace": "t4"}]
    assert values(broker, f"{topic}.dead") == [b"x"]


@pytest.mark.night
def test_state_over_pandas_is_kept(run: Run, broker: holdfast.BlockingClient, topic: str, target: str) -> None:
    def summed(state: Any, frame: Any) -> tuple[Any, Any]:
        total = (state or 0) + int(frame["value"].astype(int).sum())
        return total, frame.tail(1)[["key"]].assign(value=str(total))

    broker.create_topic(topic)
    for value in (b"1", b"2"):
        broker.publish_many(topic, [holdfast.NewMessage(value=value, key=b"k")] * 2)
        run(function=summed, is_stateful=True, batches="pandas")
    assert [(each.key, each.value) for each in messages(broker, target)] == [(b"k", b"2"), (b"k", b"6")]


def test_statement_over_windows_counts_each_window_once(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    """Event times are in the values; a window is written when the watermark has passed its end."""
    time = "timestamp_millis(CAST(get_json_object(CAST(value AS STRING), '$.at') AS BIGINT))"
    sql = (
        "SELECT CAST(window.start AS STRING) AS key, CAST(count(*) AS STRING) AS value "
        "FROM messages GROUP BY window(event_time, '10 seconds')"
    )
    broker.create_topic(topic)
    broker.publish_many(topic, [b'{"at": %d}' % (1000 * second) for second in (1, 2, 11, 12, 13, 25)])
    assert run(sql=sql, event_time=time, watermark_s=5).counts == {"made": 2, "dead": 0}
    assert [message.value for message in messages(broker, target)] == [b"2", b"3"]
    broker.publish_many(topic, [b'{"at": %d}' % (1000 * second) for second in (3, 26, 60)])
    done = run(sql=sql, event_time=time, watermark_s=5)
    assert (done.late, done.rows) == (1, 3)
    assert [message.value for message in messages(broker, target)] == [b"2", b"3", b"2"]


def test_function_with_a_state_keeps_it_from_batch_to_batch(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    def summed(state: Any, batch: pa.RecordBatch) -> tuple[Any, Any]:
        total = (state or 0) + sum(map(int, batch["value"].to_pylist()))
        return total, pa.table({"key": [batch["key"][0].as_py()], "value": [str(total)]})

    broker.create_topic(topic, partitions=2)

    def publish(*pairs: tuple[bytes, bytes]) -> None:
        broker.publish_many(topic, [holdfast.NewMessage(value=value, key=key) for key, value in pairs])

    publish((b"a", b"1"), (b"a", b"2"), (b"b", b"5"), (b"b", b"x"), (b"b", b"6"))
    options: dict[str, Any] = {"function": summed, "is_stateful": True, "batch_rows_max": 1, "state_ttl_s": 3600}
    assert run(**options).counts == {"made": 4, "dead": 1}
    publish((b"a", b"10"), (b"b", b"10"))
    assert run(**options).counts == {"made": 2, "dead": 0}
    found: dict[bytes, list[bytes]] = {}
    for message in messages(broker, target):
        found.setdefault(message.key or b"", []).append(message.value)
    assert found == {b"a": [b"1", b"3", b"13"], b"b": [b"5", b"11", b"21"]}
    assert [(message.key, message.value) for message in messages(broker, f"{topic}.dead")] == [(b"b", b"x")]


def test_function_over_windows_is_called_when_one_ends(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str
) -> None:
    def counted(state: Any, batch: Any) -> tuple[Any, Any]:
        if batch is None and state["key"] == "bad":
            raise ValueError("no such window")
        return computing.count(state, batch)

    broker.create_topic(topic)
    seconds = {b"a": (1, 2, 11), b"bad": (3,), b"z": (60,)}
    rows = [
        holdfast.NewMessage(value=json.dumps(1000 * second).encode(), key=key)
        for key, all_seconds in seconds.items()
        for second in all_seconds
    ]
    broker.publish_many(topic, rows)
    time = "timestamp_millis(CAST(CAST(value AS STRING) AS BIGINT))"
    done = run(function=counted, is_stateful=True, window_s=10, watermark_s=5, event_time=time)
    assert done.counts == {"made": 2, "dead": 1}
    assert [(message.key, message.value) for message in messages(broker, target)] == [(b"a", b"2"), (b"a", b"1")]
    [dead] = messages(broker, f"{topic}.dead")
    assert (dead.key, json.loads(dead.value)) == (b"bad", {"key": "bad", "count": 1})
    assert "no such window" in dict(dead.headers)["holdfast-dead-error"]


def test_examples_of_the_documentation_do_what_it_says(
    run: Run, broker: holdfast.BlockingClient, topic: str, target: str, tmp_path: Path
) -> None:
    section = (ROOT / "docs" / "pipelines.md").read_text("utf-8").partition("\n## transform\n")[2]
    (tmp_path / "shop.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], "utf-8")
    broker.create_topic(topic)
    broker.publish_many(topic, [{"item": "tea", "count": 5}, {"item": "milk", "count": 1}, "no order"])
    done = run(function=f"{tmp_path / 'shop.py'}:large")
    assert done.counts == {"made": 1, "dead": 1}
    assert [(message.key, message.json()) for message in messages(broker, target)] == [
        (b"tea", {"item": "tea", "count": 5})
    ]


def test_statement_that_cannot_be_is_refused_before_it_runs(spark: SparkSession) -> None:
    columns = ("CAST(CAST(value AS STRING) AS BINARY) AS value", "CAST(null AS BINARY) AS key", "value AS offset")
    rows = spark.readStream.format("rate").load().selectExpr(*columns)
    for sql, words in (
        ("SELEC 1", "has to be a query"),
        ("SELECT nothing FROM messages", "cannot be resolved"),
        ("SELECT 'a' AS value", "does not read messages"),
        ("SELECT value, offset FROM messages", "no column offset"),
        ("SELECT key FROM messages", "needs the column value"),
        ("SELECT offset AS value FROM messages", "has to be binary or string"),
        ("SELECT value, value FROM messages", "comes twice"),
        ("SELECT CAST(count(*) AS STRING) AS value FROM messages", "a stream cannot do this"),
        ("SELECT value FROM messages ORDER BY offset", "a stream cannot do this"),
        ("SELECT value FROM messages WHERE offset = (SELECT max(offset) FROM messages)", "not allowed in subquery"),
    ):
        with pytest.raises(HoldfastError, match=words) as refused:
            transform_sql.check(transform_sql.selected(rows, sql))
        assert refused.value.code == "bad_sql"


def test_what_ends_a_transform_has_a_code(run: Run, broker: holdfast.BlockingClient, topic: str) -> None:
    broker.create_topic(topic)
    broker.publish(topic, b"1")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"function": lambda _batch: None}, "bad_function"),
        ({"sql": "SELECT value FROM messages", "event_time": "nothing"}, "bad_option"),
        ({"function": doubled, "source": "nobody-made-this"}, "topic_not_found"),
    ]
    for options, code in wrong:
        with pytest.raises(HoldfastError) as failed:
            run(**options)
        assert failed.value.code == code


def test_source_with_a_processor_is_transformed_without_a_cursor(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Its cursors stand in what the processor makes, where offsets of the source mean nothing."""
    settings = {"compute_ms": "1", "processor_topics": "orders"}
    with LocalCluster(nodes=1, settings=settings) as cluster, cluster.connect_blocking() as processing:
        processing.publish_many("orders", [b"1", b"2"])
        places = {"servers": cluster.url.removeprefix("holdfast://"), "source": "orders", "target": "doubled"}
        assert run(**places, function=doubled).counts == {"made": 2, "dead": 0}
        assert values(processing, "doubled") == [b"2", b"4"]
        assert not [cursor for cursor in processing.cursors() if cursor.name.startswith("transform")]
    assert "orders has a processor" in caplog.text and "none shows how far transform-doubled is" in caplog.text
