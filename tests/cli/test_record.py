"""`--record`: what was sent and received stands in files that an audit can be made of, also after a signal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.cli import recording
from holdfast.cli.pair_publishing import PairPublishing
from holdfast.cli.publishing import Publisher
from holdfast.client import PairPublished
from holdfast.client.records import RecordFile, SentRecords
from holdfast.model.ids import Offset
from holdfast.model.messages import Published
from tests.cli.program import Broker, numbered


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
        wait_until(lambda: received.exists() and acknowledged <= {line["id"] for line in lines(received)}, "all came")
        assert reader.end(signal.SIGTERM).code == 143


class Interrupted(list[Published]):
    """The signal comes while the answer is written down."""

    def __init__(self, number: signal.Signals, count: int) -> None:
        super().__init__(Published(partition=0, offset=Offset(at), duplicate=False) for at in range(count))
        self._number = number

    def __iter__(self) -> Iterator[Published]:
        for at, one in enumerate(super().__iter__()):
            if at == 3:
                os.kill(os.getpid(), self._number)
            yield one


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_signal_while_the_answer_is_written_down_makes_no_message_up(
    tmp_path: Path, number: signal.Signals, ending: type[BaseException]
) -> None:
    class Stub:
        def publish_many(self, topic: str, messages: list[Any], **_: Any) -> Interrupted:
            return Interrupted(number, len(messages))

    path, handlers = tmp_path / "sent.ndjson", [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ending), recording.sent(path, "t") as records:
        publisher = Publisher(
            Stub(),  # type: ignore[arg-type]
            "t",
            key=None,
            message_id=None,
            headers={},
            partition=None,
            retry_safe=False,
            records=records,
        )
        publisher.publish([b"x"] * 10)
        pytest.fail("it goes on")
    told = lines(path)
    assert [line["sequence"] for line in told] == list(range(1, 11)), "each of them, once"
    assert all(line["acknowledged"] for line in told)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_signal_between_an_answer_and_its_record_makes_no_message_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Future[list[PairPublished]] = Future()
    done.set_result([])

    class Thread:
        def begin(self, work: Coroutine[None, None, Any]) -> Future[list[PairPublished]]:
            work.close()
            return done

    def end(records: SentRecords, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SentRecords, "end", end)
    path = tmp_path / "sent.ndjson"
    with pytest.raises(SystemExit), recording.sent(path, "t") as records:
        publishing = PairPublishing(
            Thread(),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            "t",
            message_id=None,
            records=records,
            as_json=True,
        )
        publishing.at_a_rate(iter([[b"a"]]), 1000.0, None)
    assert [(line["sequence"], line["acknowledged"]) for line in lines(path)] == [(1, False)]


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        (b'{"id":"a"}\n{"id":"b', [b'{"id":"a"}']),
        (b'{"id":"a"}\n{"id":"b"}', [b'{"id":"a"}', b'{"id":"b"}']),
        (b'{"id":"a"}', [b'{"id":"a"}']),
        (b"{", []),
        (b"a note of mine", [b"a note of mine"]),
        (b'{"id":"' + b"x" * 200_000, [b'{"id":"' + b"x" * 200_000]),
        (b"", []),
    ],
    ids=["torn", "no newline", "one line", "brace", "a note", "long", "empty"],
)
def test_only_a_torn_line_is_cut_off_before_others_are_added(tmp_path: Path, there: bytes, kept: list[bytes]) -> None:
    path = tmp_path / "sent.ndjson"
    path.write_bytes(there)
    with RecordFile(path) as file:
        file.write([{"id": "c"}])
    assert path.read_bytes().splitlines() == [*kept, b'{"id":"c"}']
