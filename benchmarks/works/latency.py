"""One message at a time: the next is sent when the last is acknowledged.

Nothing moves these figures as much as the place does, so both places are measured and shown.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.load import http, latency, nats, resp, text
from benchmarks.load.latency import ClosedLoop, Latencies
from benchmarks.load.wire import FixedLength, Marker
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, redis
from benchmarks.peers import nats as nats_peer
from benchmarks.place import Place, put
from benchmarks.process import Server

P50 = "p50_us"
P99 = "p99_us"
P999 = "p999_us"


def figures(latencies: Latencies) -> dict[str, float]:
    return {P50: latencies.p50_us, P99: latencies.p99_us, P999: latencies.p999_us}


def measure(settings: Settings, server: Server, load: ClosedLoop, place: Place) -> dict[str, float]:
    return figures(generate(settings, latency.run, load, put(server, place)))


def holdfast_text(sync: str, topics: Sequence[str], place: Place, settings: Settings) -> Measured:
    """One connection for each topic named, each with one message under way."""
    with holdfast.serve(settings.directory, sync) as broker:
        load = ClosedLoop(
            port=broker.text_port,
            dial=text.dial,
            replies=partial(FixedLength, text.PUBACK),
            requests=tuple(text.publish(topic) for topic in topics),
            seconds=settings.seconds,
        )
        return Measured(measure(settings, broker.server, load, place), place)


def redis_streams(fsync: str, streams: Sequence[str], place: Place, settings: Settings) -> Measured:
    with redis.serve(settings.directory, fsync) as server:
        load = ClosedLoop(
            port=server.port,
            dial=resp.dial,
            replies=partial(Marker, resp.REPLY_MARKER),
            requests=tuple(resp.xadd(stream.encode(), 0) for stream in streams),
            seconds=settings.seconds,
        )
        return Measured(measure(settings, server.server, load, place), place)


def _http(sync: str, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, sync) as broker:
        load = ClosedLoop(
            port=broker.http_port,
            dial=http.dial,
            replies=partial(http.PublishReplies, 1),
            requests=(http.publish("bench", 1),),
            seconds=settings.seconds,
        )
        return Measured(measure(settings, broker.server, load, "one core"), "one core")


def _nats(durable: bool, settings: Settings) -> Measured:
    with nats_peer.serve(settings.directory, durable) as server:
        load = ClosedLoop(
            port=server.port,
            dial=nats.dial,
            replies=partial(Marker, nats.REPLY_MARKER),
            requests=(nats.publish(0),),
            seconds=settings.seconds,
        )
        note = f"one core; {server.durability}" if durable else "one core"
        shown = measure(settings, server.server, load, "one core")
        return Measured(shown, note, durable and server.weaker)


def _contenders(sync: str, fsync: str, durable: bool) -> tuple[Contender, ...]:
    ours, theirs = f"--sync {sync}", f"appendfsync {fsync}"
    topic = ("bench",)
    return (
        Contender("Holdfast text", holdfast.NAME, ours, partial(holdfast_text, sync, topic, "one core")),
        Contender("Redis Streams", redis.NAME, theirs, partial(redis_streams, fsync, topic, "one core")),
        Contender(
            "Holdfast text, two cores",
            holdfast.NAME,
            ours,
            partial(holdfast_text, sync, topic, "two cores"),
            against="Redis Streams, two cores",
        ),
        Contender(
            "Redis Streams, two cores",
            redis.NAME,
            theirs,
            partial(redis_streams, fsync, topic, "two cores"),
            against="Redis Streams, two cores",
        ),
        Contender("Holdfast HTTP", holdfast.NAME, ours, partial(_http, sync)),
        Contender("NATS JetStream", nats_peer.NAME, "file storage", partial(_nats, durable)),
    )


NO_SYNC = Work(
    name="latency-nosync",
    title="One message at a time, acknowledged, no fsync",
    figure=P50,
    better="lower",
    reference="Redis Streams",
    contenders=_contenders("none", "no", durable=False),
)

DURABLE = Work(
    name="latency-durable",
    title="One message at a time, fsync before the answer",
    figure=P50,
    better="lower",
    reference="Redis Streams",
    contenders=_contenders("group", "always", durable=True),
)
