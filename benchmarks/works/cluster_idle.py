"""What partitions cost while nobody uses them: processor time and memory of each node."""

import time

from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast, wait_for
from benchmarks.peers.holdfast import Cluster
from benchmarks.works.memory import RSS

CPU_SHARE = "cpu_pct"

TOPICS, TOPICS_QUICK = 10, 2
PARTITIONS, PARTITIONS_QUICK = 100, 10
SECONDS, SECONDS_QUICK = 10.0, 2.0
LEADERS_TIMEOUT_S = 120.0
# Settled is who has used about as much in two looks, one after the other.
LOOK_S = 2.0
STEADY_DIFFERENCE_PCT = 1.0
SETTLE_S_MAX, SETTLE_S_MAX_QUICK = 60.0, 0.0

LINE = "Holdfast"


def _all_led(cluster: Cluster) -> bool | None:
    """Whether every node knows a leader of every partition."""
    for node in cluster.nodes:
        for topic in node.ask("/v1/topics")["topics"]:
            if any(partition["leader"] is None for partition in topic["partitions"]):
                return None
    return True


def _cpu_pct(cluster: Cluster, seconds: float) -> list[float]:
    """Of a core, for each node, during the next seconds."""
    before_s, start_s = [node.server.cpu_s() for node in cluster.nodes], time.monotonic()
    time.sleep(seconds)
    after_s, passed_s = [node.server.cpu_s() for node in cluster.nodes], time.monotonic() - start_s
    return [100 * (after - before) / passed_s for before, after in zip(before_s, after_s, strict=True)]


def _settle(cluster: Cluster, seconds_max: float) -> None:
    wait_for(lambda: _all_led(cluster), "leaders of all partitions", LEADERS_TIMEOUT_S)
    if not seconds_max:
        return
    deadline = time.monotonic() + seconds_max
    last = _cpu_pct(cluster, LOOK_S)
    while time.monotonic() < deadline:
        now = _cpu_pct(cluster, LOOK_S)
        if all(abs(one - other) <= STEADY_DIFFERENCE_PCT for one, other in zip(last, now, strict=True)):
            return
        last = now


def _run(settings: Settings) -> Measured:
    topics = TOPICS_QUICK if settings.quick else TOPICS
    partitions = PARTITIONS_QUICK if settings.quick else PARTITIONS
    with holdfast.serve_cluster(settings.directory) as cluster:
        for number in range(topics):
            cluster.create(f"idle-{number}", partitions=partitions)
        _settle(cluster, SETTLE_S_MAX_QUICK if settings.quick else SETTLE_S_MAX)
        shares = _cpu_pct(cluster, SECONDS_QUICK if settings.quick else SECONDS)
        memory_mb = [node.server.memory_bytes() / 1e6 for node in cluster.nodes]
    note = (
        f"{topics} × {partitions} partitions; CPU {_list(shares, 1)} %, resident {_list(memory_mb, 0)} MB; "
        "the highest of the three counts"
    )
    return Measured({CPU_SHARE: max(shares), RSS: max(memory_mb)}, note)


def _list(values: list[float], digits: int) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values)


IDLE = Work(
    name="cluster-idle",
    title="Three nodes: idle partitions",
    figure=CPU_SHARE,
    reference=LINE,
    once=True,
    contenders=(Contender(LINE, holdfast.NAME, "on each node", _run),),
)
