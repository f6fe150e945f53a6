"""Publish throughput of three nodes, pipelined: 100-byte messages in the batches that suit each server best."""

from functools import partial

from benchmarks.load import batches, pipeline
from benchmarks.load.pipeline import Flow
from benchmarks.measure import Contender, Measured, Settings, Work, best_shape, generate
from benchmarks.peers import holdfast, holdfast_cluster, nats, nats_cluster, rabbitmq, rabbitmq_cluster
from benchmarks.works.publish import CPU, RATE, verify

TOPIC = "bench"
MESSAGE_BYTES = 100

TEXT = "Holdfast text"
HTTP = "Holdfast HTTP batches"
NATS = "NATS JetStream R3"
NATS_ALWAYS = "NATS JetStream R3, synced"
RABBIT = "RabbitMQ quorum queue"

# Nobody has more than 20,000 messages under way.
# (connections, unacknowledged messages on each)
TEXT_SHAPES = ((1, 20_000), (4, 5_000))
# (connections, requests under way on each, messages in the request, which is one batch)
HTTP_SHAPES = ((2, 2, 5_000), (1, 2, 10_000), (4, 5, 1_000))
# (unacknowledged messages, messages in one write)
NATS_SHAPES = ((1_000, 20), (20_000, 1_000), (5_000, 100))
# (connections, unacknowledged messages on each)
RABBIT_SHAPES = ((4, 5_000), (1, 1_000), (8, 1_000))

Pair = tuple[int, int]
Triple = tuple[int, int, int]


def _text(settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:

        def put_on(shape: Pair, seconds: float, topic: str = "probe") -> Flow:
            load = cluster.leader(topic).broker.text_pipeline(topic, *shape, seconds)
            return generate(settings, pipeline.run, load)

        cluster.create("probe")
        cluster.create(TOPIC)
        shape = best_shape(settings, TEXT_SHAPES, put_on)
        before_s = cluster.cpu_s()
        flow = put_on(shape, settings.seconds, TOPIC)
        used_s = cluster.cpu_s() - before_s
        verify(cluster.stored(TOPIC), flow.messages)
        return Measured(_figures(flow, used_s), f"{shape[0]} × {shape[1]:,} deep, to the leader")


def _http(settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:

        def put_on(shape: Triple, seconds: float, topic: str = "probe") -> Flow:
            connections, depth, messages = shape
            request = batches.request(topic, 1, messages, MESSAGE_BYTES)
            load = cluster.leader(topic).batches_pipeline(request, messages, connections, depth, seconds)
            return generate(settings, pipeline.run, load)

        cluster.create("probe")
        cluster.create(TOPIC)
        shape = best_shape(settings, HTTP_SHAPES, put_on)
        before_s = cluster.cpu_s()
        flow = put_on(shape, settings.seconds, TOPIC)
        used_s = cluster.cpu_s() - before_s
        verify(cluster.stored(TOPIC), flow.messages)
        note = f"{shape[0]} × {shape[1]} requests of {shape[2]:,}, to the leader"
        return Measured(_figures(flow, used_s), note)


def _nats(always: bool, settings: Settings) -> Measured:
    with nats_cluster.serve(settings.directory, always) as cluster:

        def put_on(shape: Pair, seconds: float) -> Flow:
            before = cluster.stored()
            flow = generate(settings, pipeline.run, cluster.pipeline(*shape, seconds))
            verify(cluster.stored() - before, flow.messages)
            return flow

        shape = best_shape(settings, NATS_SHAPES, put_on)
        before_s = cluster.cpu_s()
        flow = put_on(shape, settings.seconds)
        figures = _figures(flow, cluster.cpu_s() - before_s)
        return Measured(figures, f"1 × {shape[0]:,} deep, to the leader", weaker=not always)


def _rabbit(settings: Settings) -> Measured:
    with rabbitmq_cluster.serve(settings.directory) as cluster:

        def put_on(shape: Pair, seconds: float) -> Flow:
            return generate(settings, pipeline.run, cluster.quorum_pipeline(shape[1], seconds, shape[0]))

        shape = best_shape(settings, RABBIT_SHAPES, put_on)
        return Measured({RATE: put_on(shape, settings.seconds).per_s}, f"{shape[0]} × {shape[1]:,} deep, to the leader")


def _figures(flow: Flow, used_s: float) -> dict[str, float]:
    """Processor time is that of all three servers."""
    return {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}


PUBLISH = Work(
    name="cluster-publish",
    title="Three nodes: publish 100-byte messages, pipelined, in the batches that suit each best",
    figure=RATE,
    better="higher",
    reference=NATS,
    contenders=(
        Contender(TEXT, holdfast.NAME, "--sync group on all three", _text),
        Contender(HTTP, holdfast.NAME, "--sync group on all three", _http),
        Contender(NATS, nats.NAME, "file, default sync interval", partial(_nats, False)),
        Contender(NATS_ALWAYS, nats.NAME, "file, sync_interval always", partial(_nats, True)),
        Contender(RABBIT, rabbitmq.NAME, "3 members, confirms, persistent", _rabbit),
    ),
)
