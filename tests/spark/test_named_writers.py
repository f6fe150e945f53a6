"""Queries that share a name: each row is written once, or its query is told that it is not."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from holdfast.client import BlockingClient
from holdfast.model.errors import HoldfastError
from holdfast.spark import sink
from holdfast.spark.sink import BatchWriter, Staged, StreamWriter
from holdfast.spark.sink_options import SinkOptions, parse_sink_options

# Of two queries, the first one's numbers are lower within a batch.
LOW, HIGH = sorted(("query-a", "query-b"), key=lambda query: sink.batch_number(query, 0))


class Name:
    """One name, under which queries and jobs write to a topic of that name."""

    def __init__(self, servers: str, broker: BlockingClient, name: str) -> None:
        self.name = name
        self.broker = broker
        self.options: SinkOptions = parse_sink_options({"servers": servers, "topic": name, "writer": name})
        broker.create_topic(name)

    def staged(self, query: str, batch: int, value: str) -> list[WriterCommitMessage | None]:
        rows = iter([pa.record_batch([[value]], names=["value"])])
        return [sink.stage_rows(self.options, self.name, sink.batch_number(query, batch), rows)]

    def write(self, query: str, batch: int, value: str | None = None) -> None:
        """What Spark does for a batch."""
        messages = self.staged(query, batch, value or f"{query}/{batch}")
        StreamWriter(self.options).commit(messages, batch)

    def values(self) -> list[str]:
        return [message.text for message in self.broker.read(self.name, messages_max=1000)]


@pytest.fixture
def name(servers: str, broker: BlockingClient, request: pytest.FixtureRequest) -> Name:
    return Name(servers, broker, "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:150])


def refused(name: Name, query: str, batch: int) -> None:
    before = name.values()
    with pytest.raises(HoldfastError, match=r"^\[writer_ahead\].*another writer.*transactions forget") as raised:
        name.write(query, batch, "must not be lost")
    assert raised.value.code == "writer_ahead" and name.values() == before


@pytest.mark.parametrize(("first", "second"), [(LOW, HIGH), (HIGH, LOW)])
def test_new_checkpoint_under_an_old_name_is_refused_each_time(name: Name, first: str, second: str) -> None:
    name.write(first, 0)
    for _ in range(2):
        refused(name, second, 0)
    name.write(first, 1)
    refused(name, second, 0)
    name.write(first, 1)
    name.write(first, 2)
    assert name.values() == [f"{first}/{batch}" for batch in range(3)]


@pytest.mark.parametrize(("first", "second"), [(LOW, HIGH), (HIGH, LOW)])
def test_query_whose_commit_did_not_get_through_is_not_taken_for_one_that_came_meanwhile(
    name: Name, first: str, second: str
) -> None:
    """Its driver was about to commit and died; when it is back, another query has the name."""
    name.staged(first, 0, "a driver died with this")
    name.write(second, 0)
    refused(name, first, 0)
    name.write(second, 1)
    refused(name, first, 1)
    assert name.values() == [f"{second}/0", f"{second}/1"]


def test_query_that_comes_back_after_its_name_was_set_free_and_taken_is_refused(name: Name) -> None:
    for batch in range(3):
        name.write(HIGH, batch)
    name.broker.forget_writer(name.name)
    name.write(LOW, 0)
    refused(name, HIGH, 3)
    refused(name, HIGH, 2)
    name.write(LOW, 1)


def test_queries_that_write_at_once_lose_nothing_in_any_order(
    name: Name, servers: str, broker: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either had committed: then only their numbers keep them apart."""
    monkeypatch.setattr(sink, "_check_is_ours", lambda *_: None)
    rolled = random.Random(3)
    refusals = 0
    for trial in range(8):
        shared = Name(servers, broker, f"{name.name}-{trial}")
        following = {LOW: 0, HIGH: 0}
        alive = set(following)
        written: list[str] = []
        for _ in range(14):
            if not alive:
                break
            query = rolled.choice(sorted(alive))
            batch = following[query] - (following[query] > 0 and rolled.random() < 0.3)  # or it comes again
            try:
                shared.write(query, batch)
            except HoldfastError as error:
                assert error.code == "writer_ahead"
                alive.remove(query)
                refusals += 1
                continue
            if batch == following[query]:
                following[query] += 1
                written.append(f"{query}/{batch}")
        assert Counter(shared.values()) == Counter(written)
    assert refusals


@pytest.mark.parametrize("last", [0, 7])
def test_name_of_a_job_or_of_plain_numbers_is_not_taken_over(name: Name, last: int) -> None:
    plain = name.broker.transaction(name.name, last)
    plain.stage(name.name, ["of somebody else"])
    plain.commit()
    refused(name, LOW, 0)
    refused(name, LOW, 9)
    name.broker.forget_writer(name.name)
    name.write(LOW, 9)
    job = BatchWriter(name.options)
    with pytest.raises(HoldfastError, match=r"^\[writer_ahead\].*number \d+ \(batch 9\), and this is number 0"):
        job.commit([job.write(iter([pa.record_batch([["x"]], names=["value"])]))])


def test_batch_that_was_done_and_whose_writer_is_forgotten_meanwhile_is_not_committed_without_rows(name: Name) -> None:
    name.write(LOW, 0, "a")
    again = name.staged(LOW, 0, "a")
    assert isinstance(again[0], Staged) and again[0].is_done
    name.broker.forget_writer(name.name)
    with pytest.raises(HoldfastError, match=r"^\[staged_expired\].*forgotten while it was written again"):
        StreamWriter(name.options).commit(again, 0)
    assert name.name not in {each.writer for each in name.broker.writers()}
    name.write(LOW, 0, "a")
    assert name.values() == ["a", "a"], "whoever forgets a writer has it write again"


def test_batches_are_numbered_as_far_as_numbers_go() -> None:
    assert sink.batch_number("query", 2**31 - 1) < 2**62
    with pytest.raises(HoldfastError, match=r"^\[bad_value\] batch 2147483648 .*new checkpoint and another writer"):
        sink.batch_number("query", 2**31)
