"""Record files of a long run, for `holdfast pipeline audit`, as `chaos.records` has them of a short one.

Times of a ledger are of a monotonic clock; `epoch_s` is what to add to make them times of day.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.mixed.ledger import ACKNOWLEDGED, NOWHERE, Ledger
from chaos.records import written


def write(ledger: Ledger, directory: Path, epoch_s: float) -> tuple[Path, Path]:
    """`sent.ndjson` and `received.ndjson` in a directory."""
    return written(directory, _sent(ledger, epoch_s), _received(ledger, epoch_s))


def _sent(ledger: Ledger, epoch_s: float) -> Iterator[dict[str, Any]]:
    for producer in ledger.producers:
        columns = zip(producer.sent_at, producer.fate, producer.place, strict=True)
        for sequence, (sent_at, fate, place) in enumerate(columns):
            yield {
                "topic": producer.topic,
                "id": f"{producer.name}/{sequence}",
                "sequence": sequence,
                "time_ms": int((sent_at + epoch_s) * 1000),
                "acknowledged": fate == ACKNOWLEDGED,
                **({} if place == NOWHERE else {"partition": ledger.places[place].partition}),
            }


def _received(ledger: Ledger, epoch_s: float) -> Iterator[dict[str, Any]]:
    for book in ledger.deliveries:
        columns = zip(book.session, book.place, book.offset, book.message, book.at, strict=True)
        for session, place, offset, message, at in columns:
            yield {
                "topic": ledger.places[place].topic,
                "id": ledger.named(message),
                "time_ms": int((at + epoch_s) * 1000),
                "broker": book.node,
                "receiver": f"{book.reader}-{session}",
                "partition": ledger.places[place].partition,
                "offset": offset,
            }
