"""A primary and its backup: pipelined publishes, and one message at a time."""

from functools import partial

from benchmarks.load import latency, pipeline, text
from benchmarks.load.latency import ClosedLoop
from benchmarks.load.pipeline import Flow
from benchmarks.load.wire import FixedLength
from benchmarks.measure import Contender, Measured, Settings, Work, best_shape, generate
from benchmarks.peers import holdfast, holdfast_cluster
from benchmarks.works.cluster_publish import TEXT_SHAPES, Pair
from benchmarks.works.latency import P50, figures
from benchmarks.works.publish import CPU, RATE, verify

TOPIC = "bench"
DISK = "Holdfast pair, on disk"
MEMORY = "Holdfast pair, in memory"


def _publish(sync: str, settings: Settings) -> Measured:
    with holdfast_cluster.serve_pair(settings.directory, sync=sync) as pair:

        def put_on(shape: Pair, seconds: float, topic: str = "probe") -> Flow:
            load = pair.leader(topic).broker.text_pipeline(topic, *shape, seconds)
            return generate(settings, pipeline.run, load)

        pair.create("probe")
        pair.create(TOPIC)
        shape = best_shape(settings, TEXT_SHAPES, put_on)
        before_s = pair.cpu_s()
        flow = put_on(shape, settings.seconds, TOPIC)
        used_s = pair.cpu_s() - before_s
        verify(pair.stored(TOPIC), flow.messages)
        found = {RATE: flow.per_s, CPU: used_s / flow.messages * 1e6}
        return Measured(found, f"{shape[0]} × {shape[1]:,} deep, to the primary", weaker=sync == "none")


def _latency(sync: str, settings: Settings) -> Measured:
    with holdfast_cluster.serve_pair(settings.directory, sync=sync) as pair:
        pair.create(TOPIC)
        load = ClosedLoop(
            port=pair.leader(TOPIC).text_port,
            dial=text.dial,
            replies=partial(FixedLength, text.PUBACK),
            requests=(text.publish(TOPIC),),
            seconds=settings.seconds,
        )
        return Measured(figures(generate(settings, latency.run, load)), "any core", weaker=sync == "none")


PUBLISH = Work(
    name="pair-publish",
    title="A pair: 100-byte messages, pipelined, acknowledged by both",
    figure=RATE,
    better="higher",
    reference=DISK,
    contenders=(
        Contender(DISK, holdfast.NAME, "--sync group on both", partial(_publish, "group")),
        Contender(MEMORY, holdfast.NAME, "--sync none", partial(_publish, "none")),
    ),
)

LATENCY = Work(
    name="pair-latency",
    title="A pair: one message at a time, acknowledged by both",
    figure=P50,
    better="lower",
    reference=DISK,
    contenders=(
        Contender(DISK, holdfast.NAME, "--sync group on both", partial(_latency, "group")),
        Contender(MEMORY, holdfast.NAME, "--sync none", partial(_latency, "none")),
    ),
)
