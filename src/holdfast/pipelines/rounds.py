"""A pipeline that goes round and round: look what is new, do it, wait; told, reported and stopped as streams are.

For pipelines that keep how far they are together with what they write, and so need no checkpoint of Spark's.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast.pipelines.errors import from_spark
from holdfast.pipelines.streams import FINISH_S, INTERVAL_S_DEFAULT, BatchFigures, Reports, StreamRun, told_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_S = 0.2


def run(
    spark: SparkSession,
    step: Callable[[], BatchFigures | None],
    *,
    name: str,
    once: bool = False,
    interval_s: float = INTERVAL_S_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    reports: Reports | None = None,
) -> StreamRun:
    """Do step after step: `once` until one finds nothing to do, else until `stop` is set or one fails.

    A step that leaves messages behind is followed by the next one at once. `stop` lets the step under way end, for as
    long as `streams.FINISH_S`; then its Spark jobs are cancelled, and what it did counts as not done.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    stop = stop or threading.Event()
    done = StreamRun()
    run_id = secrets.token_hex(8)
    with _cancelled(spark, stop) as cancelled, contextlib.closing(reports) if reports else contextlib.nullcontext():
        while not stop.is_set():
            began = time.monotonic()
            try:
                figures = step()
            except (PySparkException, Py4JError) as error:
                if cancelled.is_set():
                    break
                raise from_spark(str(error)) from error
            if figures is not None:
                done.took(figures)
                tell(told_line(figures))
                if reports is not None:
                    reports.publish(name, run_id, figures)
            elif once:
                return done
            if figures is None or not figures.lag:
                stop.wait(max(0.0, 0.0 if once else interval_s - (time.monotonic() - began)))
    done.is_stopped = True
    return done


@contextlib.contextmanager
def _cancelled(spark: SparkSession, stop: threading.Event) -> Iterator[threading.Event]:
    """Cancel the jobs of this block when they go on for too long behind `stop`; gives whether that has begun."""
    context = spark.sparkContext
    tag = f"holdfast-{secrets.token_hex(8)}"
    cancelled, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.wait(_CANCEL_S):
            if ended.is_set():
                return
        if ended.wait(FINISH_S):
            return
        cancelled.set()
        while not ended.wait(_CANCEL_S):
            context.cancelJobsWithTag(tag)

    context.addJobTag(tag)
    watching = threading.Thread(target=watch, name="stop", daemon=True)
    watching.start()
    try:
        yield cancelled
    finally:
        ended.set()
        watching.join()
        context.removeJobTag(tag)
