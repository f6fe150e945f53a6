"""What three nodes can replicate: many small entries, and few large ones, through the leader.

Each record batch is an entry of the log and is replicated, stored and acknowledged as one.
"""

from functools import partial

from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast
from benchmarks.works.cluster_publish import BatchShape, batch_figures
from benchmarks.works.publish import RATE

MB_RATE = "mb_per_s"
LINE = "Holdfast"
MESSAGE_BYTES = 1_024

# (connections, requests under way on each, batches in a request, messages in a batch)
ENTRY_SHAPES = ((2, 2, 500, 1), (4, 2, 250, 1), (4, 4, 250, 1), (4, 4, 100, 1), (1, 2, 1_000, 1))
BULK_SHAPES = ((2, 2, 16, 64), (4, 2, 8, 64), (4, 4, 16, 64), (4, 4, 4, 64), (1, 2, 32, 64))


def _run(shapes: tuple[BatchShape, ...], settings: Settings) -> Measured:
    with holdfast.serve_cluster(settings.directory) as cluster:
        shape, figures = batch_figures(settings, cluster, shapes, MESSAGE_BYTES)
        figures[MB_RATE] = figures[RATE] * MESSAGE_BYTES / 1e6
        return Measured(figures, f"{shape[0]} × {shape[1]} requests of {shape[2]} batches, to the leader")


ENTRIES = Work(
    name="cluster-entries",
    title="Three nodes: 1 KiB messages, each an entry of its own, pipelined",
    figure=RATE,
    reference=LINE,
    contenders=(Contender(LINE, holdfast.NAME, "--sync group on all three", partial(_run, ENTRY_SHAPES)),),
)

BULK = Work(
    name="cluster-bulk",
    title="Three nodes: batches of 64 KiB (64 messages of 1 KiB), pipelined",
    figure=MB_RATE,
    reference=LINE,
    contenders=(Contender(LINE, holdfast.NAME, "--sync group on all three", partial(_run, BULK_SHAPES)),),
)
