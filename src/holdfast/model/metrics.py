"""One measured value and its name, in the words of Prometheus but bound to no library.

Whoever counts keeps plain integers and hands them out as a list of these when somebody asks; nothing
is registered anywhere, so counting costs an addition and two brokers in one process do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

MetricType = Literal["counter", "gauge"]

# A series for each topic, cursor and partition is what a person can look at; ten thousand are a slow answer.
SERIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A counter's name ends in `_total`; a unit stands last in the name (`_bytes`, `_seconds`)."""

    name: str
    help: str
    type: MetricType
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


MetricsSource = Callable[[], Sequence[Metric]]


def metric(kind: MetricType, name: str, text: str, value: float, **labels: str) -> Metric:
    """One of the broker's own."""
    return Metric(name=f"holdfast_{name}", help=text, type=kind, value=value, labels=labels)
