"""What Holdfast promises about its speed, and whether a run kept it."""

from collections.abc import Iterable
from dataclasses import dataclass
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
    """Ours, or ours divided by theirs, must be at least or at most the limit."""

    name: str
    text: str
    ours: Figure
    theirs: Figure | None
    sense: Literal["at least", "at most"]
    limit: float
    unit: str


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
)


def judge(results: Iterable[WorkResult], objection: str = "") -> list[Verdict]:
    """A verdict on every target whose work was run, in the order of the targets.

    With an `objection` to the whole run there are figures, but no pass and no miss.
    """
    by_name = {result.work.name: result for result in results}
    return [_judge(target, by_name, objection) for target in TARGETS if target.ours.work in by_name]


def _judge(target: Target, results: dict[str, WorkResult], objection: str) -> Verdict:
    ours, ours_best, problem = _look_up(target.ours, results)
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


def _look_up(figure: Figure, results: dict[str, WorkResult]) -> tuple[float | None, float | None, str]:
    """Median and best round of a figure, or why there are none."""
    result = results.get(figure.work)
    line = result.line(figure.contender) if result else None
    if result is None or line is None:
        return None, None, f"{figure.work} was not run"
    value, best = line.median(figure.figure), line.best(figure.figure, result.work.better)
    return value, best, "" if value is not None else f"{figure.contender}: {line.problem or 'no figures'}"
