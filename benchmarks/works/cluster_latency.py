"""One message at a time through three nodes: to the node that leads, and to one that has to pass it on."""

from functools import partial

from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast, nats
from benchmarks.works.latency import P50, latencies, nats_load, text_latencies
from benchmarks.works.publish import TOPIC

LEADER = "Holdfast, to the leader"
FOLLOWER = "Holdfast, to a follower"
NATS = "NATS JetStream R3"


def _holdfast(to_leader: bool, settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        cluster.create(TOPIC)
        node = cluster.leader(TOPIC) if to_leader else cluster.follower(TOPIC)
        return Measured(text_latencies(settings, node, [TOPIC]), "any core")


def _nats(settings: Settings) -> Measured:
    with nats.serve(settings.directory, "default", nats.NODES) as cluster:
        found = latencies(settings, nats_load(cluster.port, settings.seconds))
        return Measured(found, "to the leader, any core", weaker=True)


LATENCY = Work(
    name="cluster-latency",
    title="Three nodes: one message at a time, acknowledged",
    figure=P50,
    reference=LEADER,
    contenders=(
        Contender(LEADER, holdfast.NAME, "--sync group on all three", partial(_holdfast, True)),
        Contender(FOLLOWER, holdfast.NAME, "--sync group on all three", partial(_holdfast, False)),
        Contender(NATS, nats.NAME, "file, default sync interval", _nats),
    ),
)
