"""What three nodes can replicate: many small entries, and few large ones, through the leader.

Each record batch is an entry of the log and is replicated, stored and acknowledged as one.
"""

from functools import partial

from benchmarks.load import batches, pipeline
from benchmarks.load.pipeline import Flow
from benchmarks.measure import Contender, Measured, Settings, Work, best_shape, generate
from benchmarks.peers import holdfast, holdfast_cluster
from benchmarks.works.publish import CPU, RATE, verify

MB_RATE = "mb_per_s"
LINE = "Holdfast"

TOPIC = "bench"
MESSAGE_BYTES = 1_024
BULK_MESSAGES = 64

# (connections, requests under way on each, batches in a request)
ENTRY_SHAPES = ((2, 2, 500), (4, 2, 250), (4, 4, 250), (4, 4, 100), (1, 2, 1_000))
BULK_SHAPES = ((2, 2, 16), (4, 2, 8), (4, 4, 16), (4, 4, 4), (1, 2, 32))

Shape = tuple[int, int, int]


def _run(messages_per_batch: int, shapes: tuple[Shape, ...], settings: Settings) -> Measured:
    with holdfast_cluster.serve(settings.directory) as cluster:

        def put_on(shape: Shape, seconds: float, topic: str = "probe") -> Flow:
            connections, depth, count = shape
            messages = count * messages_per_batch
            request = batches.request(topic, count, messages_per_batch, MESSAGE_BYTES)
            load = cluster.leader(topic).batches_pipeline(request, messages, connections, depth, seconds)
            return generate(settings, pipeline.run, load)

        cluster.create("probe")
        cluster.create(TOPIC)
        shape = best_shape(settings, shapes, put_on)
        before_s = cluster.cpu_s()
        flow = put_on(shape, settings.seconds, TOPIC)
        used_s = cluster.cpu_s() - before_s
        verify(cluster.stored(TOPIC), flow.messages)
        figures = {
            RATE: flow.per_s,
            MB_RATE: flow.per_s * MESSAGE_BYTES / 1e6,
            CPU: used_s / flow.messages * 1e6,
        }
        return Measured(figures, f"{shape[0]} × {shape[1]} requests of {shape[2]} batches, to the leader")


ENTRIES = Work(
    name="cluster-entries",
    title="Three nodes: 1 KiB messages, each an entry of its own, pipelined",
    figure=RATE,
    better="higher",
    reference=LINE,
    contenders=(Contender(LINE, holdfast.NAME, "--sync group on all three", partial(_run, 1, ENTRY_SHAPES)),),
)

BULK = Work(
    name="cluster-bulk",
    title="Three nodes: batches of 64 KiB (64 messages of 1 KiB), pipelined",
    figure=MB_RATE,
    better="higher",
    reference=LINE,
    contenders=(
        Contender(LINE, holdfast.NAME, "--sync group on all three", partial(_run, BULK_MESSAGES, BULK_SHAPES)),
    ),
)
