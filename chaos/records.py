"""Record files of a run, for `holdfast pipeline audit`; `holdfast.client.records` has the format.

`id` is the message's own name, `<producer>/<sequence>`, also where it was published without an id. A session of a
reader is a receiver: the next one begins where it wants. So is what each node serves when everything is over, `log of
n1`: readers may not have come to the end by then, and what was acknowledged must be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chaos.history import History
from holdfast.client.records import RecordFile


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
    for sent in history.sent:
        yield {
            "topic": sent.topic,
            "id": sent.value,
            "sequence": sent.sequence,
            "time_ms": sent.sent_ms,
            "acknowledged": sent.fate == "acknowledged",
            **({} if sent.place is None else {"partition": sent.place.partition}),
        }


def _received(history: History) -> Iterator[dict[str, Any]]:
    for seen in history.seen:
        yield {
            "topic": seen.place.topic,
            "id": seen.value,
            "sequence": int(seen.value.rpartition("/")[2]),
            "time_ms": seen.at_ms,
            "broker": seen.node,
            "receiver": f"{seen.reader}-{seen.session}",
            "partition": seen.place.partition,
            "offset": seen.offset,
        }
    for one in history.served:
        for record in one.records:
            yield {
                "topic": one.place.topic,
                "id": record.value,
                "broker": one.node,
                "receiver": f"log of {one.node}",
                "partition": one.place.partition,
                "offset": record.offset,
            }


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
