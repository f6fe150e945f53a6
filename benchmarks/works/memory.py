"""Resident memory: after ten million messages, and with subscribers that stopped reading."""

from contextlib import ExitStack
from functools import partial

from benchmarks.load import pipeline, text
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, redis
from benchmarks.process import Server

RSS = "rss_mb"
PEAK = "peak_mb"

MESSAGES = 10_000_000
MESSAGES_STALLED = 1_000_000
MESSAGES_QUICK = 20_000
STALLED = 100
FILL_SECONDS_MAX = 80.0

TOPIC = "bench"

AFTER_MESSAGES = "Holdfast, 10 million messages"
WITH_STALLED = "Holdfast, 100 stalled subscribers"


def _figures(server: Server) -> dict[str, float]:
    return {RSS: server.memory_bytes("VmRSS") / 1e6, PEAK: server.memory_bytes("VmHWM") / 1e6}


def _holdfast(messages: int, stalled: int, settings: Settings) -> Measured:
    messages = min(messages, MESSAGES_QUICK) if settings.quick else messages
    with holdfast.serve(settings.directory, "group") as broker, ExitStack() as subscribers:
        for _ in range(stalled):
            subscribers.enter_context(text.subscribe_and_stall(broker.text_port, TOPIC))
        load = broker.text_pipeline(TOPIC, 1, 20_000, FILL_SECONDS_MAX, messages)
        stored = generate(settings, pipeline.run, load).messages
        broker.server.check()
        return Measured(_figures(broker.server), f"{stored:,} messages, {stalled} stalled subscribers")


def _redis(settings: Settings) -> Measured:
    messages = MESSAGES_QUICK if settings.quick else MESSAGES
    with redis.serve(settings.directory, "everysec") as server:
        server.benchmark(16, messages)
        return Measured(_figures(server.server), f"{server.stored():,} messages")


MEMORY = Work(
    name="memory",
    title="Resident memory of the server",
    figure=RSS,
    reference="Redis Streams, 10 million messages",
    once=True,
    contenders=(
        Contender(AFTER_MESSAGES, holdfast.NAME, "--sync group", partial(_holdfast, MESSAGES, 0)),
        Contender(WITH_STALLED, holdfast.NAME, "--sync group", partial(_holdfast, MESSAGES_STALLED, STALLED)),
        Contender("Redis Streams, 10 million messages", redis.NAME, "appendfsync everysec", _redis),
    ),
)
