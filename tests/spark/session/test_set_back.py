"""A number that is committed comes again with other rows: the query is told, and no row is left out in silence."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import holdfast
import holdfast.pipelines
from holdfast.client import BlockingClient
from holdfast.model.errors import HoldfastError


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": batch["value"]})


def rolled(batch: pa.RecordBatch) -> pa.RecordBatch:
    import uuid

    return pa.record_batch({"value": [f"{value.decode()} {uuid.uuid4()}" for value in batch["value"].to_pylist()]})


def remove(checkpoint: Path, batch: int, *kinds: str) -> None:
    for kind in kinds:
        (checkpoint / kind / str(batch)).unlink()
        (checkpoint / kind / f".{batch}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("function", marks=pytest.mark.night),
        pytest.param("sql", marks=pytest.mark.night),
        "sink",
        pytest.param("sink without a local checkpoint", marks=pytest.mark.night),
    ],
)
def test_rows_behind_a_batch_that_was_committed_are_not_dropped_when_the_checkpoint_is_set_back(
    way: str,
    spark: SparkSession,
    broker: BlockingClient,
    servers: str,
    topic: str,
    tmp_path: Path,
) -> None:
    target, checkpoint = f"{topic}-out", tmp_path / "checkpoint"
    broker.create_topic(topic)
    broker.create_topic(target)

    def sink() -> None:
        reader = spark.readStream.format("holdfast").options(
            servers=servers, subscribe=topic, startingOffsets="earliest", groupId="plain"
        )
        writer = reader.load().select("value").writeStream.format("holdfast").trigger(availableNow=True)
        if way == "sink":
            writer = writer.option("checkpointLocation", str(checkpoint))
        else:
            # Only the rows themselves say then which batch it is, as on a distributed file system.
            spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
            writer = writer.queryName("checkpoint")
        try:
            writer.options(servers=servers, topic=target).start().awaitTermination()
        finally:
            spark.conf.unset("spark.sql.streaming.checkpointLocation")

    def transform() -> None:
        how = {"function": unchanged} if way == "function" else {"sql": "SELECT value FROM messages"}
        holdfast.pipelines.transform(
            spark, source=topic, target=target, checkpoint=str(checkpoint), servers=servers, **how
        )

    run = sink if way.startswith("sink") else transform
    for start in (0, 100):
        broker.publish_many(topic, [f"{number}" for number in range(start, start + 100)])
        run()
    remove(checkpoint, 1, "commits")
    run()  # the driver died behind the commit: the same batch comes again
    broker.publish_many(topic, [f"{number}" for number in range(200, 300)])
    remove(checkpoint, 1, "commits", "offsets")
    with pytest.raises((HoldfastError, StreamingQueryException), match="was committed with 100 rows then") as refused:
        run()
    text = str(refused.value)
    assert "and comes with 200 now" in text
    if way == "sink without a local checkpoint":
        assert "stands under offsets in the checkpoint, which cannot be read from here" in text
    else:
        assert f"{topic}/0 from 100 to 300" in text and f"ends at {topic}/0 200" in text, "both offsets"
    read = [message.text for message in broker.read(target, messages_max=1000)]
    assert sorted(read, key=int) == [f"{number}" for number in range(200)]


def test_batch_that_rolls_dice_comes_again_without_an_error(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str, tmp_path: Path
) -> None:
    """Its place in the source says that it is the same batch."""
    target, checkpoint = f"{topic}-out", tmp_path / "checkpoint"
    for start in (0, 1):
        broker.publish(topic, f"{start}")
        for _ in range(2):
            holdfast.pipelines.transform(
                spark, source=topic, target=target, checkpoint=str(checkpoint), servers=servers, function=rolled
            )
            remove(checkpoint, start, "commits")
    read = [message.text for message in broker.read(target, messages_max=1000)]
    assert [each.partition(" ")[0] for each in read] == ["0", "1"]
