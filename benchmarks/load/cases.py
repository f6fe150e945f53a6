"""Messages as applications send them, and requests full of them for every server.

A case is something that costs: keys, headers, ids, values of many lengths, many partitions. Where messages have ids,
every request has new ones: STAMP stands where they differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from benchmarks.load import amqp, http, nats, resp
from benchmarks.load.pipeline import Renew
from benchmarks.load.wire import MESSAGE_BYTES, payload

STAMP: Final = b"#" * 16
KEYS: Final = 1_000
MANY_PARTITIONS: Final = 64
HEADERS: Final = {
    "trace-id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "content-type": "application/json",
    "source": "checkout",
}


def _sizes() -> tuple[int, ...]:
    """From 10 bytes to 1,000, and 100 on the average: most are short, some are long."""
    chance = Random(12)
    return tuple(min(1_000, 10 + int(chance.expovariate(1 / 90))) for _ in range(1_000))


SIZES: Final = _sizes()


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    has_lengths: bool = False
    has_keys: bool = False
    has_headers: bool = False
    has_ids: bool = False
    partitions: int = 1

    @property
    def renewed(self) -> Renew | None:
        return _stamped if self.has_ids else None

    @property
    def value_bytes(self) -> float:
        return sum(SIZES) / len(SIZES) if self.has_lengths else MESSAGE_BYTES

    def value(self, number: int) -> bytes:
        return payload(number, SIZES[number % len(SIZES)] if self.has_lengths else MESSAGE_BYTES)

    def id(self, number: int) -> bytes:
        return b"%s-%06d" % (STAMP, number)


PLAIN: Final = Case("equal values")
LENGTHS: Final = Case("values of many lengths", has_lengths=True)
KEYED: Final = Case("keys", has_keys=True)
WITH_HEADERS: Final = Case("headers", has_headers=True)
WITH_IDS: Final = Case("ids", has_ids=True)
PARTITIONS: Final = Case("64 partitions", partitions=MANY_PARTITIONS)
KEYED_PARTITIONS: Final = Case("keys, 64 partitions", has_keys=True, partitions=MANY_PARTITIONS)


def _stamped(request: bytes, number: int) -> bytes:
    return request.replace(STAMP, b"%0*d" % (len(STAMP), number))


def key(number: int) -> str:
    return f"customer-{number % KEYS}"


def text_lines(case: Case, topic: str, count: int) -> bytes:
    name = topic.encode()
    if case.has_ids:
        return b"".join(b"PUBLISH_ID|%s|%s|%s\n" % (case.id(n), name, case.value(n)) for n in range(count))
    return b"".join(b"PUBLISH|%s|%s\n" % (name, case.value(number)) for number in range(count))


def http_request(case: Case, topic: str, count: int) -> bytes:
    messages: list[dict[str, Any]] = [{"value": case.value(number).decode()} for number in range(count)]
    for number, message in enumerate(messages):
        if case.has_keys:
            message["key"] = key(number)
        if case.has_headers:
            message["headers"] = HEADERS
        if case.has_ids:
            message["id"] = case.id(number).decode()
    return http.publish_messages(topic, messages)


def redis_commands(case: Case, numbers: range, entry_id: Callable[[int], bytes] = lambda _number: b"*") -> bytes:
    """Keys and headers are fields of an entry, partitions are streams."""
    streams, commands = redis_streams(case), []
    for number in numbers:
        fields = [b"v", case.value(number)]
        if case.has_keys:
            fields += [b"key", key(number).encode()]
        if case.has_headers:
            fields += [part.encode() for header in HEADERS.items() for part in header]
        commands.append(resp.command(b"XADD", streams[number % len(streams)], entry_id(number), *fields))
    return b"".join(commands)


def redis_streams(case: Case) -> list[bytes]:
    return [b"s-%d" % partition for partition in range(case.partitions)]


def nats_publishes(case: Case, count: int) -> bytes:
    """An id is the header with which JetStream tells what was sent twice."""
    headers = HEADERS if case.has_headers else {}
    return b"".join(
        nats.publish_with_headers(
            case.value(number), headers | ({"Nats-Msg-Id": case.id(number).decode()} if case.has_ids else {})
        )
        for number in range(count)
    )


def amqp_publishes(case: Case, count: int) -> bytes:
    headers = HEADERS if case.has_headers else {}
    return b"".join(amqp.publish_body(case.value(number), headers) for number in range(count))
