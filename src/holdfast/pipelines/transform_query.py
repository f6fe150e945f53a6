"""From a topic to a topic: through a function, a function with a state, or a statement, each message once.

`Transform` (`transform_plans`) says what is to be done, and `run_transform` does it as a streaming query. Results and
dead letters of a batch are one transaction (`holdfast.spark.sink`), numbered by the query's checkpoint: a driver that
dies and comes back writes what was not written, and nothing twice.

========================  ============================================================  ================================
what                      how                                                           a row that raises
========================  ============================================================  ================================
a function                `mapInArrow` over batches (`transform_rows`)                  is dead
a function with a state   `transformWithState` by key, or key and window                is dead, and changed no state
                          (`transform_state`)
a statement, row by row   the statement over each micro-batch (`transform_sql`)         is dead
a statement that          the statement over the stream, with a watermark               ends the pipeline
aggregates                                                                              (`statement_raised`)
========================  ============================================================  ================================

A message for which the expression of the event time raises is dead in each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.pipelines import streams, transform_errors, transform_sql
from holdfast.pipelines.call_limits import SPARK_SETTINGS
from holdfast.pipelines.dead_letters import dead_topic
from holdfast.pipelines.errors import BadPipelineSetting, PipelineFailed, StatementRaised
from holdfast.pipelines.transform_functions import ship
from holdfast.pipelines.transform_plans import (
    Transform,
    configured,
    counts,
    folded,
    mapped,
    sink_options,
    timed,
    with_untimed,
)
from holdfast.pipelines.transform_statement import StatementWriter
from holdfast.spark.batch_contents import is_readable_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.client import BlockingClient

NAME: Final = "transform"
# A batch is a transaction, is held in memory where a statement runs row by row, and is repeated after a crash.
BATCH_MESSAGES_MAX_DEFAULT: Final = 100_000
_STATE_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
# With states that are forgotten after a time Spark would run one empty batch after the other, and `once` never end.
_TTL_SETTINGS: Final = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


def prepare(servers: str, wanted: Transform) -> None:
    """Look whether the source is there, and make the target and the dead letters' topic unless they are.

    With as many partitions as the source has, so that what has one key stays together, and apart from others.
    """
    from holdfast.client import RemoteError

    with _connected(servers) as client:
        partitions = len(client.describe(wanted.source).partitions)
        for topic in (wanted.target, dead_topic(wanted.source)):
            try:
                client.create_topic(topic, partitions=partitions)
            except RemoteError as error:
                if error.code != "topic_exists":
                    raise


def _connected(servers: str) -> BlockingClient:
    from holdfast.client import connect_blocking

    return connect_blocking(servers if "://" in servers else f"holdfast://{servers}")


def run_transform(
    spark: SparkSession,
    wanted: Transform,
    *,
    servers: str,
    checkpoint: str,
    group: str,
    starting: str = "earliest",
    batch_messages_max: int = BATCH_MESSAGES_MAX_DEFAULT,
    tasks: int | None = None,
    once: bool = False,
    interval_s: float = streams.INTERVAL_S_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    reports: streams.Reports | None = None,
) -> streams.StreamRun:
    """Run it until all that is there is done (`once`), or until `stop` is set."""
    if str(wanted.dead_max).endswith("%") and not is_readable_here(checkpoint):
        raise BadPipelineSetting(
            f"a share of dead letters needs a checkpoint on a disk of the driver, which says how many messages a batch "
            f"has, and {checkpoint} is none: give dead_max as a number"
        )
    messages = streams.source(
        spark,
        servers=servers,
        group=_group_of_source(servers, wanted.source, group),
        starting=starting,
        subscribe=wanted.source,
        maxOffsetsPerTrigger=batch_messages_max,
        # Work is spread over all cores, however few partitions the topic has.
        minPartitions=tasks or spark.sparkContext.defaultParallelism,
    )
    statement = StatementWriter(wanted, servers, checkpoint, tell)
    settings = {
        **(_STATE_SETTINGS if wanted.is_stateful else {}),
        **(_TTL_SETTINGS if wanted.state_ttl_s is not None else {}),
        **(SPARK_SETTINGS if wanted.call_timeout_s is not None else {}),
    }
    with configured(spark, settings):
        query = _query(spark, messages, wanted, servers, statement)
        try:
            done = streams.run(
                query,
                name=NAME,
                checkpoint=checkpoint,
                once=once,
                interval_s=interval_s,
                tell=tell,
                stop=stop,
                reports=reports,
            )
        except PipelineFailed as failed:
            raised = transform_errors.of_a_row(failed.__cause__)
            if wanted.sql is None or statement.is_used or raised is None:
                raise
            raise StatementRaised(
                f"the statement raised {raised} It aggregates, so that no single message is to blame, and nothing of "
                "the batch is written: write try_cast, try_divide and their like, or leave such messages out with "
                "WHERE, and start it again with the same checkpoint"
            ) from failed
    for name, count in statement.counts.items():
        done.counts[name] = done.counts.get(name, 0) + count
    return done


def _group_of_source(servers: str, source: str, group: str) -> str | None:
    """The group; none, which is told, where the source has a processor: its cursors stand in what that makes."""
    from holdfast.spark.progress import warn_hidden

    with _connected(servers) as client:
        if client.describe(source).delivers_from == source:
            return group
    warn_hidden(group, source)
    return None


def _query(
    spark: SparkSession, messages: DataFrame, wanted: Transform, servers: str, statement: StatementWriter
) -> Any:
    """What writes the stream; `bad_sql` where a statement cannot be run on one."""
    if wanted.sql is None:
        assert wanted.function is not None, "a transform has a function or a statement"
        ship(spark, wanted.function)
        made = folded(messages, wanted) if wanted.is_stateful else mapped(messages, wanted)
    else:
        rows = timed(messages, wanted)
        result = transform_sql.selected(rows, wanted.sql)
        transform_sql.check(result)
        if transform_sql.is_row_by_row(result):
            return messages.writeStream.foreachBatch(statement)
        result = transform_sql.selected(timed(messages, wanted, is_forgiving=True), wanted.sql)
        made = with_untimed(transform_sql.as_messages(result, wanted.rules), messages, wanted)
    counted = made.observe(NAME, *counts(wanted.target))
    return counted.writeStream.format("holdfast").options(servers=servers, **sink_options(wanted)).outputMode("append")
