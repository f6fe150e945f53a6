"""One message at a time: the next is sent when the last is acknowledged.

Nothing moves these figures as much as the place does, so both places are measured and shown.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.load import http, latency, nats, resp, text
from benchmarks.load.latency import ClosedLoop
from benchmarks.load.wire import FixedLength, Marker
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast, redis
from benchmarks.peers import nats as nats_peer
from benchmarks.peers.holdfast import Broker
from benchmarks.place import Place, put
from benchmarks.process import Server

P50 = "p50_us"
P99 = "p99_us"
P999 = "p999_us"


def latencies(
    settings: Settings, load: ClosedLoop, server: Server | None = None, place: Place = "any core"
) -> dict[str, float]:
    """The figures of one run. Without a server the scheduler chooses the cores."""
    found = generate(settings, latency.run, load, put(server, place) if server else None)
    return {P50: found.p50_us, P99: found.p99_us, P999: found.p999_us}


def text_latencies(
    settings: Settings, broker: Broker, topics: Sequence[str], server: Server | None = None, place: Place = "any core"
) -> dict[str, float]:
    """One connection for each topic named, each with one line under way."""
    load = ClosedLoop(
        ports=(broker.text_port,),
        dial=text.dial,
        replies=partial(FixedLength, text.PUBACK),
        requests=tuple(text.publish(topic) for topic in topics),
        seconds=settings.seconds,
    )
    return latencies(settings, load, server, place)


def nats_load(port: int, seconds: float) -> ClosedLoop:
    return ClosedLoop(
        ports=(port,),
        dial=nats.dial,
        replies=partial(Marker, nats.REPLY_MARKER),
        requests=(nats.publish(0),),
        seconds=seconds,
    )


def holdfast_text(sync: str, topics: Sequence[str], place: Place, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, sync) as broker:
        return Measured(text_latencies(settings, broker, topics, broker.server, place), place)


def redis_streams(fsync: str, streams: Sequence[str], place: Place, settings: Settings) -> Measured:
    with redis.serve(settings.directory, fsync) as server:
        load = ClosedLoop(
            ports=(server.port,),
            dial=resp.dial,
            replies=partial(Marker, resp.REPLY_MARKER),
            requests=tuple(resp.xadd(stream.encode(), 0) for stream in streams),
            seconds=settings.seconds,
        )
        return Measured(latencies(settings, load, server.server, place), place)


def _http(sync: str, settings: Settings) -> Measured:
    with holdfast.serve(settings.directory, sync) as broker:
        load = ClosedLoop(
            ports=(broker.http_port,),
            dial=http.dial,
            replies=partial(http.PublishReplies, 1),
            requests=(http.publish("bench", 1),),
            seconds=settings.seconds,
        )
        return Measured(latencies(settings, load, broker.server, "one core"), "one core")


def _nats(durable: bool, settings: Settings) -> Measured:
    with nats_peer.serve(settings.directory, "always if known" if durable else "default") as server:
        found = latencies(settings, nats_load(server.port, settings.seconds), server.servers[0], "one core")
        note = f"one core; {server.durability}" if durable else "one core"
        return Measured(found, note, weaker=durable and not server.is_synced)


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
    reference="Redis Streams",
    contenders=_contenders("none", "no", durable=False),
)

DURABLE = Work(
    name="latency-durable",
    title="One message at a time, fsync before the answer",
    figure=P50,
    reference="Redis Streams",
    contenders=_contenders("group", "always", durable=True),
)
