"""`holdfast bench`: that every message it counts was stored, and that what it says adds up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.cli.bench.report import Histogram
from holdfast.cli.bench.wires import BenchFailed, HttpReplies, LineReplies, payloads
from tests.cli.program import Broker


@pytest.mark.parametrize("protocol", ["text", "http", "batches"])
def test_every_published_message_is_stored(broker: Broker, protocol: str) -> None:
    topic = f"bench-of-{protocol}"
    shape = ("--messages", "2345", "--size", "50", "--batch", "100", "--window", "400", "--connections", "2")
    result = broker.ok("bench", "publish", "--protocol", protocol, "--topic", topic, *shape, "--json").json
    with broker.client() as client:
        assert client.describe(topic).messages == 2345
        assert {len(message.value) for message in client.read(topic, messages_max=2345)} == {50}
    assert (result["messages"], result["size_bytes"], result["batch"]) == (2345, 50, 100)
    assert result["messages_per_s"] == pytest.approx(2345 / result["seconds"], rel=0.01)
    assert _ordered(result["latency_ms"]["request_acknowledged"])
    assert result["acknowledges_after_sync"] is True


@pytest.mark.parametrize("protocol", ["text", "http", "batches"])
def test_consume_reads_what_is_there_and_leaves_nothing_behind(broker: Broker, protocol: str) -> None:
    own = broker.ok("bench", "consume", "--protocol", protocol, "--messages", "3000", "--json").json
    assert own["messages"] == 3000 and own["topic"].startswith("bench-")
    with broker.client() as client:
        client.publish_many(f"read-{protocol}", [b"x" * 10] * 1500)
        there = broker.ok("bench", "consume", "--protocol", protocol, "--topic", f"read-{protocol}", "--json").json
        assert (there["messages"], there["size_bytes"]) == (1500, 10)
        assert own["topic"] not in {each.topic for each in client.topics()}
        assert client.cursors(f"read-{protocol}") == []


@pytest.mark.parametrize("protocol", ["text", "http", "batches"])
def test_latency_of_single_messages(broker: Broker, protocol: str) -> None:
    result = broker.ok("bench", "latency", "--protocol", protocol, "--messages", "50", "--json").json
    assert result["messages"] == 50
    assert _ordered(result["latency_ms"]["acknowledged"]) and _ordered(result["latency_ms"]["delivered"])


def test_table_for_people(broker: Broker) -> None:
    shown = broker.ok("bench", "publish", "--messages", "1000", "--text", broker.text)
    assert "messages/s" in shown.text and "p99.9" in shown.text and "request acknowledged" in shown.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--size", "1MB"), "make --batch or --size smaller"),
        (("--window", "5"), "does not hold one request"),
        (("--text", "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        (("--topic", "a,b"), "[bad_topic]"),
        (("--size", "900KiB", "--batch", "1", "--protocol", "http", "--topic", "x" * 201), "[bad_topic]"),
    ],
)
def test_load_that_cannot_be_put_on(broker: Broker, arguments: tuple[str, ...], said: str) -> None:
    ended = broker.run("bench", "publish", *arguments)
    assert ended.code == 1
    assert said in ended.err


def _ordered(latency_ms: dict[str, Any]) -> bool:
    values = list(latency_ms.values())
    return list(latency_ms) == ["p50", "p90", "p99", "p99.9", "max"] and values[0] > 0 and values == sorted(values)


# --- the parts, without a broker ----------------------------------------------------------------------------


def _pieces(data: bytes, dice: random.Random) -> list[bytes]:
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(5))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def test_replies_are_counted_however_they_are_cut() -> None:
    dice = random.Random(1)
    lines = b"PUBACK|Published successfully\n" * 7
    answers = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\nContent-Length: 5\r\n\r\n\r\n\r\nx" * 7
    for _ in range(200):
        line_replies, http_replies = LineReplies(), HttpReplies()
        assert sum(line_replies.feed(piece) for piece in _pieces(lines, dice)) == 7
        assert sum(http_replies.feed(piece) for piece in _pieces(answers, dice)) == 7
        assert http_replies.last_body == b"\r\n\r\nx"


def test_refusals_are_never_counted() -> None:
    dice = random.Random(2)
    line = b"PUBACK|Published successfully\nERROR|disk_full|no room\nPUBACK|Published successfully\n"
    body = b'{"error":{"code":"disk_full","message":"no room"}}'
    answer = b"HTTP/1.1 507 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for _ in range(100):
        with pytest.raises(BenchFailed, match=r"disk_full\|no room"):
            replies = LineReplies()
            for piece in _pieces(line, dice):
                replies.feed(piece)
        with pytest.raises(BenchFailed, match=r"no room \[disk_full\]"):
            http_replies = HttpReplies()
            for piece in _pieces(answer, dice):
                http_replies.feed(piece)


def test_percentiles_are_right_to_a_percent() -> None:
    histogram = Histogram()
    values = [random.Random(3).lognormvariate(-7, 1) for _ in range(20_000)]
    for value in values:
        histogram.add(value)
    values.sort()
    for share in (0.5, 0.9, 0.99, 0.999):
        assert histogram.quantile_s(share) == pytest.approx(values[int(share * len(values)) - 1], rel=0.02)
    assert histogram.quantile_s(1.0) == pytest.approx(values[-1], rel=0.01)


def test_payloads_have_the_size_that_was_asked_for() -> None:
    assert {len(value) for size in (1, 8, 9, 1000) for value in payloads(3, size)} == {1, 8, 9, 1000}
    assert b"\n" not in b"".join(payloads(10, 500))
