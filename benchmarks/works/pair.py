"""A primary and its backup: pipelined publishes, and one message at a time."""

from functools import partial

from benchmarks.measure import Contender, Measured, Settings, Work
from benchmarks.peers import holdfast
from benchmarks.works.cluster_publish import text_figures
from benchmarks.works.latency import P50, text_latencies
from benchmarks.works.publish import RATE, TOPIC

DISK = "Holdfast pair, on disk"
MEMORY = "Holdfast pair, in memory"


def _publish(sync: str, settings: Settings) -> Measured:
    with holdfast.serve_pair(settings.directory, sync=sync) as pair:
        shape, found = text_figures(settings, pair)
        return Measured(found, f"{shape[0]} × {shape[1]:,} deep, to the primary", weaker=sync == "none")


def _latency(sync: str, settings: Settings) -> Measured:
    with holdfast.serve_pair(settings.directory, sync=sync) as pair:
        pair.create(TOPIC)
        found = text_latencies(settings, pair.leader(TOPIC), [TOPIC])
        return Measured(found, "any core", weaker=sync == "none")


PUBLISH = Work(
    name="pair-publish",
    title="A pair: 100-byte messages, pipelined, acknowledged by both",
    figure=RATE,
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
    reference=DISK,
    contenders=(
        Contender(DISK, holdfast.NAME, "--sync group on both", partial(_latency, "group")),
        Contender(MEMORY, holdfast.NAME, "--sync none", partial(_latency, "none")),
    ),
)
