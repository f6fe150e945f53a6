"""Record files of a history, for `holdfast pipeline audit`; `holdfast.client.records` has the format.

`id` is the message's own name, `<producer>/<sequence>`, also where it was published without an id. A session of a
reader is a receiver: the next one begins where it wants. So is what each node serves when everything is over, `log of
n1`: readers may not have come to the end by then, and what was acknowledged must be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.client.records import RecordFile
from testkit.history import ACKNOWLEDGED, NOWHERE, History


def write(history: History, directory: Path) -> tuple[Path, Path]:
    """`sent.ndjson` and `received.ndjson` in a directory."""
    return written(directory, _sent(history), _received(history))


def written(directory: Path, sent: Iterable[dict[str, Any]], received: Iterable[dict[str, Any]]) -> tuple[Path, Path]:
    """Both files with these lines."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = directory / "sent.ndjson", directory / "received.ndjson"
    for path, lines in zip(paths, (sent, received), strict=True):
        path.unlink(missing_ok=True)
        with RecordFile(path) as file:
            file.write(lines)
    return paths


def _sent(history: History) -> Iterator[dict[str, Any]]:
    for producer in history.producers:
        columns = zip(producer.sent_at, producer.fate, producer.place, strict=True)
        for sequence, (sent_at, fate, place) in enumerate(columns):
            yield {
                "topic": producer.topic,
                "id": f"{producer.name}/{sequence}",
                "sequence": sequence,
                "time_ms": int((sent_at + history.epoch_s) * 1000),
                "acknowledged": fate == ACKNOWLEDGED,
                **({} if place == NOWHERE else {"partition": history.places[place].partition}),
            }


def _received(history: History) -> Iterator[dict[str, Any]]:
    for got in history.deliveries:
        for session, place, offset, message, at in zip(
            got.session, got.place, got.offset, got.message, got.at, strict=True
        ):
            yield {
                **_stored(history, place, offset, message),
                "time_ms": int((at + history.epoch_s) * 1000),
                "broker": got.node,
                "receiver": got.reader if got.all_of else f"{got.reader}-{session}",
            }
    for copy in history.copies:
        if history.places[copy.place].topic in history.foreign_topics:
            continue
        for offset, message in zip(copy.content.offsets, copy.content.messages, strict=True):
            yield {
                **_stored(history, copy.place, offset, message),
                "broker": copy.node,
                "receiver": f"log of {copy.node}",
            }


def _stored(history: History, place: int, offset: int, message: int) -> dict[str, Any]:
    where = history.places[place]
    line: dict[str, Any] = {"topic": where.topic, "id": history.named(message), "partition": where.partition}
    return line if offset == NOWHERE else {**line, "offset": offset}


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
