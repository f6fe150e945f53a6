"""What happened to a cluster and its messages: counted from numbers and times, without a clock or a socket.

Publisher 2's seventh message is the pair (2, 7). Times are seconds since the first message was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.tally import Verdict, judge

BIN_S: Final = 0.1


@dataclass
class Reader:
    """One subscriber: what came, by publisher and in order, and when."""

    name: str
    received: dict[int, list[int]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)

    def take(self, publisher: int, number: int, at_s: float) -> None:
        self.received.setdefault(publisher, []).append(number)
        self.times.append(at_s)


@dataclass
class ClusterScore:
    """What happened so far; the view looks at it while the play goes on."""

    nodes: dict[str, str] = field(default_factory=dict)
    leader: str | None = None
    killed: str | None = None
    kill_s: float | None = None
    back_s: float | None = None
    sent: int = 0
    refused: int = 0
    acknowledged: dict[int, list[int]] = field(default_factory=dict)
    # Of each acknowledgement: when the message was sent, and when the answer came.
    acks: list[tuple[float, float]] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def acknowledge(self, publisher: int, number: int, sent_s: float, at_s: float) -> None:
        self.acknowledged.setdefault(publisher, []).append(number)
        self.acks.append((sent_s, at_s))

    def judged(self, reader: Reader) -> Verdict:
        """Order is promised for the messages of one publisher, so each is judged by itself."""
        each = [
            judge(self.acknowledged.get(publisher, ()), reader.received.get(publisher, ()))
            for publisher in self.acknowledged.keys() | reader.received.keys()
        ]
        return Verdict(*(sum(column) for column in zip(*each, strict=True))) if each else Verdict(0, 0, 0, 0)

    @property
    def lost(self) -> int:
        return sum(self.judged(reader).lost for reader in self.readers)

    @property
    def is_flawless(self) -> bool:
        verdicts = [self.judged(reader) for reader in self.readers]
        return not any(verdict.lost or verdict.duplicated or verdict.out_of_order for verdict in verdicts)

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which nobody got an acknowledgement."""
        times = sorted(at_s for _, at_s in self.acks)
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    @property
    def failover_s(self) -> float | None:
        """From the kill to the first acknowledgement of a message that was sent after it."""
        if self.kill_s is None:
            return None
        after = [at_s for sent_s, at_s in self.acks if sent_s >= self.kill_s]
        return min(after) - self.kill_s if after else None

    def verdict(self) -> dict[str, Any]:
        verdicts = {reader.name: self.judged(reader) for reader in self.readers}
        return {
            "nodes": len(self.nodes),
            "killed": self.killed,
            "sent": self.sent,
            "acknowledged": len(self.acks),
            "refused": self.refused,
            "received": min((verdict.received for verdict in verdicts.values()), default=0),
            "lost": sum(verdict.lost for verdict in verdicts.values()),
            "duplicated": sum(verdict.duplicated for verdict in verdicts.values()),
            "out_of_order": sum(verdict.out_of_order for verdict in verdicts.values()),
            "longest_gap_ms": round(self.longest_gap_s * 1000),
            "failover_ms": None if self.failover_s is None else round(self.failover_s * 1000),
            "readers": {name: verdict._asdict() for name, verdict in verdicts.items()},
        }

    # --- over time --------------------------------------------------------------------------------

    def acknowledged_per_bin(self) -> list[float]:
        return binned([at_s for _, at_s in self.acks], self._bins)

    def received_per_bin(self) -> list[float]:
        """The mean of the readers."""
        times = [at_s for reader in self.readers for at_s in reader.times]
        return [count / max(1, len(self.readers)) for count in binned(times, self._bins)]

    @property
    def _bins(self) -> int:
        latest = max((at_s for _, at_s in self.acks), default=0.0)
        return int(max([latest, *(reader.times[-1] for reader in self.readers if reader.times)]) / BIN_S) + 1


def binned(times: Sequence[float], bins: int) -> list[float]:
    """How many of them fall into each tenth of a second."""
    counts = [0.0] * bins
    for at_s in times:
        counts[min(bins - 1, max(0, int(at_s / BIN_S)))] += 1
    return counts
