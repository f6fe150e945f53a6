"""The audit's rules a second time, in plain Python and with everything in memory: what Spark must come to as well."""

from __future__ import annotations

from collections import Counter
from typing import Any

Line = dict[str, Any]


def verdict(sent: list[Line], received: list[Line], *, every_receiver: bool = False) -> Counter[str]:
    """`received` in the order of each receiver's lines."""
    counts: Counter[str] = Counter(received=len(received))
    messages: dict[tuple[str, str], dict[str, Any]] = {}
    for line in sent:
        known = messages.setdefault((line["topic"], line["id"]), {**line, "acknowledged": False})
        known["acknowledged"] |= line["acknowledged"]
        known["sequence"] = min(known["sequence"], line["sequence"])
    counts["sent"] = len(messages)
    counts["resent"] = len(sent) - len(messages)
    counts["acknowledged"] = sum(message["acknowledged"] for message in messages.values())
    seen: set[tuple[str, str, str]] = set()
    highest: dict[tuple[str, str, str, int], int] = {}
    for line in received:
        key = (line["topic"], line["id"])
        if (line["receiver"], *key) in seen:
            counts["duplicated"] += 1
            continue
        seen.add((line["receiver"], *key))
        if key not in messages:
            counts["phantom"] += 1
            continue
        counts["delivered"] += 1
        sequence = messages[key]["sequence"]
        stream = (line["receiver"], line["topic"], producer(line["id"], sequence), line.get("partition", -1))
        counts["out_of_order"] += sequence < highest.get(stream, sequence)
        highest[stream] = max(sequence, highest.get(stream, sequence))
    got = {key for _, *key in seen for key in [tuple(key)]}
    receivers: dict[str, set[str]] = {}
    for receiver, topic, _ in seen:
        receivers.setdefault(topic, set()).add(receiver)
    for key, message in messages.items():
        if not message["acknowledged"]:
            continue
        missing = [each for each in receivers.get(key[0], ()) if (each, *key) not in seen]
        counts["missed"] += len(missing)
        counts["lost"] += len(missing) if every_receiver and receivers.get(key[0]) else key not in got
    return counts


def producer(name: str, sequence: int) -> str:
    return name.rstrip("0123456789") if name.endswith(str(sequence)) else ""
