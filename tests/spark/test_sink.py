"""What a job or a query does at its end, when brokers take some calls and others not."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.spark.sink import BatchWriter, Staged, StreamWriter
from holdfast.spark.sink_options import SinkOptions, parse_sink_options


def options(servers: str, **more: str) -> SinkOptions:
    return parse_sink_options({"servers": servers, "topic": "orders", **more})


@contextmanager
def broker_that_answers(**refused: bool) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it was asked; what is refused has no leader."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            what = "forget" if self.command == "DELETE" else self.path.rpartition("/")[2]
            asked.append(what)
            away = {"error": {"code": "no_quorum", "message": "there is no leader"}}
            body = json.dumps(away if refused.get(what) else {"duplicate": False}).encode()
            self.send_response(503 if refused.get(what) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_job_whose_rows_are_committed_does_not_fail_because_its_writer_is_not_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with broker_that_answers(forget=True) as (servers, asked):
        BatchWriter(options(servers, brokerTimeout="200ms")).commit([Staged("writer", ["receipt"])])
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


def test_batch_without_tasks_has_nothing_to_commit() -> None:
    with broker_that_answers() as (servers, asked):
        StreamWriter(options(servers)).commit([], 3)
        assert asked == []
        StreamWriter(options(servers)).commit([Staged("query", []), Staged("query", ["receipt"])], 4)
    assert asked == ["commit"]
