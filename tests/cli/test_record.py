"""`--record`: what was sent and received stands in files that an audit can be made of, also after a signal."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from holdfast.client.records import RecordFile
from tests.cli.program import Broker, numbered, until


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_what_was_sent_is_what_was_received(broker: Broker, tmp_path: Path) -> None:
    sent, received = tmp_path / "sent.ndjson", tmp_path / "received.ndjson"
    broker.ok("publish", "recorded", "--record", str(sent), given=numbered(2500))
    broker.ok("publish", "recorded", "one more", "--id", "mine", "--record", str(sent))
    broker.ok("subscribe", "recorded", "--from", "earliest", "--count", "2501", "--as", "r", "--record", str(received))
    told, came = lines(sent), lines(received)
    assert [line["id"] for line in told] == [line["id"] for line in came] and told[-1]["id"] == "mine"
    assert [line["sequence"] for line in came[:-1]] == list(range(1, 2501)) == [line["sequence"] for line in told[:-1]]
    assert {line["acknowledged"] for line in told} == {True}
    assert {(line["topic"], line["receiver"], line["partition"]) for line in came} == {("recorded", "r", 0)}
    assert [line["offset"] for line in told] == list(range(2501)) == [line["offset"] for line in came]


def test_signal_loses_no_line(broker: Broker, tmp_path: Path) -> None:
    sent, received = tmp_path / "sent.ndjson", tmp_path / "received.ndjson"
    broker.ok("topics", "create", "signalled")
    with (
        broker.running("subscribe", "signalled", "--from", "earliest", "--record", str(received)) as reader,
        broker.running("publish", "signalled", "--sequence", "--rate", "200", "--record", str(sent)) as publisher,
    ):
        for _ in range(50):
            publisher.line()
        ended = publisher.end(signal.SIGTERM)
        assert ended.code == 143, ended
        acknowledged = {line["id"] for line in lines(sent) if line["acknowledged"]}
        assert len(acknowledged) >= 50
        until(lambda: received.exists() and acknowledged <= {line["id"] for line in lines(received)}, "all came")
        assert reader.end(signal.SIGTERM).code == 143


def test_torn_line_is_cut_off_before_others_are_added(tmp_path: Path) -> None:
    path = tmp_path / "sent.ndjson"
    path.write_bytes(b'{"id":"a"}\n{"id":"b')
    with RecordFile(path) as file:
        file.write([{"id": "c"}])
    assert [line["id"] for line in lines(path)] == ["a", "c"]
