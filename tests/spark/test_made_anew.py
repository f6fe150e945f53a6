"""A topic of the same name is another topic: its messages are not taken for those that were planned."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast import BlockingClient
from holdfast.model.errors import HoldfastError
from holdfast.spark.source_stream import StreamReader
from tests.spark.readers import stream_reader


def stream(servers: str, topic: str, **options: str) -> StreamReader:
    given = {"subscribe": topic, "startingOffsets": "earliest", "brokerTimeout": "10s", **options}
    return stream_reader(servers, None, **given)


def values(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        value.as_py()
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for value in batch.column("value")
    ]


def make_anew(broker: BlockingClient, topic: str, *messages: str) -> None:
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.publish_many(topic, list(messages))


def test_between_planning_and_reading(broker: BlockingClient, servers: str, topic: str) -> None:
    """A driver died with a batch planned; when it is back, there is another topic of that name."""
    broker.create_topic(topic)
    broker.publish_many(topic, ["old"] * 5)
    planner = stream(servers, topic)
    start = planner.initialOffset()
    end = planner.latestOffset(start, ReadAllAvailable())
    planner.stop()
    make_anew(broker, topic, *(f"new-{number}" for number in range(5)))

    strict = stream(servers, topic)
    with pytest.raises(HoldfastError, match=r"\[data_lost\].*is gone with its topic"):
        values(strict, start, end)
    strict.stop()
    lenient = stream(servers, topic, failOnDataLoss="false")
    assert values(lenient, start, end) == []
    later = lenient.latestOffset(end, ReadAllAvailable())
    assert values(lenient, end, later) == [b"new-%d" % number for number in range(5)], "each once"
    lenient.stop()


def test_before_the_first_batch_was_done(broker: BlockingClient, servers: str, topic: str) -> None:
    """A query that is started again asks anew where it begins, and finds another topic, or none."""
    broker.publish_many(topic, ["old"] * 5)
    planner = stream(servers, topic)
    end = planner.latestOffset(planner.initialOffset(), ReadAllAvailable())
    planner.stop()
    for is_there in (True, False):
        broker.delete_topic(topic)
        if is_there:
            broker.publish_many(topic, ["new"])
        for strict in (True, False):
            chosen = {"failOnDataLoss": str(strict).lower()}
            again = stream_reader(servers, None, subscribePattern=topic, startingOffsets="earliest", **chosen)
            start = again.initialOffset()
            if strict:
                with pytest.raises(HoldfastError, match=r"\[data_lost\].*is gone with its topic"):
                    values(again, start, end)
            else:
                assert values(again, start, end) == []
                later = again.latestOffset(end, ReadAllAvailable())
                assert values(again, end, later) == [b"new"] * is_there
            again.stop()


def test_while_a_query_over_all_that_is_there_runs(broker: BlockingClient, servers: str, topic: str) -> None:
    """What is planned is in the checkpoint: behind the end of the new topic, each restart would fail."""
    broker.create_topic(topic)
    broker.publish_many(topic, ["old"] * 5)
    reader = stream(servers, topic, failOnDataLoss="false")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    make_anew(broker, topic, "new", "new")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert values(reader, start, end) == []
    reader.stop()
    following = stream(servers, topic)
    assert values(following, end, following.latestOffset(end, ReadAllAvailable())) == [b"new"] * 2
    following.stop()
