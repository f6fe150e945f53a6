"""Reading a stored topic back in bulk."""

from functools import partial

from benchmarks.load import pipeline, read
from benchmarks.load.read import Decode, HoldfastRead, RedisRead
from benchmarks.measure import Contender, Measured, Settings, Work, best_shape, generate
from benchmarks.peers import holdfast, redis
from benchmarks.place import EVERY, Place, put
from benchmarks.works.publish import RATE

MESSAGES = 1_000_000
MESSAGES_QUICK = 20_000
FILL_SECONDS_MAX = 120.0

# Entries in one XREAD or bytes in one reply of ours, and the place.
REDIS_SHAPES = tuple((count, place) for place in EVERY for count in (1_000, 10_000, 100))
HOLDFAST_SHAPES = tuple((size, place) for place in EVERY for size in (1 << 20, 4 << 20))

Shape = tuple[int, Place]

TOPIC = "bench"


def _messages(settings: Settings) -> int:
    return MESSAGES_QUICK if settings.quick else MESSAGES


def _holdfast(decode: Decode, settings: Settings) -> Measured:
    messages = _messages(settings)
    with holdfast.serve(settings.directory, "none") as broker:
        fill = broker.text_pipeline(TOPIC, 1, 20_000, FILL_SECONDS_MAX, messages)
        stored = generate(settings, pipeline.run, fill).messages

        def take(shape: Shape, _seconds: float) -> pipeline.Flow:
            load = HoldfastRead(broker.http_port, TOPIC, stored, shape[0], decode)
            return generate(settings, read.read_holdfast, load, put(broker.server, shape[1]))

        shape = best_shape(settings, HOLDFAST_SHAPES, take)
        return Measured({RATE: take(shape, 0).per_s}, f"{shape[0] >> 20} MiB a request, {shape[1]}")


def _redis(decode: Decode, settings: Settings) -> Measured:
    messages = _messages(settings)
    with redis.serve(settings.directory, "no") as server:
        server.fill(messages)

        def take(shape: Shape, _seconds: float) -> pipeline.Flow:
            load = RedisRead(server.port, redis.STREAM, messages, shape[0], decode)
            return generate(settings, read.read_redis, load, put(server.server, shape[1]))

        shape = best_shape(settings, REDIS_SHAPES, take)
        return Measured({RATE: take(shape, 0).per_s}, f"COUNT {shape[0]:,}, {shape[1]}")


def _work(name: str, title: str, decode: Decode) -> Work:
    return Work(
        name=name,
        title=title,
        figure=RATE,
        reference="Redis Streams",
        contenders=(
            Contender("Holdfast", holdfast.NAME, "HTTP, stored batches", partial(_holdfast, decode)),
            Contender("Redis Streams", redis.NAME, "XREAD", partial(_redis, decode)),
        ),
    )


BULK = _work("read", "Read back in bulk, bytes counted", decode="nothing")
BULK_VALUES = _work("read-values", "Read back in bulk, values handed to Python", decode="values")
