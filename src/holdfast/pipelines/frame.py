"""What every pipeline's command shares: its settings, its session, what it tells meanwhile, and how it is stopped.

Settings come from a TOML file, and flags go before it. `master` and the table `conf` (Spark's own settings) are for all
pipelines; a table of a pipeline's name has its own::

    master = "local[*]"

    [conf]
    "spark.driver.memory" = "2g"

    [audit]
    sent = ["runs/sent.ndjson"]
    received = ["runs/received.ndjson"]
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.errors import HoldfastError
from holdfast.pipelines import reaching, spark_log
from holdfast.pipelines.errors import BadPipelineSetting, PipelineFailed, for_command, from_spark, spark_not_installed

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession

# What shells report for a program that a signal ended: this and the signal's number.
_EXIT_SIGNAL: Final = 128
MASTER_DEFAULT: Final = "local[*]"
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)\])?")
_SHARED: Final = {"master": str, "conf": dict}
# What a pipeline needs on one machine, where Spark's own gigabyte is little; an own setting goes before it.
_LOCAL_CONF: Final = {"spark.driver.memory": "2g"}
# Java's usual collector is made for short pauses, of which a pipeline has no use: with this one everything together
# takes a sixth less of processor time.
_COLLECTOR: Final = "-XX:+UseParallelGC"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Spark's own progress bar writes over ours.
_CONF: Final = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
_LOOK_S: Final = 1.0
# How soon the line tells that somebody asked for the end.
_HEAR_S: Final = 0.2
_CANCEL_S: Final = 0.2
# Where nobody looks at a terminal, a line now and then is enough.
_LINE_S: Final = 30.0
# What a pipeline tells that knows its rate itself.
_RATE: Final = "rows/s"
# Of so many stages rows are counted, at half a millisecond each.
_STAGES_MAX: Final = 100


def settings(
    name: str, file: Path | None, known: Mapping[str, type], flags: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Master, Spark's settings and the pipeline's own; `flags` that were not given are None, or empty."""
    read = _read(file, name, known) if file is not None else {}
    given = {key: value for key, value in flags.items() if value is not False and value not in (None, [], ())}
    own = {**read.get(name, {}), **{key: value for key, value in given.items() if key in known}}
    conf = {**read.get("conf", {}), **given.get("conf", {})}
    return given.get("master") or read.get("master", MASTER_DEFAULT), {k: str(v) for k, v in conf.items()}, own


def _read(file: Path, name: str, known: Mapping[str, type]) -> dict[str, Any]:
    try:
        read = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPipelineSetting(f"{file} cannot be read as TOML: {error}") from error
    # Tables of other pipelines may stand in the same file.
    for table, kinds in ((read, {**_SHARED, name: dict}), (read.get(name, {}), known)):
        for key, value in table.items():
            kind = kinds.get(key)
            if kind is None and table is read and isinstance(value, dict):
                continue
            if kind is None:
                raise BadPipelineSetting(f"{file} has the setting {key}; there are {', '.join(sorted(kinds))}")
            if not isinstance(value, kind):
                raise BadPipelineSetting(f"{file}: {key} is to be {_kind_name(kind)}, not {value!r}")
    return read


def _kind_name(kind: type) -> str:
    return {str: "text", list: "a list", dict: "a table", bool: "true or false"}.get(kind, kind.__name__)


class Progress:
    """A line on standard error: what is being done, how many of Spark's tasks are, rows read so far, and for how long.

    Rows are those that Spark's stages have read from files and brokers since a batch was done, or since the start; not
    where `has_rows` says that rows of Spark's are not what the pipeline counts.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        *,
        has_rows: bool = True,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._context = spark.sparkContext
        self._tracker = self._context.statusTracker()
        self._name = name
        self._has_rows = has_rows
        self._what = "starts"
        self._ending = ""
        self._first_stage = self._next_stage = 0
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._began = monotonic_s()
        self._told = self._began
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def tell(self, what: str) -> None:
        self._what = what
        if _RATE in what:
            self._first_stage = self._next_stage

    def end(self, how: str) -> None:
        """Tell this from now on, whatever is being done. Safe in a handler of signals, which may come anywhere."""
        self._ending = how

    @property
    def seconds(self) -> float:
        return self._monotonic_s() - self._began

    def _watch(self) -> None:
        looked, ending = self._began, ""
        while not self._ended.wait(_HEAR_S):
            if self._ending != ending:
                ending = self._ending
                self._told = 0.0
            elif self._monotonic_s() - looked < _LOOK_S:
                continue
            looked = self._monotonic_s()
            line = self.line()
            if sys.stderr.isatty():
                print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
            elif self._monotonic_s() - self._told >= _LINE_S:
                self._told = self._monotonic_s()
                print(line, file=sys.stderr, flush=True)

    def _running_stages(self) -> list[SparkStageInfo]:
        ids = self._tracker.getActiveStageIds()
        self._next_stage = max(self._next_stage, *(each + 1 for each in ids), 0)
        return [stage for each in ids if (stage := self._tracker.getStageInfo(each)) is not None]

    def line(self) -> str:
        """The line of progress as it is now."""
        stages = self._running_stages()
        what = self._ending or self._what
        done = sum(stage.numCompletedTasks for stage in stages)
        tasks = sum(stage.numTasks for stage in stages)
        counted = f": {done:,} of {tasks:,} tasks" if tasks else ""
        if self._has_rows and _RATE not in what and not self._ending:
            counted += self._rows(range(self._first_stage, self._next_stage))
        return f"{self._name}: {what}{counted}, {self.seconds:.0f} s"

    def _rows(self, stages: range) -> str:
        """How many rows these stages have read, and in a second; nothing where Spark does not say so."""
        from py4j.protocol import Py4JError

        try:
            # What Spark's own page is made of. It is there without the page, but for Java only.
            store = self._context._jsc.sc().statusStore()
        except (Py4JError, AttributeError):
            return ""
        rows, began_s = 0, self._wall_s()
        for stage in stages[-_STAGES_MAX:]:
            with contextlib.suppress(Py4JError):
                told = store.lastStageAttempt(stage)
                if read := told.inputRecords():
                    rows += read
                    began_s = min(began_s, told.submissionTime().get().getTime() / 1000)
        return f", {rows:,} rows, {rows / max(self._wall_s() - began_s, 0.001):,.0f} {_RATE}" if rows else ""


class Stop:
    """A wish for the end, to a pipeline that can end in order: the first signal sets it, and a second one ends all.

    `piece` is what the pipeline finishes before it ends, for its line of progress.
    """

    def __init__(self, piece: str = "batch") -> None:
        self.piece = piece
        self.asked = threading.Event()
        self.exit_code = 0

    def ask(self, signal_number: int) -> None:
        self.exit_code = _EXIT_SIGNAL + signal_number
        self.asked.set()


@contextlib.contextmanager
def running(
    name: str,
    master: str,
    conf: Mapping[str, str],
    stop: Stop | None = None,
    *,
    has_rows: bool = True,
    servers: str | None = None,
) -> Iterator[tuple[SparkSession, Progress]]:
    """A session of the command's own, which ends with it. SIGINT and SIGTERM end what Spark is doing, too.

    With `stop` the first of them only sets that: the pipeline looks at it, and says itself how the command ends.
    `has_rows` is for its line of progress. Brokers at `servers`, and the master of a cluster, must answer before Spark
    is started: it would ask them for minutes.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        import holdfast.spark
    except ModuleNotFoundError as missing:
        raise spark_not_installed(missing) from missing

    conf, log_level = spark_log.quiet(conf)
    reaching.reach_master(master)
    if servers is not None:
        reaching.reach_brokers(servers)
    spark: SparkSession | None = None
    progress: Progress | None = None
    ended_by: list[int] = []
    ended = threading.Event()

    def leave(number: int, _: object) -> None:
        if spark is None:
            # Java is being started. Whoever leaves in the middle of that may leave it behind.
            ended_by.append(number)
        elif stop is not None and not stop.asked.is_set():
            stop.ask(number)
            if progress is not None:
                progress.end(f"stops when its {stop.piece} is done; once more stops it at once")
        elif not ended_by:
            ended_by.append(number)
            if progress is not None:
                progress.end("stops")
            threading.Thread(target=_cancel, args=(spark, ended), daemon=True).start()

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        with _handlers_kept():
            spark = holdfast.spark.session(_retrying(master), f"holdfast {name}", config=_conf(master, conf))
        if ended_by:
            raise SystemExit(_EXIT_SIGNAL + ended_by[0])
        if log_level is not None:
            spark.sparkContext.setLogLevel(log_level)
        # Tasks of a job that is cancelled end at once, not when they are done.
        spark.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "true")
        progress = Progress(spark, name, has_rows=has_rows)
        with progress:
            yield spark, progress
        if ended_by:
            raise SystemExit(_EXIT_SIGNAL + ended_by[0])
    except (PySparkException, Py4JError, HoldfastError) as error:
        if ended_by and (isinstance(error, PipelineFailed) or not isinstance(error, HoldfastError)):
            raise SystemExit(_EXIT_SIGNAL + ended_by[0]) from error
        if reaching.is_master_gone(master, error):
            raise reaching.master_gone(master) from error
        if isinstance(error, HoldfastError):
            for_command(name, error)
            raise
        raise for_command(name, from_spark(str(error))) from error
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        try:
            if spark is not None:
                spark.stop()
        except Py4JError as error:
            if not ended_by:
                raise from_spark(f"it did not end in order: {error}") from error


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Spark sets a handler for SIGINT of its own at its start, which raises in the middle of whatever is done.

    It would not in another thread; but then the main one does not find all that belongs to the session.

    Spark starts Java with SIGINT ignored, since it is for us to hear. A SIGTERM may go to all processes of a group as
    well, and would end Java in the middle of a batch: so Java is started with all signals ignored that we hear. It ends
    when this process does.
    """
    setting, own = signal.signal, os.getpid()

    def keep(number: int, handler: Any) -> Any:
        if os.getpid() != own and number in _SIGNALS:
            # In the child that is about to become Java.
            return [setting(each, handler) for each in _SIGNALS]
        return signal.getsignal(number) if callable(handler) else setting(number, handler)

    signal.signal = keep  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = setting


def _retrying(master: str) -> str:
    """On one machine Spark gives a job up with its first task that fails, and a worker may die: one more try."""
    cores = _LOCAL.fullmatch(master)
    return master if cores is None else f"local[{cores[1] or 1}, 2]"


def _conf(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings: those that are given, and ours where they say nothing."""
    from holdfast.spark.java import is_collector_chosen

    if not master.startswith("local"):
        return {**_CONF, **given}
    conf = {**_CONF, **_LOCAL_CONF, **given}
    # Java does not start with two of them.
    if not is_collector_chosen(given.get(_JAVA_OPTIONS, ""), given.get("spark.driver.defaultJavaOptions", "")):
        conf[_JAVA_OPTIONS] = " ".join(filter(None, (_COLLECTOR, given.get(_JAVA_OPTIONS))))
    return conf


def _cancel(spark: SparkSession, ended: threading.Event) -> None:
    """Have the call to Java that the pipeline waits for fail, and each that it begins behind it.

    An exception in the middle of such a call would leave half an answer behind, and nothing could be ended in order.
    """
    while not ended.is_set():
        spark.sparkContext.cancelAllJobs()
        ended.wait(_CANCEL_S)
