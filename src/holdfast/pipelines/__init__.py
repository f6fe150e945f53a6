"""Data pipelines on Spark: each is one command, `holdfast pipeline NAME`, and a function that takes a session.

::

    spark = holdfast.spark.session()
    verdict = holdfast.pipelines.audit(spark, sent=["sent.ndjson"], received=["received.ndjson"])
    print(verdict.as_json()["lost"])

What all of them share is in `frame` (a session, settings from flags and a file, progress, an end in order) and in
`charts`; `streams` and `rounds` run those that go on. Each has its logic as functions of DataFrames, which know neither
files nor brokers: `audit_rules`, with `record_files` before it, `audit_verdict` behind it and `audit_page` to look at
it; `archive_rules`, with `archiving` to do what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from holdfast.pipelines.audit_verdict import Verdict
    from holdfast.pipelines.streams import Reports, StreamRun

__all__ = ["archive", "audit"]


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
    return archive_topics(spark, to, settings, once=once, interval_s=interval_s, tell=tell, stop=stop, reports=reports)


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
