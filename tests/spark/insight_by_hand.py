"""What `insight` must find, a second time: in plain Python, with everything in memory."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, id string, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def random_log(dice: random.Random, topics: Sequence[str]) -> list[Message]:
    """Messages of topics and of some of their dead letter topics, with `time_ms` instead of a timestamp."""
    log: list[Message] = []
    for name in topics:
        log += _random_topic(dice, name, is_dead=False)
        if dice.random() < 0.6:
            log += _random_topic(dice, f"{name}.dead", is_dead=True)
    return log


def _random_topic(dice: random.Random, topic: str, *, is_dead: bool) -> list[Message]:
    messages: list[Message] = []
    favoured = dice.choice((1, 30))
    for partition in range(dice.randint(1, 3)):
        for offset in range(dice.randint(0, 12)):
            headers = [("h", b"x" * dice.randint(0, 5))] * dice.randint(0, 2)
            if is_dead and dice.random() < 0.9:
                kind = dice.choice(("ValueError: no price", "KeyError: 'net'", "timeout", "ValueError: 7"))
                headers = [*headers, ("holdfast-dead-error", kind.encode())]
            messages.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "time_ms": 1_700_000_000_000
                    + dice.choice((0, 1, 59_999, 60_000, 600_000))
                    + dice.randrange(60_000),
                    "id": dice.choice((f"{partition}-{offset}", f"mine/{offset}")),
                    "key": dice.choice((None, *[b"a"] * favoured, b"b", b"\xff\x00", "schlüssel".encode())),
                    "value": dice.choice((None, b"", b"v" * dice.randint(1, 40), b"w" * dice.randint(990, 120_000))),
                    "headers": headers if dice.random() < 0.8 else [],
                }
            )
    return messages


def size(message: Message) -> int:
    parts = [message["value"], message["key"]]
    parts += [each for name, value in message["headers"] for each in (name.encode(), value)]
    return sum(len(each) for each in parts if each is not None)


def percentile(sizes: list[int], percent: int) -> int:
    """The nearest rank, with numbers from a thousand on rounded up to three digits, yet not above the largest."""
    steps = sorted(map(_step, sizes))
    return min(steps[math.ceil(len(steps) * percent / 100) - 1], max(sizes))


def _step(number: int) -> int:
    if number < 1000:
        return number
    unit = int(10 ** (len(str(number)) - 3))
    return -(-number // unit) * unit


def groups(log: list[Message], topics: Sequence[str], window_ms: int, *keys: str) -> dict[tuple[Any, ...], Any]:
    """Sums and sizes of what these columns group."""
    members: dict[tuple[Any, ...], list[Message]] = defaultdict(list)
    for message in log:
        if message["topic"] in topics:
            place = {**message, "window_ms": message["time_ms"] // window_ms * window_ms}
            members[tuple(place[key] for key in keys)].append(message)
    return {key: _summed(each) for key, each in members.items()}


def _summed(messages: list[Message]) -> dict[str, int]:
    sizes = [size(each) for each in messages]
    headers = [pair for each in messages for pair in each["headers"]]
    return {
        "messages": len(messages),
        "bytes": sum(sizes),
        "headers": len(headers),
        "header_bytes": sum(len(name.encode()) + len(value) for name, value in headers),
        "keyed": sum(each["key"] is not None for each in messages),
        "with_id": sum(each["id"] != f"{each['partition']}-{each['offset']}" for each in messages),
        "p50_bytes": percentile(sizes, 50),
        "p99_bytes": percentile(sizes, 99),
        "max_bytes": max(sizes),
    }


def hot_keys(log: list[Message], topic: str, by: str, top: int) -> list[tuple[str, int]]:
    keyed = [message for message in log if message["topic"] == topic and message["key"] is not None]
    messages = Counter(message["key"] for message in keyed)
    counts: Counter[bytes] = Counter()
    for message in keyed:
        counts[message["key"]] += 1 if by == "messages" else size(message)
    largest = 1 if by == "messages" else max((size(message) for message in keyed), default=1)
    hot = [
        (key, count)
        for key, count in counts.items()
        if messages[key] > 1 and stands_out(count, counts.total(), len(counts), largest)
    ]
    ranked = sorted(hot, key=lambda each: (-each[1], each[0]))[:top]
    return [("0xff00" if key == b"\xff\x00" else key.decode(), count) for key, count in ranked]


def stands_out(count: int, total: int, keys: int, largest: int) -> bool:
    """Twice as much as others have on average, and by chance less than once in a hundred topics of so many keys."""
    if keys == 1 or count == total:
        return True
    others = (total - count) / (keys - 1)
    x, m = count / largest, others / largest
    return count >= 2 * others and keys * math.exp(x - m - x * math.log(x / m)) < 0.01


def even_keys(log: list[Message], topic: str) -> float | None:
    counts = Counter(message["key"] for message in log if message["topic"] == topic and message["key"] is not None)
    return round(counts.total() ** 2 / sum(each * each for each in counts.values()), 1) if counts else None


def errors(log: list[Message], topics: Sequence[str]) -> Counter[tuple[str, str]]:
    """Dead letters by topic and kind of error."""
    found: Counter[tuple[str, str]] = Counter()
    for message in log:
        topic, _, suffix = message["topic"].rpartition(".")
        if suffix == "dead" and topic in topics:
            reasons = [value.decode() for name, value in message["headers"] if name == "holdfast-dead-error"]
            found[topic, reasons[0].split(":")[0] if reasons else "no reason given"] += 1
    return found
