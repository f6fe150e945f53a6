"""A recovery, from directories to verdict: files are read, sorted and stored by Spark, one set of files at a time.

The driver takes the files over (`recovery.backlog`), has Spark run the two halves that know no Spark
(`recovery.lines`, `recovery.steps`) with the rules between them, and gives the files back. What runs on executors gets
everything it needs as plain values.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.errors import HoldfastError
from holdfast.model.limits import MIB
from holdfast.pipelines import recover_rules as rules
from holdfast.pipelines import tuning
from holdfast.recovery import blocks, lines, steps
from holdfast.recovery.aside import Asides
from holdfast.recovery.backlog import Backlog, Directories, Ledger, Outcome
from holdfast.recovery.lines import Places, Source
from holdfast.recovery.merging import merged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipelines.recover_targets import Target

COUNTS: Final = ("files", *steps.COUNTS, "set_aside")
# Of files, what one task reads; and what one task sorts and stores, if no partition has more.
_READ_BYTES: Final = 32 * MIB
_PIECE_BYTES: Final = 64 * MIB
# For each core, so that a large partition is not the last one that somebody begins with.
_PIECES_PER_CORE: Final = 4
_PIECES_MAX: Final = 10_000
_TELL_S: Final = 1.0
# Rows are blocks of lines, of which Spark would send thousands to Python at once.
_CONF: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(32 * MIB)}


@dataclass
class Recovered:
    """What became of all lines: `events` is the sum of those that were stored and those that were not.

    `failed` are all lines in the directories' `failed`, also those that were there before.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: int = 0

    def add(self, files: int, outcome: Outcome, *, is_of_earlier_run: bool = False) -> None:
        self.counts["files"] += files
        self.counts["set_aside"] += outcome.set_aside
        self.counts["already_stored"] += outcome.skipped
        self.counts["events"] += outcome.skipped + outcome.set_aside
        for queue, told in outcome.queues.items():
            counted = told
            if is_of_earlier_run:
                counted = {**told, "stored": 0, "already_stored": told["already_stored"] + told["stored"]}
            of_queue = self.queues.setdefault(queue, dict.fromkeys(steps.COUNTS, 0))
            for name, count in counted.items():
                of_queue[name] += count
                self.counts[name] += count

    def as_json(self) -> dict[str, Any]:
        return {**self.counts, "failed": self.failed, "queues": dict(sorted(self.queues.items()))}


def recover_directories(
    spark: SparkSession,
    target: Target,
    directories: Sequence[str],
    *,
    failed: bool,
    allow_duplicates: bool,
    order_by: str,
    partitions: int,
    tell: Callable[[str], None],
) -> Recovered:
    """Until nothing waits in any of them."""
    found = Recovered()
    tell("taking files over")
    ledger = target.ledger()
    try:
        with Directories(directories) as opened:
            if not (target.knows_fates or allow_duplicates):
                tell("looking for messages that may be stored")
                opened.check_fates(failed)
            if failed:
                opened.requeue_failed()
            while (backlog := opened.next_backlog(ledger, order_by, partitions)) is not None:
                sources = [
                    Source(number, file, path)
                    for number, (file, path) in enumerate(zip(backlog.files, opened.paths(backlog), strict=True))
                ]
                queues = _stored(spark, target, ledger, backlog, sources, tell)
                tell("giving files back")
                skipped = sum(map(lines.skipped_lines, sources))
                outcome = Outcome(queues, skipped, opened.set_aside(backlog))
                opened.finish(backlog, ledger, outcome)
                found.add(len(sources), outcome)
            for count, outcome in opened.stored_before:
                found.add(count, outcome, is_of_earlier_run=True)
            found.failed = opened.in_failed()
    finally:
        ledger.close()
    return found


def _stored(
    spark: SparkSession,
    target: Target,
    ledger: Ledger,
    backlog: Backlog,
    sources: Sequence[Source],
    tell: Callable[[str], None],
) -> dict[str, dict[str, int]]:
    size = sum(source.file.size_bytes for source in sources)
    cores = spark.sparkContext.defaultParallelism
    pieces = min(_PIECES_MAX, max(_PIECES_PER_CORE * cores, math.ceil(size / _PIECE_BYTES)))
    read = target.with_stored(ledger, backlog, read_lines(spark, backlog, sources))
    rows = rules.ordered(read, pieces)
    done = spark.sparkContext.accumulator(0)
    store = _with_codes(Storing(target, backlog, [source.path for source in sources], done.add))
    with _Rate(lambda: done.value, tell), tuning.configured(spark, _CONF):
        return steps.summed(rows.mapInArrow(store, steps.RESULT_DDL).collect())


def read_lines(spark: SparkSession, backlog: Backlog, sources: Sequence[Source]) -> DataFrame:
    """All lines of a backlog that can be read, as blocks of them."""
    groups = _grouped(sources)
    numbers = spark.range(0, len(groups), 1, len(groups))
    return numbers.mapInArrow(_with_codes(_Reading(groups, Places(backlog), backlog.order_by)), blocks.DDL)


def _grouped(sources: Sequence[Source]) -> list[list[Source]]:
    groups: list[list[Source]] = [[]]
    size = 0
    for source in sources:
        if groups[-1] and size + source.file.size_bytes > _READ_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.file.size_bytes
    return groups


# --- on executors -------------------------------------------------------------------------------------------

Task = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


@dataclass
class _Reading:
    groups: list[list[Source]]
    places: Places
    order_by: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from lines.blocks_of(self.groups[number], self.places, self.order_by)


@dataclass
class Storing:
    target: Target
    backlog: Backlog
    paths: list[str]
    tell: Callable[[int], None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = self.target.store(self.backlog)
        try:
            yield from steps.stored(merged(batches), store, self.backlog.recovery, self.tell, Asides(self.paths))
        finally:
            store.close()


def _with_codes(task: Task) -> Task:
    """Spark passes on texts only, so an error's code goes into its text."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from task(batches)
        except HoldfastError as error:
            raise RuntimeError(f"[{error.code}] {error.message}") from error

    return run


# --- meanwhile ----------------------------------------------------------------------------------------------


class _Rate:
    """Tells how many are stored, and how many in a second. Tasks say so when they end."""

    def __init__(self, count: Callable[[], int], tell: Callable[[str], None]) -> None:
        self._count = count
        self._tell = tell
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rate", daemon=True)

    def __enter__(self) -> None:
        self._tell("reading and sorting")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_TELL_S):
            count = self._count()
            if count:
                seconds = time.monotonic() - self._began_s
                self._tell(f"stored {count:,} events, {count / seconds:,.0f}/s")
