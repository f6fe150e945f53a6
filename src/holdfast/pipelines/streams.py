"""A streaming query as a pipeline runs it: once or continuously, with a line of progress, figures, and an end in order.

::

    stop = frame.Stop()
    with frame.running("archive", master, conf, stop) as (spark, progress):
        rows = streams.source(spark, servers=servers, subscribe="orders", group="archive")
        query = rows.writeStream.foreachBatch(store)
        done = streams.run(query, name="archive", checkpoint="here", once=True, tell=progress.tell, stop=stop.asked)
    print(done.rows, done.lag)

How far the query is stands in its checkpoint, and as a cursor of `group` in the brokers, with its lag. `Reports` also
publishes each batch's figures to a topic. Whoever asks for the end by `stop` gets it when the batch under way is done,
or after `FINISH_S`: the batch is abandoned then, as by a kill, and the next start runs it again. So a sink must take a
batch once, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.errors import HoldfastError
from holdfast.pipelines.errors import from_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from holdfast.client import BlockingClient

INTERVAL_S_DEFAULT: Final = 10.0
# How long a batch may take to its end once somebody asked for that of the query.
FINISH_S: Final = 30.0
_LOOK_S: Final = 0.5
_STOP_LOOK_S: Final = 0.05
# A report is for people and dashboards: a broker that is away must not hold the query up for long.
_REPORT_TIMEOUT_S: Final = 5.0

_log = logging.getLogger("holdfast.pipelines")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """What became of one micro-batch; `lag` counts messages that were there when it was planned and are not done.

    `late` are rows that came behind a watermark and were left out, and `counts` what the query observes.
    """

    batch: int
    rows: int
    seconds: float
    lag: int
    offsets: Mapping[str, Mapping[str, int]]
    late: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(slots=True, kw_only=True)
class StreamRun:
    """What one run of a query has done so far; `is_stopped` where somebody asked for its end."""

    batches: int = 0
    rows: int = 0
    lag: int = 0
    late: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    last_batch: int | None = None
    is_stopped: bool = False

    def took(self, figures: BatchFigures) -> None:
        self.batches += 1
        self.rows += figures.rows
        self.lag = figures.lag
        self.last_batch = figures.batch
        self.late += figures.late
        for name, count in figures.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class Reports:
    """Publishes figures as JSON, of a batch or of a whole run; what cannot be is logged, and the pipeline goes on."""

    def __init__(self, servers: str, topic: str) -> None:
        self._url = servers if "://" in servers else f"holdfast://{servers}"
        self._topic = topic
        self._client: BlockingClient | None = None

    def publish(self, name: str, query_id: str, figures: BatchFigures) -> None:
        told = {
            "pipeline": name,
            "query": query_id,
            "batch": figures.batch,
            "rows": figures.rows,
            "seconds": round(figures.seconds, 3),
            "rows_per_s": round(figures.rows_per_s, 1),
            "lag": figures.lag,
            **({"late": figures.late} if figures.late else {}),
            **figures.counts,
            "offsets": figures.offsets,
        }
        self._send(told, f"of batch {figures.batch}", f"{query_id}/{figures.batch}")

    def publish_whole(self, name: str, figures: Mapping[str, Any]) -> None:
        """Those of a pipeline that has no batches."""
        self._send({"pipeline": name, **figures}, f"of {name}")

    def _send(self, told: Mapping[str, Any], which: str, message_id: str | None = None) -> None:
        from holdfast.client import connect_blocking

        try:
            if self._client is None:
                self._client = connect_blocking(self._url, timeout_s=_REPORT_TIMEOUT_S)
            self._client.publish(self._topic, told, id=message_id)
        except HoldfastError as error:
            _log.warning("the figures %s are not in %s: %s", which, self._topic, error)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def source(
    spark: SparkSession, *, servers: str, group: str | None, starting: str = "earliest", **options: str | int | None
) -> DataFrame:
    """All columns of the topics that `subscribe`, `subscribePattern` or `assign` names, by options of the connector."""
    given = {name: str(value) for name, value in {"groupId": group, **options}.items() if value is not None}
    reader = spark.readStream.format("holdfast").options(servers=servers, startingOffsets=starting)
    return reader.options(includeHeaders="true", **given).load()


def run(
    writer: DataStreamWriter,
    *,
    name: str,
    checkpoint: str,
    once: bool = False,
    interval_s: float = INTERVAL_S_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    reports: Reports | None = None,
) -> StreamRun:
    """Run a query to its end: `once` until all that is there now is done, else until `stop` is set or it fails."""
    from pyspark.errors import PySparkException

    stop = stop or threading.Event()
    done = StreamRun()
    trigger: dict[str, Any] = (
        {"availableNow": True} if once else {"processingTime": f"{round(interval_s * 1000)} milliseconds"}
    )
    try:
        query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
        with contextlib.closing(reports) if reports is not None else contextlib.nullcontext():
            while not query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]
                _hear(query, name, done, tell, reports)
                if stop.is_set():
                    done.is_stopped = True
                    tell("finishes its batch")
                    _end(query, done)
                    break
            _hear(query, name, done, tell, reports)
    except PySparkException as error:
        raise from_spark(str(error)) from error
    return done


def _hear(
    query: StreamingQuery, name: str, done: StreamRun, tell: Callable[[str], None], reports: Reports | None
) -> None:
    """Take in what the query tells of batches that ended since."""
    for figures in batches_after(done.last_batch, query.recentProgress):
        done.took(figures)
        tell(told_line(figures))
        if reports is not None:
            reports.publish(name, str(query.id), figures)


def told_line(figures: BatchFigures) -> str:
    """A batch in words, for the line of progress."""
    return f"batch {figures.batch:,} done, {figures.rows_per_s:,.0f} rows/s, lag {figures.lag:,} messages"


def _end(query: StreamingQuery, done: StreamRun) -> None:
    """Stop a query behind the batch that it is at, or in the middle of it where that takes too long."""
    deadline = time.monotonic() + FINISH_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if any(batches_after(done.last_batch, query.recentProgress)):
            break
        time.sleep(_STOP_LOOK_S)
    query.stop()


def batches_after(last_batch: int | None, progress: Iterable[Mapping[str, Any]]) -> Iterable[BatchFigures]:
    """The figures of batches behind that one; Spark also tells of moments in which it found nothing to do."""
    for each in progress:
        if (last_batch is not None and each["batchId"] <= last_batch) or not each["sources"]:
            continue
        if any(source["endOffset"] is None for source in each["sources"]) or not _is_batch(each):
            continue
        last_batch = each["batchId"]
        ours = [offsets for source in each["sources"] if (offsets := _offsets(source["endOffset"])) is not None]
        yield BatchFigures(
            batch=each["batchId"],
            rows=_rows(each),
            seconds=each["durationMs"].get("triggerExecution", 0) / 1000,
            lag=sum(map(lag, each["sources"])),
            offsets={topic: numbers for offsets in ours for topic, numbers in offsets.items()},
            late=sum(each_operator["numRowsDroppedByWatermark"] for each_operator in each.get("stateOperators", ())),
            counts={
                name: count
                for observed in each.get("observedMetrics", {}).values()
                for name, count in _named(observed).items()
            },
        )


def _rows(progress: Mapping[str, Any]) -> int:
    """The messages of a batch. Spark counts one as often as it was read, and a query may read a batch several times."""
    counted = int(progress["numInputRows"])
    spans = [_span(source) for source in progress["sources"]]
    return min(counted, sum(span for span in spans if span is not None)) if None not in spans else counted


def _span(source: Mapping[str, Any]) -> int | None:
    """How many offsets a batch goes over; of the first one the end says where it began."""
    end = _offsets(source["endOffset"])
    begin = _offsets(source.get("startOffset")) or {}
    began = _offsets(source["endOffset"], "began") or {}
    if end is None:
        return None
    starts = {
        (topic, number): begin.get(topic, {}).get(number, began.get(topic, {}).get(number))
        for topic, numbers in end.items()
        for number in numbers
    }
    if None in starts.values():
        return None
    return sum(max(0, end[topic][number] - (start or 0)) for (topic, number), start in starts.items())


def _named(observed: Any) -> Mapping[str, int]:
    return observed if isinstance(observed, dict) else observed.asDict()


def _is_batch(progress: Mapping[str, Any]) -> bool:
    return "addBatch" in progress["durationMs"]


def lag(source: Mapping[str, Any]) -> int:
    """Messages between where a source is and where its topics ended when its last batch was planned."""
    reached, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if reached is None or latest is None:
        return 0
    return sum(
        max(0, end - reached.get(topic, {}).get(number, end))
        for topic, numbers in latest.items()
        for number, end in numbers.items()
    )


def _offsets(text: str | None, name: str = "offsets") -> dict[str, dict[str, int]] | None:
    """The offsets of one of our sources, as Spark passes them on; others have something else there."""
    try:
        kept = json.loads(text or "null")
    except ValueError:
        return None
    return kept[name] if isinstance(kept, dict) and isinstance(kept.get(name), dict) else None
