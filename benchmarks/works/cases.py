"""What keys, headers, ids, many lengths and many partitions cost: each beside equal values, on the same server.

A server takes part with what it has a notion of. The load is the same for all cases of a server, on any core.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.load import cases, pipeline, read
from benchmarks.load.cases import KEYED, KEYED_PARTITIONS, LENGTHS, PARTITIONS, PLAIN, WITH_HEADERS, WITH_IDS, Case
from benchmarks.load.pipeline import Flow, Pipeline
from benchmarks.load.read import Decode, HoldfastRead, RedisRead, entry_id
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, nats, rabbitmq, redis
from benchmarks.works.cluster_entries import MB_RATE
from benchmarks.works.publish import CPU, RATE, TOPIC, verify

HTTP_MESSAGES = 1_000
READ_MESSAGES, READ_MESSAGES_QUICK = 500_000, 10_000
READ_BYTES = 1 << 20
READ_COUNT = 10_000
FILL_SECONDS_MAX = 120.0

TEXT, HTTP, REDIS = "Holdfast text", "Holdfast HTTP", "Redis Streams"
NATS, RABBIT = "NATS JetStream", "RabbitMQ quorum queue"
VALUES, MESSAGES = "Holdfast, values", "Holdfast, messages"


def _measured(
    case: Case,
    settings: Settings,
    load: Pipeline,
    cpu_s: Callable[[], float] | None = None,
    stored: Callable[[], int] | None = None,
) -> Measured:
    """The load for a moment, then measured. What the server can be asked is compared with what it acknowledged."""
    generate(settings, pipeline.run, replace(load, seconds=settings.probe_seconds))
    stored_before, used_before_s = stored() if stored else 0, cpu_s() if cpu_s else 0.0
    flow = generate(settings, pipeline.run, load)
    figures = {RATE: flow.per_s, MB_RATE: flow.per_s * case.value_bytes / 1e6}
    if cpu_s:
        figures[CPU] = (cpu_s() - used_before_s) / flow.messages * 1e6
    if stored:
        verify(stored() - stored_before, flow.messages)
    return Measured(figures, f"{load.connections} × {load.window:,} deep")


def _text(case: Case, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, "group") as broker:
        broker.create(TOPIC, partitions=case.partitions)
        load = broker.text_pipeline(TOPIC, 1, 20_000, settings.seconds)
        load = replace(load, request=cases.text_lines(case, TOPIC, load.messages_per_request), renewed=case.renewed)
        return _measured(case, settings, load, broker.server.cpu_s, partial(broker.stored, TOPIC))


def _http(case: Case, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, "group") as broker:
        broker.create(TOPIC, partitions=case.partitions)
        load = _http_load(case, broker, settings.seconds)
        return _measured(case, settings, load, broker.server.cpu_s, partial(broker.stored, TOPIC))


def _http_load(case: Case, broker: holdfast.Broker, seconds: float, messages_max: int = 1 << 62) -> Pipeline:
    request = cases.http_request(case, TOPIC, HTTP_MESSAGES)
    return replace(broker.http_pipeline(request, HTTP_MESSAGES, 1, 2, seconds, messages_max), renewed=case.renewed)


def _redis(case: Case, settings: Settings) -> Measured:
    with redis.serve(settings.directory, "always") as server:
        load = server.pipeline(50, settings.seconds)
        load = replace(load, request=cases.redis_commands(case, range(load.messages_per_request)))
        streams = cases.redis_streams(case)
        return _measured(case, settings, load, server.server.cpu_s, lambda: sum(map(server.stored, streams)))


def _nats(case: Case, settings: Settings) -> Measured:
    with nats.serve(settings.directory, "always if known") as server:
        load = server.pipeline(20_000, 1_000, settings.seconds)
        load = replace(load, request=cases.nats_publishes(case, load.messages_per_request), renewed=case.renewed)
        measured = _measured(case, settings, load, server.cpu_s, server.stored)
        return replace(measured, note=f"{measured.note}; {server.durability}", weaker=not server.is_synced)


def _rabbit(case: Case, settings: Settings) -> Measured:
    with rabbitmq.serve(settings.directory) as server:
        load = server.quorum_pipeline(5_000, settings.seconds, 4)
        return _measured(case, settings, replace(load, request=cases.amqp_publishes(case, load.messages_per_request)))


def _read(decode: Decode, case: Case, settings: Settings) -> Measured:
    messages = READ_MESSAGES_QUICK if settings.quick else READ_MESSAGES
    with holdfast.serve(settings.directory, "none") as broker:
        broker.create(TOPIC)
        stored = generate(settings, pipeline.run, _http_load(case, broker, FILL_SECONDS_MAX, messages)).messages
        load = HoldfastRead(broker.http_port, TOPIC, stored, READ_BYTES, decode)
        return _read_measured(case, generate(settings, read.read_holdfast, load))


def _redis_read(case: Case, settings: Settings) -> Measured:
    messages = READ_MESSAGES_QUICK if settings.quick else READ_MESSAGES
    with redis.serve(settings.directory, "no") as server:
        (stream,) = cases.redis_streams(case)
        server.fill(messages, stream, lambda numbers: cases.redis_commands(case, numbers, entry_id))
        load = RedisRead(server.port, stream, messages, READ_COUNT, "messages")
        return _read_measured(case, generate(settings, read.read_redis, load))


def _read_measured(case: Case, flow: Flow) -> Measured:
    return Measured({RATE: flow.per_s, MB_RATE: flow.per_s * case.value_bytes / 1e6}, f"{flow.messages:,} messages")


Run = Callable[[Case, Settings], Measured]


def _lines(server: str, peer: str, setting: str, run: Run, *costs: Case) -> tuple[Contender, ...]:
    """Equal values, and each of the cases beside it."""
    plain = f"{server}, {PLAIN.name}"
    return tuple(
        Contender(f"{server}, {case.name}", peer, setting, partial(run, case), against=plain)
        for case in (PLAIN, *costs)
    )


PUBLISH = Work(
    name="cases-publish",
    title="Publish, pipelined: what keys, headers, ids, many lengths and partitions cost (100 bytes on the average)",
    figure=RATE,
    reference=f"{HTTP}, {PLAIN.name}",
    contenders=(
        *_lines(TEXT, holdfast.NAME, "--sync group", _text, LENGTHS, WITH_IDS, PARTITIONS),
        *_lines(
            HTTP,
            holdfast.NAME,
            "--sync group",
            _http,
            *(LENGTHS, KEYED, WITH_HEADERS, WITH_IDS, PARTITIONS, KEYED_PARTITIONS),
        ),
        *_lines(REDIS, redis.NAME, "appendfsync always", _redis, LENGTHS, KEYED, WITH_HEADERS, PARTITIONS),
        *_lines(NATS, nats.NAME, "file storage", _nats, LENGTHS, WITH_HEADERS, WITH_IDS),
        *_lines(RABBIT, rabbitmq.NAME, "one replica", _rabbit, LENGTHS, WITH_HEADERS),
    ),
)

READ = Work(
    name="cases-read",
    title="Read back in bulk, in Python's hands: what keys, headers, ids and many lengths cost",
    figure=RATE,
    reference=f"{VALUES}, {PLAIN.name}",
    contenders=(
        *_lines(VALUES, holdfast.NAME, "HTTP, stored batches", partial(_read, "values"), LENGTHS),
        *_lines(
            MESSAGES,
            holdfast.NAME,
            "HTTP, stored batches",
            partial(_read, "messages"),
            *(LENGTHS, KEYED, WITH_HEADERS, WITH_IDS),
        ),
        *_lines(REDIS, redis.NAME, "XREAD", _redis_read, LENGTHS, KEYED, WITH_HEADERS),
    ),
)
