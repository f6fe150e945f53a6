"""Deliveries with ids: what one side writes the other side reads, whatever ids and payloads hold."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testkit.sizes import examples

from holdfast.model.errors import BadCommand
from holdfast.wire.text import ACK, STANDARD, encode_id, lines_with_ids
from holdfast.wire.text_answers import ACKNOWLEDGED, Delivered, Refused, Said, decode_id, parse_answer

ids = st.text(max_size=20) | st.sampled_from(["%", "%7C", "a|b", "50%25", "line\nbreak", "\r", "größer", "0-17"])
# As a decoder makes them of bytes that are no text.
surrogates = st.binary(max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape"))
payloads = st.binary(max_size=12) | st.sampled_from([b"\n", b"a\nb", b"|", b"", b"ends\r"])


@examples(300, 5_000)
@given(st.lists(st.tuples(ids.filter(lambda text: text.isprintable()) | surrogates, payloads), max_size=10))
@example([("a|b%\n", b"x|y"), ("", b"\n")])
def test_subscriber_gets_every_id_and_payload_on_a_line_of_its_own(messages: list[tuple[str, bytes]]) -> None:
    sent = lines_with_ids(b"t", messages)
    lines = sent.split(b"\n")[:-1]
    assert [parse_answer(line) for line in lines] == [Delivered(given_id, "t", value) for given_id, value in messages]
    for line, (_, value) in zip(lines, messages, strict=True):
        assert line.startswith(b"MESSAGE_ID_BASE64|") == (b"\n" in value)


@pytest.mark.parametrize(
    ("given_id", "field"),
    [
        ("order-17", b"order-17"),
        ("a|b", b"a%7Cb"),
        ("50%", b"50%25"),
        ("a\r\nb", b"a%0D%0Ab"),
        ("ü%7C", b"\xc3\xbc%257C"),
    ],
)
def test_only_what_would_break_the_line_is_written_otherwise(given_id: str, field: bytes) -> None:
    assert encode_id(given_id) == field and decode_id(field) == given_id


def test_acknowledgements_are_those_of_the_dialects() -> None:
    assert {dialect.published.rstrip(b"\n") for dialect in (STANDARD, ACK)} == ACKNOWLEDGED


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"CONNACK|Connected to Message Broker", Said("CONNACK")),
        (b"PONG", Said("PONG")),
        (b"ACK", Said("ACK")),
        (b"ERROR|disk_full|no room | left", Refused("disk_full", "no room | left")),
        (b"ERROR", Refused("", "")),
        (b"MESSAGE_ID|0-1|t|", Delivered("0-1", "t", b"")),
        (b"MESSAGE_ID|0-1|t|a|b\r", Delivered("0-1", "t", b"a|b\r")),
    ],
)
def test_what_a_broker_says(line: bytes, answer: object) -> None:
    assert parse_answer(line) == answer


@pytest.mark.parametrize(
    "line",
    [b"", b"HTTP/1.1 400 Bad Request", b"MESSAGE_ID|0-1|t", b"MESSAGE_ID", b"MESSAGE_ID_BASE64|0-1|t|=!", b"\xff\xfe"],
)
def test_what_no_broker_says_is_refused(line: bytes) -> None:
    with pytest.raises(BadCommand):
        parse_answer(line)
