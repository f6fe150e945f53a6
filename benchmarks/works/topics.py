"""What many topics cost: as many writers, each with one message under way, on one topic or on one each.

The writers alone make a message wait longer, whatever it is written to. So every number of topics stands
beside as many writers on a single topic: the difference is what the topics cost.
"""

from functools import partial

from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast, redis
from benchmarks.works.latency import P50, holdfast_text, redis_streams

COUNTS = (1, 16, 64)


def _names(writers: int, shared: bool) -> list[str]:
    return [f"t{0 if shared else number}" for number in range(writers)]


def _holdfast(writers: int, shared: bool, settings: Settings) -> Measured:
    return holdfast_text("group", _names(writers, shared), "any core", settings)


def _redis(writers: int, settings: Settings) -> Measured:
    return redis_streams("always", _names(writers, shared=False), "any core", settings)


def _ours(count: int) -> str:
    return f"Holdfast, {count} topic{'s' if count > 1 else ''}"


def _one_topic(count: int) -> str:
    return f"Holdfast, {count} writers, 1 topic" if count > 1 else _ours(1)


def _theirs(count: int) -> str:
    return f"Redis, {count} stream{'s' if count > 1 else ''}"


def _contenders() -> tuple[Contender, ...]:
    lines = []
    for count in COUNTS:
        run = partial(_holdfast, count, False)
        lines.append(Contender(_ours(count), holdfast.NAME, "--sync group", run, against=_one_topic(count)))
        if count > 1:
            shared_run = partial(_holdfast, count, True)
            lines.append(
                Contender(_one_topic(count), holdfast.NAME, "--sync group", shared_run, against=_theirs(count))
            )
        redis_run = partial(_redis, count)
        lines.append(Contender(_theirs(count), redis.NAME, "appendfsync always", redis_run, against=_theirs(count)))
    return tuple(lines)


TOPICS = Work(
    name="topics",
    title="One message at a time on each of many topics",
    figure=P50,
    reference=_ours(1),
    contenders=_contenders(),
)
