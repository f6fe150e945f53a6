"""What a run came to: rates and percentiles, for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.quantities import bytes_text

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
# Neighbouring buckets differ by one percent, so that a percentile is right to half a percent.
_STEP: Final = math.log(1.01)


class Histogram:
    """Durations in buckets that grow with them: a billion take no more room than a thousand."""

    def __init__(self) -> None:
        self.count = 0
        self.max_s = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.count += 1
        self.max_s = max(self.max_s, seconds)
        self._buckets[round(math.log(max(seconds, 1e-9)) / _STEP)] += 1

    def quantile_s(self, share: float) -> float:
        """The duration that `share` of all are no longer than."""
        wanted = share * self.count
        seen = 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return min(math.exp(bucket * _STEP), self.max_s)
        return self.max_s

    def as_ms(self) -> dict[str, float]:
        shown = {name: self.quantile_s(share) * 1000 for name, share in PERCENTILES.items()}
        return {name: float(f"{value:.4g}") for name, value in {**shown, "max": self.max_s * 1000}.items()}


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages that went through, how long it took, and how long each request did."""

    messages: int
    seconds: float
    latencies: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run; `latencies` by what was waited for."""

    bench: str
    via: str
    topic: str
    size_bytes: int
    flow: Flow
    latencies: dict[str, Histogram]
    acknowledges_after_sync: bool | None
    shape: dict[str, int]

    @property
    def messages_per_s(self) -> float:
        return self.flow.messages / max(self.flow.seconds, 1e-9)

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "protocol": self.via,
            "topic": self.topic,
            "messages": self.flow.messages,
            "size_bytes": self.size_bytes,
            **self.shape,
            "seconds": round(self.flow.seconds, 6),
            "messages_per_s": round(self.messages_per_s, 1),
            "megabytes_per_s": round(self.messages_per_s * self.size_bytes / 1e6, 3),
            "latency_ms": {what: histogram.as_ms() for what, histogram in self.latencies.items()},
            "acknowledges_after_sync": self.acknowledges_after_sync,
        }


def show(result: Result) -> None:
    from holdfast.cli import output

    console = output.console()
    shape = ", ".join(f"{name} {value:,}" for name, value in result.shape.items())
    console.print(
        f"[bold]{result.bench}[/bold] over {result.via}: {result.flow.messages:,} messages of "
        f"{bytes_text(result.size_bytes)}{f' ({shape})' if shape else ''} in {result.flow.seconds:.2f} s"
    )
    rate = result.messages_per_s
    console.print(f"[green]{rate:,.0f} messages/s[/green], {rate * result.size_bytes / 1e6:,.1f} MB/s")
    if result.latencies:
        columns = ("ms", *PERCENTILES, "max")
        table = output.table(*columns, numbers=columns[1:])
        for what, histogram in result.latencies.items():
            table.add_row(what.replace("_", " "), *(f"{value:.3f}" for value in histogram.as_ms().values()))
        console.print(table)
    if result.acknowledges_after_sync is False:
        console.print("[yellow]This broker acknowledges before the disk has a message (--sync).[/yellow]")
