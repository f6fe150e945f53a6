"""Data pipelines on Spark: each is one command, `holdfast pipeline NAME`, and a function that takes a session.

::

    spark = holdfast.spark.session()
    verdict = holdfast.pipelines.audit(spark, sent=["sent.ndjson"], received=["received.ndjson"])
    print(verdict.as_json()["lost"])

`transform` takes a topic to a topic, through a function or a statement: `transform_plans`, `transform_rows`,
`transform_state`, `transform_sql`.

What all of them share is in `frame` (a session, settings from flags and a file, progress, an end in order) and in
`charts`. Each has its logic as functions of DataFrames, which know neither files nor brokers: `audit_rules`, with
`record_files` before it, `audit_verdict` behind it and `audit_page` to look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipelines.audit_verdict import Verdict
    from holdfast.pipelines.streams import StreamRun

__all__ = ["audit", "transform"]


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

    return audit_records(
        record_files.sent_records(spark, sent, servers, sent_topics),
        record_files.received_records(spark, received, servers, received_topics),
        every_receiver=every_receiver,
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

    from holdfast.pipelines import transform_functions
    from holdfast.pipelines.transform_plans import Transform
    from holdfast.pipelines.transform_query import prepare, run_transform

    own = {each.name: options.pop(each.name) for each in dataclasses.fields(Transform) if each.name in options}
    found = None
    if isinstance(function, str):
        found = transform_functions.find(function, is_stateful=own.get("is_stateful", False))
    elif function is not None:
        found = transform_functions.Found(function)
    wanted = Transform(source=source, target=target, function=found, sql=sql, **own)
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
