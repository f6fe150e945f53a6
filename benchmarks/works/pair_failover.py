"""How long subscribers of a pair wait when the primary goes, and what publishers feel while the primary computes.

A subscriber is connected to both brokers. At the moment the primary goes, a message is handed to the backup; the time
until the subscriber has it is what counts.
"""

import signal
import time
from contextlib import closing
from functools import partial
from statistics import median

from benchmarks.load import text
from benchmarks.load.wire import read_until
from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast
from benchmarks.peers.holdfast import Cluster
from benchmarks.works.cluster_failover import MEDIAN, WORST

TOPIC = "bench"
LINE = "Holdfast pair"
ACKNOWLEDGED = "Holdfast pair, acknowledgement"
HEARTBEAT = "Holdfast pair, heartbeat"
TIMES = {signal.SIGKILL: 20, signal.SIGSTOP: 5}
TIMES_QUICK = 1
HEARTBEAT_MS, HEARTBEAT_MS_QUICK = 1000, 200
ALIVE = b"HEARTBEAT_ACK\n"
COMPUTE_MS = "50:150"
RATE_HZ = 10
COMPUTED, COMPUTED_QUICK = 100, 5


def _until_delivered_s(pair: Cluster, how: signal.Signals) -> float:
    """From the signal to the primary until the subscriber has the next message, from the backup."""
    primary, backup = pair.leader(TOPIC), pair.follower(TOPIC)
    with closing(text.dial(backup.text_port)) as subscriber, closing(text.dial(backup.text_port)) as publisher:
        subscriber.settimeout(30)
        subscriber.sendall(b"SUBSCRIBE|%s\n" % TOPIC.encode())
        read_until(subscriber, text.SUBACK)
        sent_s = pair.end(primary, how)
        # With an id: it is sent again where it is not known what became of it.
        publisher.sendall(text.publish_id(TOPIC, "first", b"x" * 100))
        read_until(subscriber, b"\n")
        waited_s = time.monotonic() - sent_s
    if how != signal.SIGKILL:
        pair.end(primary, signal.SIGKILL)
    pair.reap(primary)
    return waited_s


def _failover(how: signal.Signals, settings: Settings) -> Measured:
    times = TIMES_QUICK if settings.quick else TIMES[how]
    heartbeat_ms = HEARTBEAT_MS_QUICK if settings.quick else HEARTBEAT_MS
    waits_s = []
    for _ in range(times):
        with holdfast.serve_pair(settings.directory, heartbeat_ms=heartbeat_ms) as pair:
            pair.create(TOPIC)
            waits_s.append(_until_delivered_s(pair, how))
    return Measured({MEDIAN: median(waits_s) * 1000, WORST: max(waits_s) * 1000}, f"{times} times")


def _while_computing(what: str, settings: Settings) -> Measured:
    """What a client waits for an answer while a message is computed all the time."""
    times = COMPUTED_QUICK if settings.quick else COMPUTED
    waits_s = []
    with holdfast.serve_pair(settings.directory, compute_ms=COMPUTE_MS) as pair:
        pair.create(TOPIC)
        port = pair.leader(TOPIC).text_port
        with closing(text.dial(port)) as publisher, closing(text.dial(port)) as asking:
            due_s = time.monotonic()
            for number in range(times):
                time.sleep(max(0.0, due_s - time.monotonic()))
                due_s += 1 / RATE_HZ
                began_s = time.monotonic()
                publisher.sendall(text.publish(TOPIC, number))
                asking.sendall(b"HEARTBEAT\n")
                read_until(*(publisher, text.PUBACK) if what == ACKNOWLEDGED else (asking, ALIVE))
                waits_s.append(time.monotonic() - began_s)
                read_until(*(asking, ALIVE) if what == ACKNOWLEDGED else (publisher, text.PUBACK))
    figures = {MEDIAN: median(waits_s) * 1000, WORST: max(waits_s) * 1000}
    return Measured(figures, f"{RATE_HZ} messages a second, {times} times")


def _work(name: str, title: str, how: signal.Signals) -> Work:
    return Work(
        name=name,
        title=title,
        figure=MEDIAN,
        reference=LINE,
        once=True,
        contenders=(Contender(LINE, holdfast.NAME, "--heartbeat-ms 1000 --misses 3", partial(_failover, how)),),
    )


KILL = _work(
    "pair-failover-kill", "A pair: from SIGKILL of the primary to the first delivery by the backup", signal.SIGKILL
)
SILENT = _work(
    "pair-failover-silent", "A pair: from SIGSTOP of the primary to the first delivery by the backup", signal.SIGSTOP
)
COMPUTING = Work(
    name="pair-computing",
    title="A pair that computes 50 to 150 ms for each message: what clients wait for an answer",
    figure=MEDIAN,
    reference=ACKNOWLEDGED,
    once=True,
    contenders=tuple(
        Contender(what, holdfast.NAME, f"--compute-ms {COMPUTE_MS}", partial(_while_computing, what))
        for what in (ACKNOWLEDGED, HEARTBEAT)
    ),
)
