"""How long publishers wait when the leader is killed, and when it is asked to stop.

The node is started again and has everything before the next one goes.
"""

import signal
import time
from functools import partial
from statistics import median

from benchmarks.load import failover
from benchmarks.load.background import Generator, background
from benchmarks.load.failover import Addresses, Publishes
from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast
from benchmarks.peers.holdfast import Broker, Cluster
from benchmarks.works.publish import verify

MEDIAN = "median_ms"
WORST = "worst_ms"

TOPIC = "bench"
TIMES = {signal.SIGKILL: 50, signal.SIGTERM: 20}
TIMES_SHORT = 10
TIMES_QUICK = 1
# The others have the machine for themselves this long before the node is started again.
AWAY_S, AWAY_S_QUICK = 1.0, 0.2
SETTLE_S, SETTLE_S_QUICK = 1.0, 0.2

PYTHON_CLIENT = "Holdfast, Python client"
TEXT_LINES = "Holdfast, text lines"

Client = Generator[Addresses, Publishes]


def _end_and_bring_back(cluster: Cluster, leader: Broker, how: signal.Signals, away_s: float) -> tuple[float, float]:
    """When the signal was sent, and when the process had ended."""
    sent_s = cluster.end(leader, how)
    cluster.reap(leader)
    ended_s = time.monotonic()
    time.sleep(away_s)
    cluster.leader(TOPIC)
    cluster.start(leader)
    cluster.wait_until_ready(leader)
    cluster.wait_until_caught_up(leader, TOPIC)
    return sent_s, ended_s


def _run(how: signal.Signals, client: Client, settings: Settings) -> Measured:
    times = TIMES_QUICK if settings.quick else TIMES_SHORT if settings.short else TIMES[how]
    away_s = AWAY_S_QUICK if settings.quick else AWAY_S
    settle_s = SETTLE_S_QUICK if settings.quick else SETTLE_S
    with holdfast.serve_cluster(settings.directory) as cluster:
        cluster.create(TOPIC)
        nodes = cluster.nodes
        addresses = Addresses(TOPIC, tuple(node.text_port for node in nodes), tuple(node.http_port for node in nodes))
        moments = []
        with background(client, addresses) as load:
            time.sleep(settle_s)
            for _ in range(times):
                moments.append(_end_and_bring_back(cluster, cluster.leader(TOPIC), how, away_s))
                time.sleep(settle_s)
                load.check()
            publishes = load.stop()
        # Every id was sent until it was acknowledged, some of them twice: there are as many messages as ids.
        verify(cluster.stored(TOPIC), len(publishes))
    if how == signal.SIGKILL:
        waits_s = [publishes.next_after(sent_s) for sent_s, _ in moments]
    else:
        # A leader that ends in order still answers for a while.
        waits_s = [publishes.longest_silence(sent_s, ended_s + away_s) for sent_s, ended_s in moments]
    figures = {MEDIAN: median(waits_s) * 1000, WORST: max(waits_s) * 1000}
    return Measured(figures, f"{times} times, {len(publishes):,} messages, as many stored")


def _work(name: str, title: str, how: signal.Signals) -> Work:
    return Work(
        name=name,
        title=title,
        figure=MEDIAN,
        reference=PYTHON_CLIENT,
        once=True,
        contenders=(
            Contender(PYTHON_CLIENT, holdfast.NAME, "all addresses", partial(_run, how, failover.by_python_client)),
            Contender(TEXT_LINES, holdfast.NAME, "all addresses", partial(_run, how, failover.by_text)),
        ),
    )


KILL = _work(
    "cluster-failover-kill",
    "Three nodes: from SIGKILL of the leader to the next acknowledged publish",
    signal.SIGKILL,
)
TERM = _work(
    "cluster-failover-term",
    "Three nodes: the longest silence between acknowledgements around SIGTERM of the leader",
    signal.SIGTERM,
)
