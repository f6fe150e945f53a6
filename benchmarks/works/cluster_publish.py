"""Publish throughput of three nodes, pipelined: 100-byte messages in the batches that suit each server best."""

from collections.abc import Sequence
from functools import partial

from benchmarks.load import batches, pipeline
from benchmarks.load.pipeline import Flow
from benchmarks.measure import Contender, Measured, Settings, Work, best_shape, generate
from benchmarks.peers import holdfast, nats, rabbitmq
from benchmarks.peers.holdfast import Cluster
from benchmarks.works.publish import PROBE, RATE, TOPIC, Pair, throughput

MESSAGE_BYTES = 100

TEXT = "Holdfast text"
HTTP = "Holdfast HTTP batches"
NATS = "NATS JetStream R3"
NATS_ALWAYS = "NATS JetStream R3, synced"
RABBIT = "RabbitMQ quorum queue"

# Nobody has more than 20,000 messages under way.
# (connections, unacknowledged messages on each)
TEXT_SHAPES = ((1, 20_000), (4, 5_000))
# (connections, requests under way on each, batches in a request, messages in a batch)
HTTP_SHAPES = ((2, 2, 1, 5_000), (1, 2, 1, 10_000), (4, 5, 1, 1_000))
# (unacknowledged messages, messages in one write)
NATS_SHAPES = ((1_000, 20), (20_000, 1_000), (5_000, 100))
# (connections, unacknowledged messages on each)
RABBIT_SHAPES = ((4, 5_000), (1, 1_000), (8, 1_000))

BatchShape = tuple[int, int, int, int]


def text_figures(settings: Settings, cluster: Cluster) -> tuple[Pair, dict[str, float]]:
    """Text lines to the node that leads. Processor time is that of all nodes."""

    def put_on(shape: Pair, seconds: float, topic: str) -> Flow:
        load = cluster.leader(topic).text_pipeline(topic, *shape, seconds)
        return generate(settings, pipeline.run, load)

    cluster.create(PROBE, TOPIC)
    return throughput(settings, TEXT_SHAPES, put_on, cluster.cpu_s, cluster.stored)


def batch_figures(
    settings: Settings, cluster: Cluster, shapes: Sequence[BatchShape], message_bytes: int
) -> tuple[BatchShape, dict[str, float]]:
    """Record batches over HTTP to the node that leads."""

    def put_on(shape: BatchShape, seconds: float, topic: str) -> Flow:
        connections, depth, count, messages = shape
        request = batches.request(topic, count, messages, message_bytes)
        load = cluster.leader(topic).http_pipeline(request, count * messages, connections, depth, seconds)
        return generate(settings, pipeline.run, load)

    cluster.create(PROBE, TOPIC)
    return throughput(settings, shapes, put_on, cluster.cpu_s, cluster.stored)


def _text(settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        shape, figures = text_figures(settings, cluster)
        return Measured(figures, f"{shape[0]} × {shape[1]:,} deep, to the leader")


def _http(settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        shape, figures = batch_figures(settings, cluster, HTTP_SHAPES, MESSAGE_BYTES)
        return Measured(figures, f"{shape[0]} × {shape[1]} requests of {shape[3]:,}, to the leader")


def _nats(sync: nats.Sync, settings: Settings) -> Measured:
    with nats.serve(settings.directory, sync, nats.NODES) as cluster:

        def put_on(shape: Pair, seconds: float, _topic: str) -> Flow:
            return generate(settings, pipeline.run, cluster.pipeline(*shape, seconds))

        shape, figures = throughput(settings, NATS_SHAPES, put_on, cluster.cpu_s, cluster.stored)
        return Measured(figures, f"1 × {shape[0]:,} deep, to the leader", weaker=not cluster.is_synced)


def _rabbit(settings: Settings) -> Measured:
    with rabbitmq.serve(settings.directory, rabbitmq.NODES) as cluster:

        def put_on(shape: Pair, seconds: float) -> Flow:
            return generate(settings, pipeline.run, cluster.quorum_pipeline(shape[1], seconds, shape[0]))

        shape = best_shape(settings, RABBIT_SHAPES, put_on)
        return Measured({RATE: put_on(shape, settings.seconds).per_s}, f"{shape[0]} × {shape[1]:,} deep, to the leader")


PUBLISH = Work(
    name="cluster-publish",
    title="Three nodes: publish 100-byte messages, pipelined, in the batches that suit each best",
    figure=RATE,
    reference=NATS,
    contenders=(
        Contender(TEXT, holdfast.NAME, "--sync group on all three", _text),
        Contender(HTTP, holdfast.NAME, "--sync group on all three", _http),
        Contender(NATS, nats.NAME, "file, default sync interval", partial(_nats, "default")),
        Contender(NATS_ALWAYS, nats.NAME, "file, sync_interval always", partial(_nats, "always")),
        Contender(RABBIT, rabbitmq.NAME, "3 members, confirms, persistent", _rabbit),
    ),
)
