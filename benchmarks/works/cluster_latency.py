"""One message at a time through three nodes: to the node that leads, and to one that has to pass it on."""

from functools import partial

from benchmarks.load import latency, nats, text
from benchmarks.load.latency import ClosedLoop
from benchmarks.load.wire import FixedLength, Marker
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, holdfast_cluster, nats_cluster
from benchmarks.peers import nats as nats_peer
from benchmarks.works.latency import P50, figures

TOPIC = "bench"
LEADER = "Holdfast, to the leader"
FOLLOWER = "Holdfast, to a follower"
NATS = "NATS JetStream R3"


def _holdfast(to_leader: bool, settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:
        cluster.create(TOPIC)
        node = cluster.leader(TOPIC) if to_leader else cluster.follower(TOPIC)
        load = ClosedLoop(
            port=node.text_port,
            dial=text.dial,
            replies=partial(FixedLength, text.PUBACK),
            requests=(text.publish(TOPIC),),
            seconds=settings.seconds,
        )
        return Measured(figures(generate(settings, latency.run, load)), "any core")


def _nats(settings: Settings) -> Measured:
    with nats_cluster.serve(settings.directory, always=False) as cluster:
        load = ClosedLoop(
            port=cluster.leader_port,
            dial=nats.dial,
            replies=partial(Marker, nats.REPLY_MARKER),
            requests=(nats.publish(0),),
            seconds=settings.seconds,
        )
        return Measured(figures(generate(settings, latency.run, load)), "to the leader, any core", weaker=True)


LATENCY = Work(
    name="cluster-latency",
    title="Three nodes: one message at a time, acknowledged",
    figure=P50,
    better="lower",
    reference=LEADER,
    contenders=(
        Contender(LEADER, holdfast.NAME, "--sync group on all three", partial(_holdfast, True)),
        Contender(FOLLOWER, holdfast.NAME, "--sync group on all three", partial(_holdfast, False)),
        Contender(NATS, nats_peer.NAME, "file, default sync interval", _nats),
    ),
)
