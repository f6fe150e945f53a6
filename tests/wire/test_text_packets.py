"""Lines of the text protocol: the fast parser against one that reads line by line, and lines that go out."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testkit.sizes import examples

from holdfast.model.errors import BadCommand, DiskFull
from holdfast.wire import text
from holdfast.wire.text import ACK, DIALECTS, STANDARD, Command, Invalid, Publishes, PublishIds, Replication

# One event for each line that asks for something, in order: what a client must get an answer to.
Event = tuple[str | bytes, ...]

FIELDS_OF = {
    b"SUBSCRIBE": (1, 2),
    b"SUBSCRIBE_ID": (1, 2),
    b"UNSUBSCRIBE": (1, 1),
    b"PING": (0, 0),
    b"HEARTBEAT": (0, 0),
}
REPLICATION = (b"REPLICATE", b"MARK_DELIVERED", b"CLEAR", b"ROLE")


def reference(chunk: bytes) -> list[Event]:
    """The protocol as its document says it, one line at a time, with nothing clever."""
    events: list[Event] = []
    for line in chunk.split(b"\n")[:-1]:
        if line[-1:] == b"\r":
            line = line[:-1]
        if line == b"":
            continue
        parts = line.split(b"|")
        command = parts[0].upper()
        if command == b"PUBLISH" and len(parts) >= 3:
            events.append(("publish", parts[1], b"|".join(parts[2:])))
        elif command == b"PUBLISH_ID" and len(parts) >= 4:
            events.append(("publish_id", parts[1], parts[2], b"|".join(parts[3:])))
        elif command in REPLICATION:
            events.append(("replication", line))
        elif command in FIELDS_OF:
            fields = parts[1:]
            while fields and fields[-1] == b"":
                del fields[-1]
            fewest, most = FIELDS_OF[command]
            fits = fewest <= len(fields) <= most
            events.append(("command", command, *fields) if fits else ("invalid",))
        else:
            events.append(("invalid",))
    return events


def events_of(chunk: bytes) -> list[Event]:
    """What the real parser found, spread out line by line."""
    events: list[Event] = []
    for item in text.parse(chunk):
        if isinstance(item, Publishes):
            queues = {topic: iter(values) for topic, values in item.values_by_topic.items()}
            events += [("publish", topic, next(queues[topic])) for topic in item.order]
            assert all(next(queue, None) is None for queue in queues.values()), "a value without a line"
        elif isinstance(item, PublishIds):
            events += [("publish_id", *line) for line in item.lines]
        elif isinstance(item, Command):
            events.append(("command", item.name, *item.fields))
        elif isinstance(item, Replication):
            events += [("replication", line) for line in item.lines]
        else:
            assert isinstance(item, Invalid) and isinstance(item.error, BadCommand)
            events.append(("invalid",))
    return events


words = st.sampled_from(
    [
        b"PUBLISH",
        b"publish",
        b"Publish",
        b"PUBLISH_ID",
        b"SUBSCRIBE",
        b"Subscribe_ID",
        b"unsubscribe",
        b"PING",
        b"HEARTBEAT",
        b"REPLICATE",
        b"mark_delivered",
        b"X",
        b"",
    ]
)
pieces = st.sampled_from(
    [b"t", b"topic-2", b"|", b"||", b"\r", b" ", b"PUBLISH|t|", b"\xff\xfe", b"\0", b""]
) | st.binary(max_size=6).map(lambda piece: piece.replace(b"\n", b""))
lines = st.tuples(words, st.lists(pieces, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\r\n"])).map(
    lambda drawn: drawn[0] + b"|".join([b"", *drawn[1]]) + drawn[2]
)
floods = st.tuples(
    st.sampled_from([b"t", b"", b"other"]), st.lists(st.binary(max_size=8), min_size=1, max_size=20), st.booleans()
).map(
    lambda drawn: b"".join(
        b"PUBLISH|%b|%b%b" % (drawn[0], value.replace(b"\n", b"|"), b"\r\n" if drawn[2] else b"\n")
        for value in drawn[1]
    )
)


@examples(500, 20_000)
@given(st.lists(lines | floods, max_size=8).map(b"".join))
@example(b"PUBLISH|t|a\nPUBLISH|t|PUBLISH|t|b\nPUBLISH|t|\r\n")
@example(b"PUBLISH|t\nPUBLISH|t|b\n")
@example(b"PUBLISH||\nPUBLISH||\n")
@example(b"\r\n\n\r\r\nPING\r\n")
def test_every_line_asks_for_what_the_protocol_says(chunk: bytes) -> None:
    assert events_of(chunk) == reference(chunk)


@examples(300, 20_000)
@given(st.binary(max_size=120).map(lambda data: data + b"\n"))
def test_no_bytes_make_the_parser_fail(chunk: bytes) -> None:
    assert events_of(chunk) == reference(chunk)


@examples(100, 5_000)
@given(st.lists(lines | floods, min_size=1, max_size=6).map(b"".join), st.data())
def test_where_a_network_cuts_the_stream_does_not_matter(stream: bytes, data: st.DataObject) -> None:
    ends = [i + 1 for i in range(len(stream)) if stream[i : i + 1] == b"\n"]
    cuts = sorted(data.draw(st.sets(st.sampled_from(ends)))) if ends else []
    found: list[Event] = []
    start = 0
    for cut in [*cuts, len(stream)]:
        if cut > start:
            found += events_of(stream[start:cut])
        start = cut
    assert found == reference(stream)


@pytest.mark.parametrize(
    "stranger", [b"PUBLISH|u|1234567", b"publish|t|1234567", b"SUBSCRIBE|t|abcde", b"PING|||||||||||||", b"\n" * 17]
)
def test_line_that_only_looks_like_its_neighbours_asks_for_its_own(stranger: bytes) -> None:
    """Lines of equal length are taken in one go; one of them may go elsewhere, and must not be swallowed."""
    line = b"PUBLISH|t|1234567"
    assert len(stranger) == len(line)
    for count in (32, 64, 65, 66, 130, 8_193):
        for place in {0, 1, 31, 62, 63, 64, 65, count // 2, count - 2, count - 1, 8_191, 8_192} & set(range(count)):
            lines = [line] * count
            lines[place] = stranger
            chunk = b"".join(each + b"\n" for each in lines)
            assert events_of(chunk) == reference(chunk), f"line {place} of {count}"


def test_flood_is_one_item_and_mixed_topics_keep_their_order() -> None:
    flood = text.parse(b"PUBLISH|t|a\nPUBLISH|t|b\n")
    assert flood == [Publishes({b"t": [b"a", b"b"]}, [b"t", b"t"])]
    mixed = text.parse(b"PUBLISH|t|a\npublish|u|b\r\nPUBLISH|t|c|d\n")
    assert mixed == [Publishes({b"t": [b"a", b"c|d"], b"u": [b"b"]}, [b"t", b"u", b"t"])]


# --- lines that go out --------------------------------------------------------------------------------


def read_delivery(line: bytes) -> tuple[bytes, bytes]:
    """What a subscriber of the standard dialect understands of one line."""
    kind, topic, rest = line.split(b"|", 2)
    return topic, base64.b64decode(rest, validate=True) if kind == b"MESSAGE_BASE64" else rest


@examples(200, 5_000)
@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\nb", b"|", b""]), max_size=20))
def test_subscriber_gets_every_payload_on_a_line_of_its_own(values: list[bytes]) -> None:
    sent = STANDARD.lines(b"t", values)
    assert sent == b"" or sent.endswith(b"\n")
    assert [read_delivery(line) for line in sent.split(b"\n")[:-1]] == [(b"t", value) for value in values]
    for line, value in zip(sent.split(b"\n"), values, strict=False):
        assert line.startswith(b"MESSAGE_BASE64|") == (b"\n" in value)


@examples(100, 2_000)
@given(st.lists(st.binary(max_size=12).map(lambda value: value.replace(b"\n", b"")), max_size=20))
def test_ack_dialect_delivers_bare_payloads(values: list[bytes]) -> None:
    assert ACK.lines(b"t", values).split(b"\n")[:-1] == values


def test_ack_dialect_delivers_line_breaks_as_base64() -> None:
    assert ACK.lines(b"t", [b"a", b"b\nc"]) == b"a\nMESSAGE_BASE64|t|" + base64.b64encode(b"b\nc") + b"\n"


@pytest.mark.parametrize("name", DIALECTS)
def test_replies_are_whole_lines(name: str) -> None:
    dialect = DIALECTS[name]
    for reply in (dialect.connected, dialect.published, dialect.subscribed, dialect.unsubscribed):
        assert reply == b"" or (reply.endswith(b"\n") and reply.count(b"\n") == 1)


def test_error_is_one_line_with_its_code() -> None:
    assert text.error_line(DiskFull("no\nroom  left\r")) == b"ERROR|disk_full|no room left\n"
    assert text.error_line(DiskFull("bad \ud800 text")).count(b"\n") == 1
