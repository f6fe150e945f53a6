"""Jobs that write to a broker, without Spark: each row once, whatever is repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from holdfast.client import BlockingClient
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import (
    HTTP_BODY_BYTES_MAX,
    RECEIPTS_PER_COMMIT_MAX,
    TOPIC_NAME_BYTES_MAX,
    WRITER_NAME_BYTES_MAX,
)
from holdfast.spark.sink import BatchWriter
from holdfast.spark.sink_options import parse_sink_options


def a_job(servers: str, topic: str, **more: str) -> BatchWriter:
    return BatchWriter(parse_sink_options({"servers": servers, "topic": topic, **more}))


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([list(values)], names=["value"])


def values(broker: BlockingClient, topic: str) -> list[str]:
    return [message.text for message in broker.read(topic)]


def test_job_leaves_no_writer_behind_and_one_with_a_name_is_written_once(
    broker: BlockingClient, servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = {each.writer for each in broker.writers()}
    broker.create_topic(topic)
    failed, done = a_job(servers, topic), a_job(servers, topic)
    failed.abort([failed.write(rows("nobody sees this"))])
    done.commit([done.write(rows("a"))])
    assert {each.writer for each in broker.writers()} == before

    for _ in range(2):
        assert caplog.text == ""
        named = a_job(servers, topic, writer=f"nightly-{topic}")
        named.commit([named.write(rows("monday"))])
    assert f"a job of the writer nightly-{topic} was committed before" in caplog.text
    with pytest.raises(HoldfastError, match=r"^\[batch_differs\].*For other rows choose another writer"):
        named.commit([named.write(rows("tuesday"))])
    assert values(broker, topic) == ["a", "monday"]


def test_numbered_jobs_of_a_writer_are_written_once_each_and_in_order(
    broker: BlockingClient, servers: str, topic: str
) -> None:
    def write(number: int, value: str, *, fails: bool = False) -> None:
        job = a_job(servers, topic, writer=f"batches-{topic}", writerBatch=str(number))
        staged = job.write(rows(value))
        (job.abort if fails else job.commit)([staged])

    broker.create_topic(topic)
    write(3, "nobody sees this", fails=True)
    for number, value in ((3, "a"), (3, "a"), (4, "b")):
        write(number, value)
    with pytest.raises(HoldfastError, match=r"^\[batch_differs\] number 4 "):
        write(4, "c")
    with pytest.raises(HoldfastError, match=r"\[writer_ahead\]"):
        write(3, "a as it was before")
    assert values(broker, topic) == ["a", "b"]


def test_as_many_receipts_as_a_commit_takes_fit_into_a_request(broker: BlockingClient, topic: str) -> None:
    longest = topic.ljust(TOPIC_NAME_BYTES_MAX, "x")
    broker.create_topic(longest)
    [staged] = broker.transaction("w" * WRITER_NAME_BYTES_MAX, 10**17).stage(longest, ["a"])
    quotes_and_comma = 3
    assert RECEIPTS_PER_COMMIT_MAX * (len(staged.receipt) + quotes_and_comma) < HTTP_BODY_BYTES_MAX


def test_job_of_a_name_that_brings_other_rows_is_told_that_they_are_not_written(
    broker: BlockingClient, servers: str, topic: str
) -> None:
    def job(number: int | None, *values: str) -> None:
        batch = {} if number is None else {"writerBatch": str(number)}
        writer = a_job(servers, topic, writer=f"job-{topic}-{number}", **batch)
        writer.commit([writer.write(rows(*values))])

    broker.create_topic(topic)
    for number in (None, 7):
        job(number, "a", "b")
        job(number, "b", "a")
        for others in (("a",), ("a", "c"), ("a", "b", "c"), ()):
            with pytest.raises(HoldfastError, match=r"^\[batch_differs\]"):
                job(number, *others)
    assert values(broker, topic) == ["a", "b"] * 2
