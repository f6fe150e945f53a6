"""A case that does not put on the wire what it is named after measures something else."""

import json
import struct
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.load import cases
from benchmarks.load.cases import (
    KEYED_PARTITIONS,
    LENGTHS,
    PARTITIONS,
    PLAIN,
    SIZES,
    STAMP,
    WITH_HEADERS,
    WITH_IDS,
    Case,
)
from benchmarks.load.wire import MESSAGE_BYTES
from benchmarks.measure import Settings
from benchmarks.works.cases import PUBLISH, READ


def _messages(case: Case, count: int) -> list[dict[str, object]]:
    head, _, body = cases.http_request(case, "t", count).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    messages: list[dict[str, object]] = json.loads(body)["messages"]
    return messages


def test_values_of_many_lengths_have_the_size_of_equal_ones_on_the_average() -> None:
    assert LENGTHS.value_bytes == pytest.approx(MESSAGE_BYTES, rel=0.03)
    assert (min(SIZES) >= 10, max(SIZES) > 400, len(set(SIZES)) > 200) == (True, True, True)
    assert [len(LENGTHS.value(number)) for number in range(len(SIZES))] == list(SIZES)
    assert {len(PLAIN.value(number)) for number in range(100)} == {MESSAGE_BYTES}


def test_http_messages_have_the_fields_of_their_case() -> None:
    assert _messages(PLAIN, 3) == [{"value": PLAIN.value(number).decode()} for number in range(3)]
    assert len({message["key"] for message in _messages(KEYED_PARTITIONS, 2_000)}) == cases.KEYS
    assert _messages(WITH_HEADERS, 1)[0]["headers"] == cases.HEADERS
    assert len({message["id"] for message in _messages(WITH_IDS, 1_000)}) == 1_000


def test_text_lines_have_the_ids_of_their_case() -> None:
    lines = cases.text_lines(WITH_IDS, "t", 5).splitlines()
    assert [line.split(b"|")[:3] for line in lines] == [[b"PUBLISH_ID", WITH_IDS.id(n), b"t"] for n in range(5)]
    assert cases.text_lines(LENGTHS, "t", 2) == b"".join(b"PUBLISH|t|%s\n" % LENGTHS.value(n) for n in range(2))


def test_each_request_has_new_ids_and_nothing_else_is_changed() -> None:
    for case in (PLAIN, LENGTHS, WITH_HEADERS, KEYED_PARTITIONS):
        assert case.renewed is None
        assert STAMP not in cases.http_request(case, "t", 10)
    for request in (cases.http_request(WITH_IDS, "t", 10), cases.nats_publishes(WITH_IDS, 10)):
        assert WITH_IDS.renewed is not None
        assert request.count(STAMP) == 10
        one, other = (WITH_IDS.renewed(request, number) for number in (7, 1_790_000_000_000_000))
        assert (len(one), len(other), one == other) == (len(request), len(request), False)
        assert one.replace(b"%016d" % 7, STAMP) == request


def test_redis_streams_stand_for_partitions_and_fields_for_keys_and_headers() -> None:
    commands = cases.redis_commands(PARTITIONS, range(128)).split(b"XADD\r\n")[1:]
    streams = Counter(command.split(b"\r\n")[1] for command in commands)
    assert streams == dict.fromkeys(cases.redis_streams(PARTITIONS), 2)
    command = cases.redis_commands(WITH_HEADERS, range(7, 8), lambda number: b"1-%d" % number)
    parts = command.split(b"\r\n")[2::2]
    headers = [part.encode() for header in cases.HEADERS.items() for part in header]
    assert parts == [b"XADD", b"s-0", b"1-7", b"v", WITH_HEADERS.value(7), *headers]
    assert command.startswith(b"*%d\r\n" % len(parts))


def test_nats_is_told_how_long_headers_and_message_are() -> None:
    line, _, rest = cases.nats_publishes(Case("both", has_headers=True, has_ids=True), 1).partition(b"\r\n")
    verb, _, _, head_bytes, whole_bytes = line.split()
    head, body = rest[: int(head_bytes)], rest[int(head_bytes) : int(whole_bytes)]
    assert (verb, body, rest[int(whole_bytes) :]) == (b"HPUB", PLAIN.value(0), b"\r\n")
    assert head.startswith(b"NATS/1.0\r\n") and head.endswith(b"\r\n\r\n")
    assert b"\r\nsource: checkout\r\n" in head
    assert b"\r\nNats-Msg-Id: %s\r\n" % WITH_IDS.id(0) in head
    assert cases.nats_publishes(PLAIN, 1).startswith(b"PUB bench ")


def test_amqp_headers_stand_before_the_delivery_mode() -> None:
    frames = cases.amqp_publishes(WITH_HEADERS, 1)
    (method_bytes,) = struct.unpack(">I", frames[3:7])
    header = frames[method_bytes + 8 :]
    content = header[7 : 7 + struct.unpack(">I", header[3:7])[0]]
    kind, weight, body_bytes, flags, table_bytes = struct.unpack(">HHQHI", content[:18])
    assert (kind, weight, body_bytes, flags) == (60, 0, MESSAGE_BYTES, 1 << 13 | 1 << 12)
    assert content[18 + table_bytes :] == b"\x02"
    table, found = content[18 : 18 + table_bytes], {}
    while table:
        name_end = 1 + table[0]
        (value_bytes,) = struct.unpack(">I", table[name_end + 1 : name_end + 5])
        found[table[1:name_end].decode()] = table[name_end + 5 : name_end + 5 + value_bytes].decode()
        assert table[name_end : name_end + 1] == b"S"
        table = table[name_end + 5 + value_bytes :]
    assert found == cases.HEADERS


@pytest.mark.parametrize(
    "line", ["Holdfast text, ids", "Holdfast HTTP, keys, 64 partitions", "Holdfast, messages, ids"]
)
def test_every_message_of_a_case_is_stored_or_read(line: str, tmp_path: Path) -> None:
    (contender,) = [one for work in (PUBLISH, READ) for one in work.contenders if one.name == line]
    found = contender.run(Settings(seconds=0.1, quick=True, directory=tmp_path))
    assert found.figures["msg_per_s"] > 0
    assert found.figures["mb_per_s"] > 0
