"""Where a stream begins is decided once, whoever asks again and whenever a driver dies."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from testkit.wait import wait_until

from holdfast import BlockingClient
from holdfast.model.errors import HoldfastError
from holdfast.spark.source_stream import StreamReader
from tests.spark.readers import streaming


def a_second_ago_ms() -> int:
    return int(time.time() * 1000) - 1000


@pytest.mark.parametrize("starting", [None, '{"TOPIC": {"0": -1}}', '{"TOPIC": {}}'])
def test_latest_is_one_place_however_often_spark_asks(
    broker: BlockingClient, servers: str, topic: str, starting: str | None
) -> None:
    broker.publish_many(topic, [b"before"] * 5, partition=0)
    given = {"subscribe": topic, "groupId": "late"}
    if starting is not None:
        given["startingOffsets"] = starting.replace("TOPIC", topic)
    # The second one is another driver, before the first batch: what was published meanwhile is not jumped over.
    with streaming(servers, **given) as first, streaming(servers, **given) as restarted:
        asked = first.initialOffset()
        broker.publish_many(topic, [b"after"] * 3, partition=0)
        assert first.initialOffset() == asked == restarted.initialOffset()
    assert asked["offsets"] == {topic: {"0": 5}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"0": 5, "1": 5}),
        ({"startingOffsets": '{"TOPIC": {"0": 2}}'}, {"0": 2, "1": 5}),
        ({"startingTimestamp": "-1s"}, {"0": 5, "1": 5}),
    ],
)
def test_driver_that_dies_while_it_notes_where_the_query_begins_begins_there_in_every_partition(
    broker: BlockingClient,
    servers: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    expected: dict[str, int],
) -> None:
    broker.create_topic(topic, partitions=2)
    for partition in (0, 1):
        broker.publish_many(topic, [b"before"] * 5, partition=partition)
    if "startingTimestamp" in given:
        wait_until(lambda: broker.offset_at(topic, a_second_ago_ms()) == 5, "those were published longer ago")
    options = {name: text.replace("TOPIC", topic) for name, text in given.items()}
    options |= {"subscribe": topic, "groupId": "g"}
    seek = BlockingClient.seek
    seeks: list[tuple[Any, ...]] = []

    def seek_once(client: BlockingClient, *where: Any) -> Any:
        if seeks:
            raise RuntimeError("the driver dies")
        seeks.append(where)
        return seek(client, *where)

    with streaming(servers, **options) as dying, monkeypatch.context() as patched:
        patched.setattr(BlockingClient, "seek", seek_once)
        if "startingOffsets" in given:
            with pytest.raises(RuntimeError, match="the driver dies"):
                dying.initialOffset()
        else:
            dying.initialOffset()
    for partition in (0, 1):
        broker.publish_many(topic, [b"after"] * 3, partition=partition)
    with streaming(servers, **options) as restarted:
        assert restarted.initialOffset()["offsets"] == {topic: expected}
    assert {str(each.partition): each.offset for each in broker.cursor(topic, "g").partitions} == expected


def values(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        value.as_py()
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for value in batch.column("value")
    ]


def test_topic_that_is_made_anew_between_planning_and_reading_is_another_one(
    broker: BlockingClient, servers: str, topic: str
) -> None:
    """A driver died with a batch planned; when it is back, there is another topic of that name."""
    broker.create_topic(topic)
    broker.publish_many(topic, ["old"] * 5)
    options = {"subscribe": topic, "startingOffsets": "earliest", "brokerTimeout": "10s"}
    with streaming(servers, **options) as planner:
        start = planner.initialOffset()
        end = planner.latestOffset(start, ReadAllAvailable())
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.publish_many(topic, [f"new-{number}" for number in range(5)])
    lost = pytest.raises(HoldfastError, match=r"\[data_lost\].*is gone with its topic")
    with streaming(servers, **options) as strict, lost:
        values(strict, start, end)
    with streaming(servers, **options, failOnDataLoss="false") as lenient:
        assert values(lenient, start, end) == []
        later = lenient.latestOffset(end, ReadAllAvailable())
        assert values(lenient, end, later) == [b"new-%d" % number for number in range(5)], "each once"
