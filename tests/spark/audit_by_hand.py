"""The audit's rules a second time, in plain Python and with everything in memory: what Spark must come to as well."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

Line = dict[str, Any]
COUNTS = ("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom")


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
    got = {(topic, name) for _, topic, name in seen}
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


def write(path: Path, lines: list[Line], more: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + more, "utf-8")
    return str(path)


def random_log(dice: random.Random, topic: str) -> tuple[list[Line], list[Line]]:
    """What producers sent to a topic, and what receivers got: with flaws of every kind, and clocks of their own."""
    sent: list[Line] = []
    for producer in range(dice.randint(1, 3)):
        skew_ms = dice.choice((0, -50_000, 10_000_000))
        for sequence in range(dice.randint(0, 8)):
            name = dice.choice((f"p{producer}/{sequence}", f"p{producer}/{sequence}", f"{topic}-{len(sent)}x"))
            line = {"topic": topic, "id": name, "sequence": sequence, "time_ms": sequence + skew_ms}
            sent.append({**line, "acknowledged": dice.random() < 0.8, "partition": dice.choice((0, 0, 1))})
    sent += [{**line, "acknowledged": dice.random() < 0.5} for line in sent if dice.random() < 0.1]
    received: list[Line] = []
    for receiver in ("a", "b", "c")[: dice.randint(0, 3)]:
        skew_ms = dice.choice((0, -7_000, 3_000_000))
        came = [line for line in sent if dice.random() < 0.9]
        came += [line for line in came if dice.random() < 0.1]
        for _ in range(dice.choice((0, 0, 2))):
            if len(came) > 1:
                place = dice.randrange(len(came) - 1)
                came[place : place + 2] = reversed(came[place : place + 2])
        for number, line in enumerate(came):
            own = {"topic": topic, "id": line["id"], "time_ms": number + skew_ms, "receiver": receiver, "broker": "n1"}
            received.append({**own, "sequence": line["sequence"], "partition": line["partition"]})
            if dice.random() < 0.05:
                received.append({**own, "id": f"nobody-{number % 2}", "sequence": number, "partition": 0})
    return sent, received
