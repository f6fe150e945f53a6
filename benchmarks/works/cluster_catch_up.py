"""A node that was away gets what it missed: how fast, and what publishers notice of it.

The publisher has a fixed rate, half of what the cluster took at full speed just before, so that there is
something left to be slowed down by and something to catch up with.
"""

import signal
import time

from benchmarks.load import batches, pipeline, steady
from benchmarks.load.background import background
from benchmarks.load.steady import Answers, Steady
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, holdfast_cluster
from benchmarks.works.cluster_entries import MB_RATE

TIME = "catch_up_s"
KEPT = "kept_pct"

TOPIC = "bench"
MESSAGE_BYTES = 1_024
MESSAGES_PER_BATCH = 64
BATCHES_PER_REQUEST = 4
REQUEST_MESSAGES = MESSAGES_PER_BATCH * BATCHES_PER_REQUEST
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


def _run(settings: Settings) -> Measured:
    missed_bytes = MISSED_BYTES_QUICK if settings.quick else MISSED_BYTES
    request = batches.request(TOPIC, BATCHES_PER_REQUEST, MESSAGES_PER_BATCH, MESSAGE_BYTES)
    with holdfast_cluster.serve(settings.directory) as cluster:
        cluster.create(TOPIC)
        leader, away = cluster.leader(TOPIC), cluster.follower(TOPIC)
        full = leader.batches_pipeline(request, REQUEST_MESSAGES, 2, 4, settings.seconds)
        full_per_s = generate(settings, pipeline.run, full).per_s / REQUEST_MESSAGES
        load = Steady(leader.http_port, request, REQUEST_MESSAGES, full_per_s * RATE_SHARE)
        before_per_s = _publish_steadily(load, BEFORE_S_QUICK if settings.quick else BEFORE_S)

        had = cluster.wait_until_caught_up(away, TOPIC)
        cluster.end(away, signal.SIGTERM)
        cluster.reap(away)
        fill = leader.batches_pipeline(
            request, REQUEST_MESSAGES, 2, 4, FILL_SECONDS_MAX, messages_max=missed_bytes // MESSAGE_BYTES
        )
        generate(settings, pipeline.run, fill)
        with background(steady.run, load) as running:
            from_s = time.monotonic()
            cluster.start(away)
            has = cluster.wait_until_caught_up(away, TOPIC)
            until_s = time.monotonic()
            answers: Answers = running.stop()
    during_per_s = answers.per_s(from_s, until_s)
    seconds = until_s - from_s
    figures = {
        TIME: seconds,
        MB_RATE: (has - had) * MESSAGE_BYTES / 1e6 / seconds,
        KEPT: 100 * during_per_s / before_per_s,
    }
    request_mb = REQUEST_MESSAGES * MESSAGE_BYTES / 1e6
    note = (
        f"{missed_bytes / 1e9:g} GB missed, start of the process included; publisher sent "
        f"{load.requests_per_s * request_mb:.0f} MB/s, got {before_per_s * request_mb:.0f} before, "
        f"{during_per_s * request_mb:.0f} meanwhile"
    )
    return Measured(figures, note)


CATCH_UP = Work(
    name="cluster-catch-up",
    title="Three nodes: a node that was away has everything again, under a publisher with a fixed rate",
    figure=TIME,
    better="lower",
    reference=LINE,
    once=True,
    contenders=(Contender(LINE, holdfast.NAME, "1 KiB messages, 64 KiB batches", _run),),
)
