"""Newline-delimited JSON of what was sent and what was received, for whoever audits it with other means.

::

    sent        {"topic", "id", "sequence", "time_ms", "acknowledged"}
    received    {"topic", "id", "sequence", "time_ms", "broker"}

`id` is the message's own name, `<producer>/<sequence>`, also where it was published without an id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chaos.history import History


def write(history: History, directory: Path) -> tuple[Path, Path]:
    """`sent.ndjson` and `received.ndjson` in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    sent, received = directory / "sent.ndjson", directory / "received.ndjson"
    _write(sent, _sent(history))
    _write(received, _received(history))
    return sent, received


def _sent(history: History) -> Iterator[dict[str, Any]]:
    for sent in history.sent:
        yield {
            "topic": sent.topic,
            "id": sent.value,
            "sequence": sent.sequence,
            "time_ms": sent.sent_ms,
            "acknowledged": sent.fate == "acknowledged",
        }


def _received(history: History) -> Iterator[dict[str, Any]]:
    for seen in history.seen:
        yield {
            "topic": seen.place.topic,
            "id": seen.value,
            "sequence": int(seen.value.rpartition("/")[2]),
            "time_ms": seen.at_ms,
            "broker": seen.node,
        }


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
