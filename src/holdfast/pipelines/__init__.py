"""Data pipelines on Spark: each is one command, `holdfast pipeline NAME`, and a function that takes a session.

::

    spark = holdfast.spark.session()
    verdict = holdfast.pipelines.audit(spark, sent=["sent.ndjson"], received=["received.ndjson"])
    print(verdict.as_json()["lost"])

What all of them share is in `frame` (a session, settings from flags and a file, progress, an end in order) and in
`charts`; `streams` and `rounds` run those that go on. Each has its logic as functions of DataFrames, which know neither
files nor brokers: `archive_rules`, with `archiving` to do what they say; `audit_rules`, with `record_files` before it,
`audit_verdict` behind it and `audit_page` to look at it; `insight_rules`, with `insight_source`, `insight_findings` and
`insight_page`; `recover_rules`, with `recover_run` around it and `recover_targets` behind it; `transform_plans`, with
`transform_rows`, `transform_state` and `transform_sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from holdfast.pipelines.audit_verdict import Verdict
    from holdfast.pipelines.insight_findings import Insight
    from holdfast.pipelines.recover_run import Recovered
    from holdfast.pipelines.streams import Reports, StreamRun

__all__ = ["archive", "audit", "insight", "recover", "transform"]


def archive(
    spark: SparkSession,
    topics: Sequence[str] = (),
    *,
    to: str,
    servers: str = "127.0.0.1:8090",
    pattern: str | None = None,
    group: str = "archive",
    once: bool = True,
    interval_s: float = 10.0,
    batch_bytes: int = 256 << 20,
    file_bytes: int = 128 << 20,
    compact_files: int = 8,
    keep_replaced_s: float = 3600.0,
    allow_gaps: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    reports: Reports | None = None,
) -> StreamRun:
    """Archive topics to Parquet files in the directory `to`, each offset once: all that is there now, or on and on."""
    from holdfast.pipelines.archive_settings import ArchiveSettings
    from holdfast.pipelines.archiving import archive_topics
    from holdfast.pipelines.sessions import in_this_thread

    settings = ArchiveSettings(
        servers=servers,
        topics=tuple(topics),
        pattern=pattern,
        group=group,
        batch_bytes=batch_bytes,
        file_bytes=file_bytes,
        compact_files=compact_files,
        keep_replaced_s=keep_replaced_s,
        allow_gaps=allow_gaps,
    )
    with in_this_thread(spark):
        return archive_topics(
            spark, to, settings, once=once, interval_s=interval_s, tell=tell, stop=stop, reports=reports
        )


def audit(
    spark: SparkSession,
    *,
    sent: Sequence[str] = (),
    received: Sequence[str] = (),
    sent_topics: Sequence[str] = (),
    received_topics: Sequence[str] = (),
    servers: str = "127.0.0.1:8090",
    every_receiver: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Hold what was received against what was sent: files, directories and patterns, or what stands in topics."""
    from holdfast.pipelines import record_files
    from holdfast.pipelines.audit_verdict import audit_records
    from holdfast.pipelines.sessions import in_this_thread

    with in_this_thread(spark):
        return audit_records(
            record_files.sent_records(spark, sent, servers, sent_topics),
            record_files.received_records(spark, received, servers, received_topics),
            every_receiver=every_receiver,
            tell=tell,
        )


def insight(
    spark: SparkSession,
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    servers: str = "127.0.0.1:8090",
    since_ms: int | None = None,
    window_ms: int | None = None,
    top: int = 10,
    tell: Callable[[str], None] = lambda _: None,
) -> Insight:
    """Rates, sizes, hot keys, errors and lag of topics, from what stands in them since that time."""
    import time

    from holdfast.pipelines import insight_findings, insight_source, tuning
    from holdfast.pipelines.sessions import in_this_thread

    asked_ms = time.time_ns() // 1_000_000
    with in_this_thread(spark):
        chosen = insight_source.choose(servers, topics, pattern)
        with tuning.configured(spark, {tuning.SHUFFLE: str(tuning.pieces(chosen.bytes))}):
            return insight_findings.look(
                chosen.read(spark, servers, since_ms),
                chosen.topics,
                chosen.cursors,
                asked_ms=asked_ms,
                since_ms=since_ms,
                window_ms=window_ms,
                top=top,
                tell=tell,
            )


def recover(
    spark: SparkSession,
    directories: Sequence[str],
    *,
    store: str | None = None,
    servers: str | None = None,
    failed: bool = False,
    allow_duplicates: bool = False,
    order_by: str = "time",
    partitions: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Recovered:
    """Store what waits in the spill directories of brokers: in a PostgreSQL, `store`, or through brokers, `servers`.

    `failed`: also what is in their `failed` and can be read. `allow_duplicates`: also, through brokers, messages
    without ids that only the brokers' own database could tell from stored ones. `partitions`: of topics that are made.
    """
    from holdfast.pipelines.recover_run import recover_directories
    from holdfast.pipelines.recover_settings import check
    from holdfast.pipelines.recover_targets import chosen_target
    from holdfast.pipelines.sessions import in_this_thread

    check(store, servers, order_by, partitions)
    with in_this_thread(spark):
        return recover_directories(
            spark,
            chosen_target(store, servers),
            directories,
            failed=failed,
            allow_duplicates=allow_duplicates,
            order_by=order_by,
            partitions=partitions,
            tell=tell,
        )


def transform(
    spark: SparkSession,
    *,
    source: str,
    target: str,
    checkpoint: str,
    function: Callable[..., Any] | str | None = None,
    sql: str | None = None,
    servers: str = "127.0.0.1:8090",
    group: str | None = None,
    once: bool = True,
    **options: Any,
) -> StreamRun:
    """Take a topic to another one, each message once; those for which it raises go to `<source>.dead`.

    `function` is one, or its name. Options are those of `transform_plans.Transform` (`is_stateful`, `window_s`,
    `watermark_s`, `event_time`, …) and of `transform_query.run_transform` (`starting`, `stop`, `reports`, …).
    """
    import dataclasses
    import inspect

    from holdfast.pipelines import transform_functions
    from holdfast.pipelines.sessions import in_this_thread
    from holdfast.pipelines.transform_plans import Transform
    from holdfast.pipelines.transform_query import prepare, run_transform

    fields = [each.name for each in dataclasses.fields(Transform)]
    accepted = (*inspect.signature(transform).parameters, *fields, *inspect.signature(run_transform).parameters)
    known = dict.fromkeys(accepted)
    for name in ("options", "wanted"):
        del known[name]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"transform() has no argument {unknown[0]!r}; it has {', '.join(known)}")
    own = {name: options.pop(name) for name in fields if name in options}
    found = None
    if isinstance(function, str):
        found = transform_functions.find(function, is_stateful=own.get("is_stateful", False))
    elif function is not None:
        found = transform_functions.Found(function)
    wanted = Transform(source=source, target=target, function=found, sql=sql, **own)
    with in_this_thread(spark):
        prepare(servers, wanted)
        return run_transform(
            spark,
            wanted,
            servers=servers,
            checkpoint=checkpoint,
            group=group or f"transform-{target}",
            once=once,
            **options,
        )
