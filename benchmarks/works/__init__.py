"""Everything that is measured, in the order in which it is run and shown."""

from benchmarks.measure import Work
from benchmarks.works import latency, memory, publish, read, topics

ALL: tuple[Work, ...] = (
    publish.DURABLE,
    publish.NO_SYNC,
    read.BULK,
    read.BULK_VALUES,
    latency.NO_SYNC,
    latency.DURABLE,
    topics.TOPICS,
    memory.MEMORY,
)
