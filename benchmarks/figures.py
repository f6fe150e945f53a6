"""What can be measured: how each figure is called in tables, its unit, and whether more of it is better."""

from dataclasses import dataclass
from typing import Final, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Kind:
    heading: str
    unit: str
    better: Better = "lower"


FIGURES: Final = {
    "msg_per_s": Kind("msg/s", "/s", "higher"),
    "mb_per_s": Kind("MB/s", "MB/s", "higher"),
    "replayed_per_s": Kind("stored again, msg/s", "/s", "higher"),
    "kept_pct": Kind("publisher keeps %", "%", "higher"),
    "cpu_s_per_million": Kind("CPU s / million", "s"),
    "cpu_us_per_msg": Kind("CPU µs / message", "µs"),
    "cpu_pct": Kind("CPU % of a core", "% of a core"),
    "p50_us": Kind("p50 µs", "µs"),
    "p99_us": Kind("p99 µs", "µs"),
    "p999_us": Kind("p99.9 µs", "µs"),
    "added_us": Kind("added µs", "µs"),
    "direct_p50_us": Kind("direct p50 µs", "µs"),
    "proxied_p50_us": Kind("proxied p50 µs", "µs"),
    "p50_ms": Kind("p50 ms", "ms"),
    "median_ms": Kind("median ms", "ms"),
    "worst_ms": Kind("worst ms", "ms"),
    "catch_up_s": Kind("seconds", "s"),
    "start_s": Kind("seconds", "s"),
    "rss_mb": Kind("resident MB", "MB"),
    "peak_mb": Kind("peak MB", "MB"),
}

_SHORT: Final = {
    "Redis Streams": "Redis",
    "Redis Streams, two cores": "Redis, two cores",
    "Redis Streams, 10 million messages": "Redis",
    "NATS JetStream R3": "NATS R3",
    "RabbitMQ quorum queue": "RabbitMQ",
    "Spark's Parquet reader": "Parquet",
    "Holdfast, to the leader": "the leader",
    "Holdfast, Python client": "Python client",
}


def short(contender: str) -> str:
    """How a line is called where others are compared with it."""
    return "equal values" if contender.endswith(", equal values") else _SHORT.get(contender, contender)
