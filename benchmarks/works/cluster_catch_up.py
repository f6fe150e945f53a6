"""A node that was away gets what it missed, one that joins gets everything: how fast, and what publishers notice.

The publisher has a fixed rate, half of what the cluster took at full speed just before, so that there is
something left to be slowed down by and something to catch up with.
"""

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.load import batches, pipeline, steady
from benchmarks.load.background import background
from benchmarks.load.steady import Answers, Steady
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.peers.holdfast import Broker
from benchmarks.works.cluster_entries import MB_RATE

TIME = "catch_up_s"
KEPT = "kept_pct"

TOPIC = "bench"
MESSAGE_BYTES = 1_024
MESSAGES_PER_BATCH = 64
BATCHES_PER_REQUEST = 4
REQUEST_MESSAGES = MESSAGES_PER_BATCH * BATCHES_PER_REQUEST
REQUEST = batches.request(TOPIC, BATCHES_PER_REQUEST, MESSAGES_PER_BATCH, MESSAGE_BYTES)
MISSED_BYTES = 1_000_000_000
MISSED_BYTES_QUICK = 10_000_000
FILL_SECONDS_MAX = 170.0
BEFORE_S, BEFORE_S_QUICK = 5.0, 1.0
RATE_SHARE = 0.5

LINE = "Holdfast"


def _publish_steadily(load: Steady, seconds: float) -> float:
    """Requests a second that were acknowledged while nothing else happened."""
    with background(steady.run, load) as running:
        from_s = time.monotonic()
        time.sleep(seconds)
        until_s = time.monotonic()
        answers: Answers = running.stop()
    return answers.per_s(from_s, until_s)


class _Load(NamedTuple):
    """A publisher at half of what the cluster takes, and what it got while nothing else happened."""

    steady: Steady
    before_per_s: float


def _load(settings: Settings, leader: Broker) -> _Load:
    full = leader.http_pipeline(REQUEST, REQUEST_MESSAGES, 2, 4, settings.seconds)
    full_per_s = generate(settings, pipeline.run, full).per_s / REQUEST_MESSAGES
    load = Steady(leader.http_port, REQUEST, REQUEST_MESSAGES, full_per_s * RATE_SHARE)
    return _Load(load, _publish_steadily(load, BEFORE_S_QUICK if settings.quick else BEFORE_S))


def _fill(settings: Settings, leader: Broker) -> float:
    """Store what somebody else will have to get; how much that is, in GB."""
    wanted_bytes = MISSED_BYTES_QUICK if settings.quick else MISSED_BYTES
    fill = leader.http_pipeline(
        REQUEST, REQUEST_MESSAGES, 2, 4, FILL_SECONDS_MAX, messages_max=wanted_bytes // MESSAGE_BYTES
    )
    generate(settings, pipeline.run, fill)
    return wanted_bytes / 1e9


def _measured(load: _Load, get: Callable[[], int], what: str) -> Measured:
    """While the publisher goes on, somebody gets so many messages."""
    with background(steady.run, load.steady) as running:
        from_s = time.monotonic()
        messages = get()
        until_s = time.monotonic()
        answers: Answers = running.stop()
    during_per_s = answers.per_s(from_s, until_s)
    seconds = until_s - from_s
    figures = {
        TIME: seconds,
        MB_RATE: messages * MESSAGE_BYTES / 1e6 / seconds,
        KEPT: 100 * during_per_s / load.before_per_s,
    }
    request_mb = REQUEST_MESSAGES * MESSAGE_BYTES / 1e6
    note = (
        f"{what}, start of the process included; publisher sent "
        f"{load.steady.requests_per_s * request_mb:.0f} MB/s, got {load.before_per_s * request_mb:.0f} before, "
        f"{during_per_s * request_mb:.0f} meanwhile"
    )
    return Measured(figures, note)


def _run_catch_up(settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        cluster.create(TOPIC)
        leader, away = cluster.leader(TOPIC), cluster.follower(TOPIC)
        load = _load(settings, leader)
        had = cluster.wait_until_caught_up(away, TOPIC)
        cluster.end(away, signal.SIGTERM)
        cluster.reap(away)
        missed_gb = _fill(settings, leader)

        def get() -> int:
            cluster.start(away)
            return cluster.wait_until_caught_up(away, TOPIC) - had

        return _measured(load, get, f"{missed_gb:g} GB missed")


def _run_join(settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        newcomer = cluster.newcomer
        cluster.create(TOPIC)
        leader = cluster.leader(TOPIC)
        load = _load(settings, leader)
        filled_gb = _fill(settings, leader)

        def get() -> int:
            cluster.start(newcomer)
            cluster.wait_until_it_votes(newcomer)
            return cluster.wait_until_caught_up(newcomer, TOPIC)

        return _measured(load, get, f"{filled_gb:g} GB and more to copy")


CATCH_UP = Work(
    name="cluster-catch-up",
    title="Three nodes: a node that was away has everything again, under a publisher with a fixed rate",
    figure=TIME,
    reference=LINE,
    once=True,
    contenders=(Contender(LINE, holdfast.NAME, "1 KiB messages, 64 KiB batches", _run_catch_up),),
)

JOIN = Work(
    name="cluster-join",
    title="Three nodes: a fourth one joins, gets everything and votes, under a publisher with a fixed rate",
    figure=TIME,
    reference=LINE,
    once=True,
    contenders=(Contender(LINE, holdfast.NAME, "1 KiB messages, 64 KiB batches", _run_join),),
)
