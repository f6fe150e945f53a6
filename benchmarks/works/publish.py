"""Publish throughput, pipelined: every message acknowledged, a bounded number of them under way."""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.load import http, pipeline
from benchmarks.load.pipeline import Flow
from benchmarks.load.wire import LoadFailed
from benchmarks.measure import Contender, Measured, Settings, Shape, Work, best_shape, generate
from benchmarks.peers import holdfast, nats, rabbitmq, redis
from benchmarks.place import EVERY, Place, put

RATE = "msg_per_s"
CPU = "cpu_s_per_million"

HTTP_MESSAGES_PER_REQUEST = 1_000

OWN_GENERATOR = "redis-benchmark"

# (connections, unacknowledged messages on each, place)
TEXT_SHAPES = tuple((*shape, place) for place in EVERY for shape in ((1, 20_000), (4, 5_000)))
# The shape in which Redis is at its best with an fsync for every write, for those who want the same load.
TEXT_LIKE_REDIS = tuple((50, 200, place) for place in EVERY)
# (connections, requests under way on each, place)
HTTP_SHAPES = tuple((*shape, place) for place in EVERY for shape in ((1, 2), (2, 1)))
# (connections, place), each connection 200 deep; Redis's own generator wants a core for itself
REDIS_BENCHMARK_SHAPES = tuple((connections, OWN_GENERATOR) for connections in (50, 16, 4, 1))
REDIS_SHAPES = (
    *REDIS_BENCHMARK_SHAPES,
    *((connections, place) for place in EVERY for connections in (50, 16)),
)
# (unacknowledged messages, messages in one write, place)
NATS_SHAPES = tuple((*shape, place) for place in EVERY for shape in ((20_000, 1_000), (1_000, 20)))
STREAM_SHAPES = ((10_000, 500), (1_000, 100))
# (connections, unacknowledged messages on each)
QUORUM_SHAPES = ((4, 5_000), (1, 1_000))

TOPIC, PROBE = "bench", "probe"
PROBE_MESSAGES = 150_000
QUICK_MESSAGES = 50_000

Pair = tuple[int, int]
Placed = tuple[int, int, Place]


def verify(stored: int, acknowledged: int) -> None:
    if stored != acknowledged:
        raise LoadFailed(f"{acknowledged} messages were acknowledged, {stored} are stored")


def throughput(
    settings: Settings,
    shapes: Sequence[Shape],
    put_on: Callable[[Shape, float, str], Flow],
    cpu_s: Callable[[], float],
    stored: Callable[[str], int],
) -> tuple[Shape, dict[str, float]]:
    """The shape of load that suits best, and its figures. All that was acknowledged must be stored."""
    shape = best_shape(settings, shapes, lambda each, seconds: put_on(each, seconds, PROBE))
    stored_before, used_before_s = stored(TOPIC), cpu_s()
    flow = put_on(shape, settings.seconds, TOPIC)
    used_s = cpu_s() - used_before_s
    verify(stored(TOPIC) - stored_before, flow.messages)
    return shape, {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}


def _text(sync: str, shapes: tuple[Placed, ...], settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, sync) as broker:

        def put_on(shape: Placed, seconds: float, topic: str) -> Flow:
            connections, window, place = shape
            load = broker.text_pipeline(topic, connections, window, seconds)
            return generate(settings, pipeline.run, load, put(broker.server, place))

        broker.create(PROBE, TOPIC)
        shape, figures = throughput(settings, shapes, put_on, broker.server.cpu_s, broker.stored)
        return Measured(figures, f"{shape[0]} × {shape[1]:,} deep, {shape[2]}")


def _http(sync: str, settings: Settings) -> Measured:
    messages = HTTP_MESSAGES_PER_REQUEST
    with holdfast.serve(settings.directory, sync) as broker:

        def put_on(shape: Placed, seconds: float, topic: str) -> Flow:
            connections, depth, place = shape
            load = broker.http_pipeline(http.publish(topic, messages), messages, connections, depth, seconds)
            return generate(settings, pipeline.run, load, put(broker.server, place))

        broker.create(PROBE, TOPIC)
        shape, figures = throughput(settings, HTTP_SHAPES, put_on, broker.server.cpu_s, broker.stored)
        return Measured(figures, f"{shape[0]} × {shape[1]} requests of {messages:,}, {shape[2]}")


def _redis(fsync: str, settings: Settings) -> Measured:
    with redis.serve(settings.directory, fsync) as server:

        def put_on(shape: tuple[int, Place | str], seconds: float, messages: int = PROBE_MESSAGES) -> Flow:
            connections, place = shape
            server.flush()
            if place in EVERY:
                cores = put(server.server, place)
                flow = generate(settings, pipeline.run, server.pipeline(connections, seconds), cores)
            else:
                put(server.server, "any core")
                flow = Flow(messages, messages / server.benchmark(connections, messages))
            verify(server.stored(), flow.messages)
            return flow

        shape = best_shape(settings, REDIS_SHAPES, put_on)
        probe = QUICK_MESSAGES if settings.quick else PROBE_MESSAGES
        # Redis's own generator takes a number of messages, not a time.
        wanted = put_on(shape, settings.probe_seconds, probe).per_s * settings.seconds
        messages = max(probe, int(wanted) // redis.DEPTH * redis.DEPTH)
        before_s = server.server.cpu_s()
        flow = put_on(shape, settings.seconds, messages)
        used_s = server.server.cpu_s() - before_s
        figures = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}
        return Measured(figures, f"{shape[0]} × {redis.DEPTH} deep, {shape[1]}")


def _nats(settings: Settings) -> Measured:
    with nats.serve(settings.directory, "always if known") as server:

        def put_on(shape: Placed, seconds: float, _topic: str) -> Flow:
            window, messages_per_write, place = shape
            load = server.pipeline(window, messages_per_write, seconds)
            return generate(settings, pipeline.run, load, put(server.servers[0], place))

        shape, figures = throughput(settings, NATS_SHAPES, put_on, server.cpu_s, server.stored)
        note = f"1 × {shape[0]:,} deep, {shape[2]}; {server.durability}"
        return Measured(figures, note, weaker=not server.is_synced)


def _rabbit_stream(settings: Settings) -> Measured:
    with rabbitmq.serve(settings.directory) as server:

        def put_on(shape: Pair, seconds: float) -> Flow:
            return generate(settings, pipeline.run, server.stream_pipeline(shape[0], seconds, shape[1]))

        shape = best_shape(settings, STREAM_SHAPES, put_on)
        return Measured({RATE: put_on(shape, settings.seconds).per_s}, f"1 × {shape[0]:,} deep", weaker=True)


def _rabbit_quorum(settings: Settings) -> Measured:
    with rabbitmq.serve(settings.directory) as server:

        def put_on(shape: Pair, seconds: float) -> Flow:
            return generate(settings, pipeline.run, server.quorum_pipeline(shape[1], seconds, shape[0]))

        shape = best_shape(settings, QUORUM_SHAPES, put_on)
        return Measured({RATE: put_on(shape, settings.seconds).per_s}, f"{shape[0]} × {shape[1]:,} deep")


DURABLE = Work(
    name="publish-durable",
    title="Publish, pipelined, fsync before the acknowledgement",
    figure=RATE,
    reference="Redis Streams",
    contenders=(
        Contender("Holdfast text", holdfast.NAME, "--sync group", partial(_text, "group", TEXT_SHAPES)),
        Contender("Holdfast HTTP", holdfast.NAME, "--sync group", partial(_http, "group")),
        Contender("Redis Streams", redis.NAME, "appendfsync always", partial(_redis, "always")),
        Contender("Holdfast text, 50 × 200", holdfast.NAME, "--sync group", partial(_text, "group", TEXT_LIKE_REDIS)),
        Contender("NATS JetStream", nats.NAME, "file storage", _nats),
        Contender("RabbitMQ stream", rabbitmq.NAME, "one replica", _rabbit_stream),
        Contender("RabbitMQ quorum queue", rabbitmq.NAME, "one replica", _rabbit_quorum),
    ),
)

NO_SYNC = Work(
    name="publish-nosync",
    title="Publish, pipelined, the disk in its own time",
    figure=RATE,
    reference="Redis Streams",
    contenders=(
        Contender("Holdfast text", holdfast.NAME, "--sync none", partial(_text, "none", TEXT_SHAPES)),
        Contender("Holdfast HTTP", holdfast.NAME, "--sync none", partial(_http, "none")),
        Contender("Redis Streams", redis.NAME, "appendfsync everysec", partial(_redis, "everysec")),
    ),
)
