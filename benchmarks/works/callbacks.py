"""Receivers that the broker connects to: how fast one gets a backlog, and what a thousand wait while one is stuck."""

from functools import partial

from benchmarks.load import callbacks, pipeline
from benchmarks.load.callbacks import Backlog, Crowd
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.works.latency import P50, P99
from benchmarks.works.publish import CPU, RATE

TOPIC = "bench"
MESSAGES, MESSAGES_QUICK = 1_000_000, 20_000
RECEIVERS, RECEIVERS_QUICK = 1_000, 20
# More than the broker sends to one that does not acknowledge.
FILL_BYTES, FILL_BYTES_QUICK = 1_400_000, 100_000
ROUNDS, ROUNDS_QUICK = 40, 5
# Each message is at rest before the next one: what is measured is one message, and not a queue of them.
PAUSE_S = 0.1
FILL_SECONDS_MAX = 80.0

PLAIN = "Holdfast, plain lines"
NUMBERED = "Holdfast, numbered lines"
ALL_WELL = "Holdfast, all well"
ONE_STUCK = "Holdfast, one stuck"


def _one(form: str, settings: Settings) -> Measured:
    messages = MESSAGES_QUICK if settings.quick else MESSAGES
    with holdfast.serve(settings.directory, "group") as broker:
        load = broker.text_pipeline(TOPIC, 1, 20_000, FILL_SECONDS_MAX, messages)
        stored = generate(settings, pipeline.run, load).messages
        before_s = broker.server.cpu_s()
        rate = generate(settings, callbacks.run_backlog, Backlog(broker.http_port, TOPIC, stored, form))
        used_s = broker.server.cpu_s() - before_s
        return Measured({RATE: rate, CPU: used_s / stored * 1e6}, f"{stored:,} messages")


def _many(stuck: int, settings: Settings) -> Measured:
    receivers = RECEIVERS_QUICK if settings.quick else RECEIVERS
    with holdfast.serve(settings.directory, "group") as broker:
        crowd = Crowd(
            text_port=broker.text_port,
            http_port=broker.http_port,
            topic=TOPIC,
            receivers=receivers,
            stuck=stuck,
            fill_bytes=FILL_BYTES_QUICK if settings.quick else FILL_BYTES,
            messages=ROUNDS_QUICK if settings.quick else ROUNDS,
            pause_s=PAUSE_S,
        )
        found = generate(settings, callbacks.run_crowd, crowd)
        note = f"{receivers:,} receivers, {found.deliveries:,} deliveries, the slowest {found.worst_us / 1000:.0f} ms"
        return Measured({P50: found.p50_us, P99: found.p99_us}, note)


ONE = Work(
    name="callbacks-one",
    title="A callback: 100-byte messages to one receiver, acknowledged many together",
    figure=RATE,
    reference=PLAIN,
    contenders=(
        Contender(PLAIN, holdfast.NAME, "--sync group", partial(_one, "plain")),
        Contender(NUMBERED, holdfast.NAME, "--sync group", partial(_one, "numbered")),
    ),
)

MANY = Work(
    name="callbacks-many",
    title="Callbacks: one message to 1,000 receivers; a stuck one neither reads nor acknowledges",
    figure=P99,
    reference=ALL_WELL,
    once=True,
    contenders=(
        Contender(ALL_WELL, holdfast.NAME, "--sync group", partial(_many, 0)),
        Contender(ONE_STUCK, holdfast.NAME, "--sync group", partial(_many, 1)),
    ),
)
