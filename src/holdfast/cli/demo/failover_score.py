"""What happened to a pair and its messages: counted from numbers and times, without a clock or a socket.

Messages are 1, 2, 3, …; times are seconds since the first message was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.tally import Verdict, judge


class Arrival(NamedTuple):
    """A message at the subscriber, and the role of the broker it came from."""

    number: int
    at_s: float
    role: str


@dataclass
class FailoverScore:
    """What happened so far; the view looks at it while the play goes on."""

    states: dict[str, str] = field(default_factory=lambda: {"primary": "starting", "backup": "starting"})
    kill_s: float | None = None
    # When each message was sent.
    sent: dict[int, float] = field(default_factory=dict)
    acknowledged: list[int] = field(default_factory=list)
    refused: int = 0
    resent: int = 0
    switches: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    # Came a second time and were recognised by their ids.
    recognised: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    def judged(self) -> Verdict:
        return judge(self.acknowledged, [arrival.number for arrival in self.arrivals])

    @property
    def is_flawless(self) -> bool:
        verdict = self.judged()
        return not (verdict.lost or verdict.duplicated or verdict.out_of_order)

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which the subscriber got nothing."""
        return max((later.at_s - earlier.at_s for earlier, later in pairwise(self.arrivals)), default=0.0)

    @property
    def failover_s(self) -> float | None:
        """From the kill to the first message that the backup delivered."""
        if self.kill_s is None:
            return None
        first = next((arrival.at_s for arrival in self.arrivals if arrival.role == "backup"), None)
        return None if first is None else first - self.kill_s

    def delays_ms(self, role: str) -> list[tuple[float, float]]:
        """Of each message that came from there: when it came, and how long after it was sent."""
        return [
            (arrival.at_s, (arrival.at_s - self.sent.get(arrival.number, arrival.at_s)) * 1000)
            for arrival in self.arrivals
            if arrival.role == role
        ]

    def verdict(self) -> dict[str, Any]:
        verdict = self.judged()
        return {
            "sent": len(self.sent),
            "acknowledged": len(self.acknowledged),
            "refused": self.refused,
            "resent": self.resent,
            "switches": self.switches,
            "received": verdict.received,
            "received_from": {
                role: sum(arrival.role == role for arrival in self.arrivals) for role in ("primary", "backup")
            },
            "recognised": self.recognised,
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "out_of_order": verdict.out_of_order,
            "longest_gap_ms": round(self.longest_gap_s * 1000),
            "failover_ms": None if self.failover_s is None else round(self.failover_s * 1000),
        }
