"""Acknowledgements that are counted twice, or not at all, turn every figure of the suite into fiction."""

import struct
from collections.abc import Callable

import pytest
from benchmarks.load import http
from benchmarks.load.amqp import Acks
from benchmarks.load.latency import quantile
from benchmarks.load.rabbit_stream import Confirms
from benchmarks.load.read import entry_id, redis_reply_bytes
from benchmarks.load.resp import command
from benchmarks.load.wire import MESSAGE_BYTES, FixedLength, LoadFailed, Marker, Replies, payload

PUBACK = b"PUBACK|Published successfully\n"


def _ack(tag: int, multiple: bool = False) -> bytes:
    return struct.pack(">BHIHHQB", 1, 1, 13, 60, 80, tag, multiple) + b"\xce"


def _confirm(*ids: int) -> bytes:
    content = struct.pack(">HHBI", 3, 1, 1, len(ids)) + b"".join(struct.pack(">Q", one) for one in ids)
    return struct.pack(">I", len(content)) + content


def _http_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _count(replies: Replies, data: bytes, piece_bytes: int) -> int:
    pieces = (data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes))
    return sum(replies.feed(bytearray(piece), len(piece)) for piece in pieces)


@pytest.mark.parametrize(
    ("replies", "data", "expected"),
    [
        (lambda: FixedLength(PUBACK), PUBACK * 5, 5),
        (lambda: Marker(b"$"), b"$15\r\n1700000000000-0\r\n" * 4, 4),
        (Acks, _ack(1) + _ack(3) + _ack(2) + _ack(6, multiple=True) + _ack(5), 6),
        (Confirms, _confirm(1, 2, 3) + _confirm(4), 4),
        (lambda: http.PublishReplies(1000), _http_reply(b"x" * 50) * 3, 3000),
    ],
    ids=["text", "redis", "amqp", "rabbit-stream", "http"],
)
def test_acknowledgements_count_once_however_the_network_cuts_them(
    replies: Callable[[], Replies], data: bytes, expected: int
) -> None:
    assert {_count(replies(), data, piece_bytes) for piece_bytes in (1, 2, 7, 64, 10_000)} == {expected}


def test_an_error_is_not_counted_as_an_acknowledgement() -> None:
    error = bytearray(b"ERROR|something is wrong with this\n")
    with pytest.raises(LoadFailed):
        FixedLength(PUBACK).feed(error, len(error))


def test_a_refused_request_is_not_counted_as_an_acknowledgement() -> None:
    refusal = bytearray(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}")
    with pytest.raises(LoadFailed, match="503"):
        http.PublishReplies(1000).feed(refusal, len(refusal))


def test_every_message_has_the_size_that_the_report_names() -> None:
    assert {len(payload(number)) for number in (0, 1, 99_999_999)} == {MESSAGE_BYTES}


def test_the_expected_length_of_an_xread_reply_is_that_of_its_bytes() -> None:
    def array(*parts: bytes) -> bytes:
        return b"*%d\r\n" % len(parts) + b"".join(parts)

    def bulk(content: bytes) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(content), content)

    entries = [array(bulk(entry_id(n)), command(b"v", payload(n))) for n in range(12)]
    reply = array(array(bulk(b"s"), array(*entries)))
    assert redis_reply_bytes(b"s", 12) == len(reply)


def test_the_median_of_latencies_is_their_middle() -> None:
    samples = list(range(1, 1001))
    assert (quantile(samples, 0.5), quantile(samples, 0.99), quantile(samples, 1.0)) == (501, 991, 1000)
