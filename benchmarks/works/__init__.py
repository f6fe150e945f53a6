"""Everything that is measured, in the order in which it is run and shown."""

from benchmarks.measure import Work
from benchmarks.works import (
    callbacks,
    cluster_catch_up,
    cluster_entries,
    cluster_failover,
    cluster_idle,
    cluster_latency,
    cluster_publish,
    latency,
    memory,
    pair,
    pair_failover,
    pipelines,
    postgres_push,
    publish,
    queue,
    read,
    spark,
    topics,
)

ALL: tuple[Work, ...] = (
    publish.DURABLE,
    publish.NO_SYNC,
    read.BULK,
    read.BULK_VALUES,
    latency.NO_SYNC,
    latency.DURABLE,
    topics.TOPICS,
    memory.MEMORY,
    callbacks.ONE,
    callbacks.MANY,
    cluster_publish.PUBLISH,
    cluster_entries.ENTRIES,
    cluster_entries.BULK,
    cluster_latency.LATENCY,
    cluster_failover.KILL,
    cluster_failover.TERM,
    cluster_catch_up.CATCH_UP,
    cluster_catch_up.JOIN,
    cluster_idle.IDLE,
    queue.APPENDS,
    queue.READS,
    queue.PROXY,
    pair.PUBLISH,
    pair.LATENCY,
    pair_failover.KILL,
    pair_failover.SILENT,
    pair_failover.COMPUTING,
    postgres_push.MANY_A_REQUEST,
    postgres_push.ONE_A_REQUEST,
    postgres_push.AWAY,
    spark.COUNT,
    spark.WRITE,
    spark.SINK_WORK,
    spark.MICRO_BATCH,
    spark.FIRST_ROW,
    pipelines.AUDIT,
    pipelines.RECOVER,
    pipelines.TRANSFORM,
)


def named(name: str) -> list[Work]:
    """The work of that name, or all whose names begin with it: `cluster` is every `cluster-…`."""
    return [work for work in ALL if work.name == name] or [work for work in ALL if work.name.startswith(f"{name}-")]
