"""What happened to a broker, its database and messages: counted from numbers and times, without a clock or a socket.

Messages of customer 2 are (2, 1), (2, 2), (2, 3), …; times are seconds since the first message was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.tally import Verdict, judge

BIN_S: Final = 0.25


class Answer(NamedTuple):
    """An acknowledged message: when it was sent and answered, and whether it had to wait for the database."""

    customer: int
    number: int
    sent_s: float
    at_s: float
    buffered: bool


class Mark(NamedTuple):
    """Something that was done to the broker or the database."""

    at_s: float
    label: str
    is_loss: bool


@dataclass
class OutageScore:
    """What happened so far; the view looks at it while the play goes on."""

    states: dict[str, str] = field(default_factory=lambda: {"broker": "starting", "database": "starting"})
    marks: list[Mark] = field(default_factory=list)
    sent: int = 0
    refused: int = 0
    answers: list[Answer] = field(default_factory=list)
    # What the database has at the end, by customer and in the order of its rows.
    stored: dict[int, list[int]] = field(default_factory=dict)
    # How many rows it has, while the play goes on.
    rows: int = 0
    replayed_s: float | None = None
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def buffered(self) -> int:
        return sum(answer.buffered for answer in self.answers)

    def judged(self) -> Verdict:
        """Order is promised for the messages of one customer, so each is judged by itself."""
        acknowledged: dict[int, list[int]] = {}
        for answer in self.answers:
            acknowledged.setdefault(answer.customer, []).append(answer.number)
        each = [
            judge(acknowledged.get(customer, ()), self.stored.get(customer, ()))
            for customer in acknowledged.keys() | self.stored.keys()
        ]
        return Verdict(*(sum(column) for column in zip(*each, strict=True))) if each else Verdict(0, 0, 0, 0)

    @property
    def is_flawless(self) -> bool:
        verdict = self.judged()
        return bool(self.answers) and not (verdict.lost or verdict.duplicated or verdict.out_of_order)

    @property
    def slowest_s(self) -> float:
        """The longest that a message waited for its acknowledgement, the time without a broker included."""
        return max((answer.at_s - answer.sent_s for answer in self.answers), default=0.0)

    def per_bin(self, *, buffered: bool) -> list[float]:
        """Acknowledgements of one kind, a number for each stretch of time."""
        last_s = max((answer.at_s for answer in self.answers), default=0.0)
        counts = [0.0] * (int(last_s / BIN_S) + 1)
        for answer in self.answers:
            if answer.buffered == buffered:
                counts[int(answer.at_s / BIN_S)] += 1
        return counts

    def verdict(self) -> dict[str, Any]:
        verdict = self.judged()
        return {
            "sent": self.sent,
            "acknowledged": len(self.answers),
            "buffered": self.buffered,
            "refused": self.refused,
            "stored": verdict.received,
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "out_of_order": verdict.out_of_order,
            "slowest_acknowledgement_ms": round(self.slowest_s * 1000),
            "replayed_ms": None if self.replayed_s is None else round(self.replayed_s * 1000),
            "happened_ms": {mark.label: round(mark.at_s * 1000) for mark in self.marks},
        }
