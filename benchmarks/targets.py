"""What Holdfast promises about its speed, and whether a run kept it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.measure import WorkResult


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run: which work, whose line, which figure."""

    work: str
    contender: str
    figure: str


@dataclass(frozen=True, slots=True)
class Target:
    """Ours, or ours divided by theirs, must be at least or at most the limit.

    Where there are two ways to do the work, `or_contender` names the other one, and the better one counts.
    """

    name: str
    text: str
    ours: Figure
    theirs: Figure | None
    sense: Literal["at least", "at most"]
    limit: float
    unit: str
    or_contender: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`passed` is None when nothing was judged; `reason` says why.

    A verdict must hold for the medians and for the best rounds. Where the two disagree, somebody else's
    work on the machine decided, and neither pass nor miss would be true.
    """

    target: Target
    ours: float | None
    theirs: float | None
    measured: float | None
    measured_best: float | None
    passed: bool | None
    reason: str = ""


_REDIS = "Redis Streams"
_RATIO = "× Redis"

TARGETS: tuple[Target, ...] = (
    Target(
        "text-durable",
        "text publish, fsync, against Redis always",
        Figure("publish-durable", "Holdfast text", "msg_per_s"),
        Figure("publish-durable", _REDIS, "msg_per_s"),
        "at least",
        4.0,
        _RATIO,
    ),
    Target(
        "text-nosync",
        "text publish, no fsync, against Redis everysec",
        Figure("publish-nosync", "Holdfast text", "msg_per_s"),
        Figure("publish-nosync", _REDIS, "msg_per_s"),
        "at least",
        3.0,
        _RATIO,
    ),
    Target(
        "http-durable",
        "HTTP publish, 1,000 a request, fsync, against Redis always",
        Figure("publish-durable", "Holdfast HTTP", "msg_per_s"),
        Figure("publish-durable", _REDIS, "msg_per_s"),
        "at least",
        2.0,
        _RATIO,
    ),
    Target(
        "read",
        "read back in bulk, counted, against XREAD",
        Figure("read", "Holdfast", "msg_per_s"),
        Figure("read", _REDIS, "msg_per_s"),
        "at least",
        3.0,
        _RATIO,
    ),
    Target(
        "read-values",
        "read back in bulk, values in Python, against XREAD with hiredis",
        Figure("read-values", "Holdfast", "msg_per_s"),
        Figure("read-values", _REDIS, "msg_per_s"),
        "at least",
        3.0,
        _RATIO,
    ),
    Target(
        "latency-nosync",
        "one message at a time, no fsync, one core, p50 against Redis",
        Figure("latency-nosync", "Holdfast text", "p50_us"),
        Figure("latency-nosync", _REDIS, "p50_us"),
        "at most",
        1.5,
        _RATIO,
    ),
    Target(
        "latency-nosync-two-cores",
        "one message at a time, no fsync, two cores, p50 against Redis",
        Figure("latency-nosync", "Holdfast text, two cores", "p50_us"),
        Figure("latency-nosync", "Redis Streams, two cores", "p50_us"),
        "at most",
        1.5,
        _RATIO,
    ),
    Target(
        "cpu-text",
        "broker CPU, a million messages as text lines",
        Figure("publish-durable", "Holdfast text", "cpu_s_per_million"),
        None,
        "at most",
        0.6,
        "s",
    ),
    Target(
        "cpu-http",
        "broker CPU, a million messages over HTTP",
        Figure("publish-durable", "Holdfast HTTP", "cpu_s_per_million"),
        None,
        "at most",
        1.0,
        "s",
    ),
    Target(
        "memory-messages",
        "resident memory after 10 million messages",
        Figure("memory", "Holdfast, 10 million messages", "rss_mb"),
        None,
        "at most",
        200.0,
        "MB",
    ),
    Target(
        "memory-stalled",
        "resident memory with 100 stalled subscribers",
        Figure("memory", "Holdfast, 100 stalled subscribers", "rss_mb"),
        None,
        "at most",
        200.0,
        "MB",
    ),
    Target(
        "cluster-publish-nats",
        "three nodes, publish 100-byte messages, against NATS R3",
        Figure("cluster-publish", "Holdfast text", "msg_per_s"),
        Figure("cluster-publish", "NATS JetStream R3", "msg_per_s"),
        "at least",
        10.0,
        "× NATS R3",
        or_contender="Holdfast HTTP batches",
    ),
    Target(
        "cluster-publish-rabbitmq",
        "three nodes, publish 100-byte messages, against RabbitMQ quorum",
        Figure("cluster-publish", "Holdfast text", "msg_per_s"),
        Figure("cluster-publish", "RabbitMQ quorum queue", "msg_per_s"),
        "at least",
        30.0,
        "× RabbitMQ",
        or_contender="Holdfast HTTP batches",
    ),
    Target(
        "cluster-entries",
        "three nodes, 1 KiB entries",
        Figure("cluster-entries", "Holdfast", "msg_per_s"),
        None,
        "at least",
        40_000.0,
        "/s",
    ),
    Target(
        "cluster-bulk",
        "three nodes, batches of 64 KiB",
        Figure("cluster-bulk", "Holdfast", "mb_per_s"),
        None,
        "at least",
        150.0,
        "MB/s",
    ),
    Target(
        "cluster-latency",
        "three nodes, one message at a time, p50",
        Figure("cluster-latency", "Holdfast, to the leader", "p50_us"),
        None,
        "at most",
        2_000.0,
        "µs",
    ),
    Target(
        "cluster-failover-kill",
        "leader killed, median until the next acknowledgement",
        Figure("cluster-failover-kill", "Holdfast, Python client", "median_ms"),
        None,
        "at most",
        1_000.0,
        "ms",
    ),
    Target(
        "cluster-failover-kill-worst",
        "leader killed, the worst of all",
        Figure("cluster-failover-kill", "Holdfast, Python client", "worst_ms"),
        None,
        "at most",
        2_000.0,
        "ms",
    ),
    Target(
        "cluster-failover-term",
        "leader stopped, the longest silence of all",
        Figure("cluster-failover-term", "Holdfast, Python client", "worst_ms"),
        None,
        "at most",
        150.0,
        "ms",
    ),
    Target(
        "cluster-catch-up",
        "publisher while a node catches up, of its rate before",
        Figure("cluster-catch-up", "Holdfast", "kept_pct"),
        None,
        "at least",
        66.7,
        "%",
    ),
    Target(
        "cluster-join",
        "publisher while a fourth node joins, of its rate before",
        Figure("cluster-join", "Holdfast", "kept_pct"),
        None,
        "at least",
        66.7,
        "%",
    ),
    Target(
        "cluster-idle-cpu",
        "1,000 idle partitions, processor of a node",
        Figure("cluster-idle", "Holdfast", "cpu_pct"),
        None,
        "at most",
        10.0,
        "% of a core",
    ),
    Target(
        "cluster-idle-memory",
        "1,000 idle partitions, resident memory of a node",
        Figure("cluster-idle", "Holdfast", "rss_mb"),
        None,
        "at most",
        300.0,
        "MB",
    ),
    Target(
        "queue-append",
        "three nodes, numbered queues, one append a request, 32 clients",
        Figure("queue-append", "Holdfast", "msg_per_s"),
        None,
        "at least",
        5_000.0,
        "/s",
    ),
    Target(
        "queue-read",
        "three nodes, numbered queues, one read a request, 32 clients",
        Figure("queue-read", "Holdfast, one pointer for all clients", "msg_per_s"),
        None,
        "at least",
        5_000.0,
        "/s",
    ),
    Target(
        "queue-read-own",
        "the same, a pointer for each client",
        Figure("queue-read", "Holdfast, a pointer for each client", "msg_per_s"),
        None,
        "at least",
        5_000.0,
        "/s",
    ),
    Target(
        "proxy",
        "one append at a time, what a proxy adds to the p50",
        Figure("proxy", "Holdfast behind its proxy", "added_us"),
        None,
        "at most",
        300.0,
        "µs",
    ),
    Target(
        "pair-publish",
        "pair, 100-byte messages, pipelined",
        Figure("pair-publish", "Holdfast pair, on disk", "msg_per_s"),
        None,
        "at least",
        300_000.0,
        "/s",
    ),
    Target(
        "pair-latency",
        "pair on disk, one message at a time, p50",
        Figure("pair-latency", "Holdfast pair, on disk", "p50_us"),
        None,
        "at most",
        2_000.0,
        "µs",
    ),
    Target(
        "pair-latency-memory",
        "pair in memory, one message at a time, p50",
        Figure("pair-latency", "Holdfast pair, in memory", "p50_us"),
        None,
        "at most",
        300.0,
        "µs",
    ),
    Target(
        "pair-failover-kill",
        "pair, primary killed, the worst until the next delivery",
        Figure("pair-failover-kill", "Holdfast pair", "worst_ms"),
        None,
        "at most",
        100.0,
        "ms",
    ),
    Target(
        "pair-failover-silent",
        "pair, primary silent, the worst until the next delivery",
        Figure("pair-failover-silent", "Holdfast pair", "worst_ms"),
        None,
        "at most",
        3_100.0,
        "ms",
    ),
    Target(
        "pair-computing",
        "pair that computes, the slowest acknowledgement",
        Figure("pair-computing", "Holdfast pair, acknowledgement", "worst_ms"),
        None,
        "at most",
        20.0,
        "ms",
    ),
    Target(
        "pair-computing-heartbeat",
        "pair that computes, the slowest heartbeat",
        Figure("pair-computing", "Holdfast pair, heartbeat", "worst_ms"),
        None,
        "at most",
        20.0,
        "ms",
    ),
    Target(
        "postgres-push-1000",
        "push over a PostgreSQL, 1,000 a request, each with a transaction id",
        Figure("postgres-push-1000", "Holdfast over PostgreSQL", "msg_per_s"),
        None,
        "at least",
        100_000.0,
        "/s",
    ),
    Target(
        "postgres-push-1",
        "push over a PostgreSQL, one a request, 64 connections",
        Figure("postgres-push-1", "Holdfast over PostgreSQL", "msg_per_s"),
        None,
        "at least",
        10_000.0,
        "/s",
    ),
    Target(
        "postgres-push-away",
        "push while the PostgreSQL is away, 1,000 a request, synced",
        Figure("postgres-push-away", "Holdfast over PostgreSQL", "msg_per_s"),
        None,
        "at least",
        300_000.0,
        "/s",
    ),
    Target(
        "postgres-replay",
        "stored again when it is back",
        Figure("postgres-push-away", "Holdfast over PostgreSQL", "replayed_per_s"),
        None,
        "at least",
        100_000.0,
        "/s",
    ),
    Target(
        "spark-source-count",
        "Spark counts a topic of 200-byte messages",
        Figure("spark-source-count", "Holdfast source", "msg_per_s"),
        None,
        "at least",
        500_000.0,
        "/s",
    ),
    Target(
        "spark-source-count-parquet",
        "Spark counts a topic, against the same rows in Parquet",
        Figure("spark-source-count", "Holdfast source", "msg_per_s"),
        Figure("spark-source-count", "Spark's Parquet reader", "msg_per_s"),
        "at least",
        0.5,
        "× Parquet",
    ),
    Target(
        "spark-source-parquet",
        "Spark streams a topic to Parquet, availableNow",
        Figure("spark-source-parquet", "Holdfast source", "msg_per_s"),
        None,
        "at least",
        200_000.0,
        "/s",
    ),
    Target(
        "spark-sink",
        "Spark writes rows to a topic, exactly once",
        Figure("spark-sink", "Holdfast sink", "msg_per_s"),
        None,
        "at least",
        250_000.0,
        "/s",
    ),
    Target(
        "spark-microbatch",
        "a micro-batch, p50",
        Figure("spark-microbatch", "Holdfast source", "p50_ms"),
        None,
        "at most",
        300.0,
        "ms",
    ),
    Target(
        "spark-start",
        "driver start to first row, warm class archive",
        Figure("spark-start", "Holdfast source", "start_s"),
        None,
        "at most",
        6.0,
        "s",
    ),
)


def judge(results: Iterable[WorkResult], objection: str = "") -> list[Verdict]:
    """A verdict on every target whose work was run, in the order of the targets.

    With an `objection` to the whole run there are figures, but no pass and no miss.
    """
    by_name = {result.work.name: result for result in results}
    return [_judge(target, by_name, objection) for target in TARGETS if target.ours.work in by_name]


def _judge(target: Target, results: dict[str, WorkResult], objection: str) -> Verdict:
    ours, ours_best, problem = _look_up_better(target, results)
    theirs: float | None = None
    theirs_best: float | None = None
    if target.theirs is not None and not problem:
        theirs, theirs_best, problem = _look_up(target.theirs, results)
    if ours is None or (target.theirs is not None and not theirs):
        return Verdict(target, ours, theirs, None, None, None, problem)
    measured = ours / theirs if theirs else ours
    # A figure that stands alone has nothing to be disturbed differently from.
    measured_best = ours_best / theirs_best if ours_best and theirs_best else measured
    if objection:
        return Verdict(target, ours, theirs, measured, measured_best, None, objection)
    kept, kept_best = _keeps(target, measured), _keeps(target, measured_best)
    if kept != kept_best:
        reason = f"unsteady: {measured:.2f} by medians, {measured_best:.2f} by best rounds"
        return Verdict(target, ours, theirs, measured, measured_best, None, reason)
    return Verdict(target, ours, theirs, measured, measured_best, kept)


def _keeps(target: Target, measured: float) -> bool:
    return measured >= target.limit if target.sense == "at least" else measured <= target.limit


def _look_up_better(target: Target, results: dict[str, WorkResult]) -> tuple[float | None, float | None, str]:
    """Our figure; of two lines that of the better one, by medians."""
    found = _look_up(target.ours, results)
    if not target.or_contender:
        return found
    other = _look_up(replace(target.ours, contender=target.or_contender), results)
    if found[0] is None or other[0] is None:
        return found if other[0] is None else other
    prefer = max if target.sense == "at least" else min
    return prefer(found, other, key=lambda one: one[0] or 0.0)


def _look_up(figure: Figure, results: dict[str, WorkResult]) -> tuple[float | None, float | None, str]:
    """Median and best round of a figure, or why there are none."""
    result = results.get(figure.work)
    line = result.line(figure.contender) if result else None
    if result is None or line is None:
        return None, None, f"{figure.work} was not run"
    value, best = line.median(figure.figure), line.best(figure.figure, result.work.better)
    return value, best, "" if value is not None else f"{figure.contender}: {line.problem or 'no figures'}"
