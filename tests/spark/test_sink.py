"""What a job or a query does at its end, when brokers take some calls and others not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.spark.sink import BatchWriter, Staged, StreamWriter
from holdfast.spark.sink_options import SinkOptions, parse_sink_options
from tests.spark.scripted import http_server


def options(servers: str, **more: str) -> SinkOptions:
    return parse_sink_options({"servers": servers, "topic": "orders", **more})


@contextmanager
def broker_that_answers(
    *, committed: dict[str, object] | None = None, first: tuple[int, bytes] | None = None, **refused: bool
) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it was asked; what is refused has no leader. `committed` is its answer to a commit.

    `first` is its answer to the very first call.
    """
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        what = "forget" if method == "DELETE" else path.rpartition("/")[2]
        asked.append(what)
        if first is not None and len(asked) == 1:
            return *first, {}
        if refused.get(what):
            return 503, b'{"error": {"code": "no_quorum", "message": "there is no leader"}}', {}
        return 200, json.dumps(committed or {"duplicate": False, "last_number": 0}).encode(), {}

    with http_server(answer) as (host, port):
        yield f"{host}:{port}", asked


def test_job_whose_rows_are_committed_does_not_fail_because_its_writer_is_not_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with broker_that_answers(forget=True) as (servers, asked):
        BatchWriter(options(servers, brokerTimeout="200ms")).commit([Staged("writer", 0, ["receipt"])])
    assert asked[:2] == ["commit", "forget"]
    assert "could not forget the writer" in caplog.text and "no_quorum" in caplog.text


def test_job_that_failed_is_told_of_and_not_what_could_not_be_cleaned_up(caplog: pytest.LogCaptureFixture) -> None:
    with broker_that_answers(abort=True) as (servers, asked):
        BatchWriter(options(servers, brokerTimeout="200ms")).abort([])
    assert set(asked) == {"abort"} and "which will expire" in caplog.text


def test_commit_that_does_not_get_through_fails_the_job() -> None:
    with broker_that_answers(commit=True) as (servers, asked), pytest.raises(HoldfastError, match="no_quorum"):
        BatchWriter(options(servers, brokerTimeout="100ms")).commit([])
    assert set(asked) == {"commit"}


def test_batch_is_committed_through_a_broker_that_keeps_nothing_to_compare() -> None:
    """One of an older version, while a cluster is upgraded."""
    unknown = {"error": {"code": "bad_value", "message": "Object contains unknown field `contents`"}}
    with broker_that_answers(first=(400, json.dumps(unknown).encode())) as (servers, asked):
        StreamWriter(options(servers)).commit([Staged("query", 0, ["receipt"])], 0)
    assert asked == ["commit", "commit"]


def test_batch_without_tasks_has_nothing_to_commit() -> None:
    with broker_that_answers() as (servers, asked):
        StreamWriter(options(servers)).commit([], 3)
        assert asked == []
        StreamWriter(options(servers)).commit([Staged("query", 4, []), Staged("query", 4, ["receipt"])], 4)
    assert asked == ["commit"]


def test_query_whose_writer_is_ahead_of_its_checkpoint_fails_and_does_not_lose_its_rows() -> None:
    """The checkpoint was emptied, or another query has the name: what comes under an old number is something else."""
    with (
        broker_that_answers(committed={"duplicate": True, "last_number": 7}) as (servers, _),
        pytest.raises(HoldfastError, match=r"\[writer_ahead\] the writer nightly.*up to number 7.*this is number 3"),
    ):
        StreamWriter(options(servers)).commit([Staged("nightly", 3, [])], 3)


def test_last_batch_of_a_query_may_come_again(caplog: pytest.LogCaptureFixture) -> None:
    with broker_that_answers(committed={"duplicate": True, "last_number": 3}) as (servers, _):
        StreamWriter(options(servers)).commit([Staged("nightly", 3, [])], 3)
    assert "batch 3 of nightly was committed before" in caplog.text


@pytest.mark.parametrize(
    "first",
    [
        (429, b'{"error": {"code": "too_many_connections", "message": "10000 connections are open"}}'),
        (408, b'{"error": {"code": "request_timeout", "message": "the rest did not come"}}'),
        (200, b"<html>hello</html>"),
        *((status, b"<html>upstream trouble</html>") for status in (403, 404, 500)),
        (404, b'{"error": {"code": 404, "message": "no route"}}'),
        (200, b"[]"),
        (200, b""),
    ],
)
def test_answer_that_decides_nothing_is_asked_for_again(first: tuple[int, bytes]) -> None:
    """A job that failed now might be committed all the same, and would be run again."""
    with broker_that_answers(first=first) as (servers, asked):
        BatchWriter(options(servers, writer="nightly", brokerTimeout="5s")).commit([Staged("nightly", 0, ["receipt"])])
    assert asked == ["commit", "commit"]


def test_something_that_is_no_broker_is_told_of() -> None:
    with (
        broker_that_answers(committed={"hello": "world"}) as (servers, _),
        pytest.raises(HoldfastError, match=r"\[connection_lost\].*answered 200, and not as a broker does: .*hello"),
    ):
        BatchWriter(options(servers, brokerTimeout="100ms")).commit([])


@pytest.mark.parametrize("is_sent_again", [True, False])
def test_job_that_met_its_own_commit_was_not_committed_before(
    is_sent_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pending = (503, b'{"error": {"code": "commit_pending", "message": "it is decided"}}')
    known: dict[str, object] = {"duplicate": True, "last_number": 0}
    with broker_that_answers(committed=known, first=pending if is_sent_again else None) as (servers, asked):
        BatchWriter(options(servers, writer="nightly")).commit([Staged("nightly", 0, ["receipt"])])
    assert len(asked) == 1 + is_sent_again
    assert ("was committed before" in caplog.text) is not is_sent_again
