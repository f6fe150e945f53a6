"""What a pipeline's command tells when something is wrong: a line that helps, soon, and no pages of Java."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from testkit.wait import PATIENCE_S, wait_until
from typer.testing import CliRunner

from holdfast import pipelines
from holdfast import spark as connector
from holdfast.cli.app import app
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.pipelines import frame, reaching
from holdfast.pipelines.audit_verdict import Verdict, nothing_sent
from holdfast.pipelines.errors import PipelineFailed, from_spark

OPTIONS = "spark.driver.defaultJavaOptions"
LOST = "[data_lost] orders is another topic; with the option failOnDataLoss=false a query goes on without it"


class Started:
    """In place of Spark: what a pipeline asked of it, and what it did with the session that it got."""

    def __init__(self) -> None:
        self.masters: list[str] = []
        self.config: dict[str, str] = {}
        self.levels: list[str] = []
        self.is_stopped = False
        # Called by the start of a session.
        self.on_start: Callable[[], None] = lambda: None
        tracker = SimpleNamespace(getActiveStageIds=list)
        self.sparkContext = SimpleNamespace(
            setLogLevel=self.levels.append,
            setLocalProperty=lambda *_: None,
            statusTracker=lambda: tracker,
            cancelAllJobs=lambda: None,
        )

    def start(self, master: str, *_: object, config: dict[str, str]) -> Started:
        self.masters.append(master)
        self.config = config
        self.on_start()
        return self

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    made = Started()
    monkeypatch.setattr(connector, "session", made.start)
    return made


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of this machine at which nobody answers, and that nobody else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize(("conf", "level"), [({}, "OFF"), ({"spark.log.level": "warn"}, "WARN")])
def test_spark_logs_nothing_unless_it_is_asked_to(conf: dict[str, str], level: str, started: Started) -> None:
    with frame.running("audit", "local[1]", {**conf, OPTIONS: "-Da=b"}):
        pass
    file, chosen, own = started.config[OPTIONS].split()
    assert started.levels == [level] and chosen == f"-Dholdfast.spark.log={level}" and own == "-Da=b"
    # Spark tells of a level that it is given by this setting.
    assert "spark.log.level" not in started.config
    named = Path(file.strip('"').removeprefix("-Dlog4j2.configurationFile=file://"))
    assert "${sys:holdfast.spark.log" in named.read_text("utf-8")


def test_own_way_of_logging_stays(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with frame.running("audit", "local[1]", {OPTIONS: "-Dlog4j2.configurationFile=own.xml"}):
        pass
    assert started.config[OPTIONS] == "-Dlog4j2.configurationFile=own.xml" and started.levels == []
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with frame.running("audit", "local[1]", {}):
        pass
    assert OPTIONS not in started.config and started.levels == []


def refusal(*arguments: object) -> HoldfastError:
    with pytest.raises(HoldfastError) as refused, frame.running(*arguments):  # type: ignore[arg-type]
        raise AssertionError("it went on")
    return refused.value


def test_level_that_spark_does_not_have_is_told(started: object) -> None:
    refused = refusal("audit", "local[1]", {"spark.log.level": "loud"})
    assert refused.code == "bad_option" and "OFF, FATAL, ERROR" in refused.message


def test_master_that_is_away_is_told_at_once_by_its_name(started: object, silent_port: int) -> None:
    refused = refusal("audit", f"spark://127.0.0.1:{silent_port}", {})
    assert refused.code == "connection_lost"
    assert f"spark://127.0.0.1:{silent_port}" in refused.message and "correct --master" in refused.message
    assert refusal("audit", "spark://127.0.0.1", {}).code == "bad_option"


def test_one_of_several_masters_is_enough_and_one_that_goes_is_told_by_name(silent_port: int, started: Started) -> None:
    def fail() -> None:
        raise Py4JError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n at a.b.C")

    started.on_start = fail
    with socket.create_server(("127.0.0.1", 0)) as there:
        master = f"spark://127.0.0.1:{silent_port},127.0.0.1:{there.getsockname()[1]}"
        failed = refusal("audit", master, {})
    assert (
        failed.code == "pipeline_failed" and master in failed.message and "start the pipeline again" in failed.message
    )


@pytest.mark.parametrize(
    ("name", "advice"), [("archive", "--allow-gaps"), ("transform", "a new --checkpoint"), ("audit", "run it again")]
)
def test_advice_names_options_that_the_command_has(name: str, advice: str, started: object) -> None:
    with pytest.raises(HoldfastError) as lost, frame.running(name, "local[1]", {}):
        raise from_spark(f"x.Y: {LOST}\n at a.b.C")
    assert lost.value.code == "data_lost" and advice in lost.value.message
    assert "failOnDataLoss" not in lost.value.message


def test_broker_that_is_away_is_told_before_spark_is_started(
    silent_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "BROKERS_S", 0.2)
    server = f"127.0.0.1:{silent_port}"
    for options in (["archive", "orders", "--to", str(tmp_path)], ["insight"], ["audit", "--sent-topic", "a"]):
        options += ["--received-topic", "b"] if options[0] == "audit" else []
        told = CliRunner().invoke(app, ["pipeline", *options, "--server", server])
        assert isinstance(told.exception, HoldfastError), told
        assert told.exception.code == "connection_lost" and "correct --server" in told.exception.message
        assert server in told.exception.message and "brokerTimeout" not in told.exception.message


def test_file_that_holds_no_text_is_named_first_and_shown_in_a_few_characters() -> None:
    verdict = Verdict(Counter(malformed=3), [], [], {}, {})
    verdict.examples["malformed"] = [{"file": "file:/a.bin", "line": "\x00\ufffd\x1b[31m" * 50}]
    told = nothing_sent(verdict)
    assert told.startswith("file:/a.bin: ") and len(told) < 300 and told.endswith("…")
    assert told.removesuffix("…").isascii() and told.isprintable()


@pytest.mark.parametrize("piece", ["batch", "look"])
def test_ctrl_c_is_told_at_once(piece: str, started: object, capsys: pytest.CaptureFixture[str]) -> None:
    stop = frame.Stop(piece)
    with frame.running("archive", "local[1]", {}, stop) as (_, progress):
        progress.tell("batch 1 done, 5 rows/s")
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked.wait(PATIENCE_S)
        told = wait_until(lambda: capsys.readouterr().err, "it says so")
    assert f"archive: stops when its {piece} is done" in told


def test_recovery_without_its_database_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def running(*_: object, **__: object) -> Iterator[tuple[None, SimpleNamespace]]:
        yield None, SimpleNamespace(tell=None)

    def away(*_: object, **__: object) -> None:
        raise Unavailable("the database is away (db/shop): refused")

    monkeypatch.setattr(frame, "running", running)
    monkeypatch.setattr(pipelines, "recover", away)
    told = CliRunner().invoke(app, ["pipeline", "recover", str(tmp_path), "--store", "postgresql://db/shop"])
    assert isinstance(told.exception, Unavailable) and "correct --store" in told.exception.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_java_starts_ends_the_command_when_java_can_be_ended(
    number: signal.Signals, started: Started
) -> None:
    before_all = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        # As Spark does: Java must not hear Ctrl-C; and its own handler raises in the middle of whatever is done.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        signal.signal(signal.SIGUSR2, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), number)

    started.on_start = interrupt
    with pytest.raises(SystemExit) as ended, frame.running("audit", "local[1]", {}):
        raise AssertionError("it went on")
    assert ended.value.code == 128 + number and started.is_stopped
    assert signal.getsignal(signal.SIGINT) is before_all


def test_java_that_does_not_start_is_told_in_a_line(started: Started) -> None:
    def fail() -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    started.on_start = fail
    refused = refusal("audit", "local[1]", {})
    assert isinstance(refused, PipelineFailed) and "JAVA_GATEWAY_EXITED" in refused.message


@pytest.mark.parametrize(
    ("environment", "conf", "options"),
    [
        ({}, {}, "-XX:+UseParallelGC"),
        ({}, {"spark.driver.extraJavaOptions": "-Da=b"}, "-XX:+UseParallelGC -Da=b"),
        ({}, {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, "-XX:+UseZGC"),
        ({}, {"spark.driver.defaultJavaOptions": "-XX:+UseZGC"}, ""),
        ({"JAVA_TOOL_OPTIONS": "-Xmx1g -XX:+UseG1GC"}, {}, ""),
        ({"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}, {"spark.driver.extraJavaOptions": "-Da=b"}, "-Da=b"),
    ],
)
def test_collector_that_somebody_has_chosen_stays_the_only_one(
    environment: dict[str, str], conf: dict[str, str], options: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with two of them."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with frame.running("audit", "local[1]", conf):
        pass
    assert started.config.get("spark.driver.extraJavaOptions", "") == options
    assert started.config["spark.driver.memory"] == "2g"


def test_task_that_fails_on_one_machine_is_tried_once_more(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "reach_master", lambda _: None)
    masters = {
        "local": "local[1, 2]",
        "local[*]": "local[*, 2]",
        "local[4]": "local[4, 2]",
        "local[4, 1]": "local[4, 1]",
        "local-cluster[2,1,1024]": "local-cluster[2,1,1024]",
        "spark://host:7077": "spark://host:7077",
    }
    for asked in masters:
        with frame.running("audit", asked, {}):
            pass
    assert started.masters == list(masters.values())


def progress_of_stages(stages: list[int], rows: int | None, *, has_rows: bool = True) -> frame.Progress:
    """With stages that began ten seconds ago, of whose rows Spark tells or does not."""
    stage = SimpleNamespace(stageId=1, numCompletedTasks=1, numTasks=2)
    tracker = SimpleNamespace(getActiveStageIds=lambda: stages, getStageInfo=lambda _: stage)
    context = MagicMock(statusTracker=lambda: tracker)
    told = context._jsc.sc().statusStore().lastStageAttempt.return_value
    told.inputRecords.return_value = rows
    told.submissionTime().get().getTime.return_value = 90_000
    if rows is None:
        context._jsc.sc.side_effect = Py4JError("there is no such method")
    session: Any = SimpleNamespace(sparkContext=context)
    return frame.Progress(session, "x", has_rows=has_rows, monotonic_s=lambda: 5.0, wall_s=lambda: 100.0)


def test_line_of_progress_has_one_rate_and_that_of_the_batch_under_way() -> None:
    stages = [1]
    progress = progress_of_stages(stages, 5000)
    assert progress.line() == "x: starts: 1 of 2 tasks, 10,000 rows, 1,000 rows/s, 0 s"
    progress.tell("batch 0 done, 7 rows/s")
    assert progress.line() == "x: batch 0 done, 7 rows/s: 1 of 2 tasks, 0 s"
    stages.clear()
    progress.tell("archives 5 messages")
    assert progress.line() == "x: archives 5 messages, 0 s"


@pytest.mark.parametrize(("rows", "has_rows"), [(None, True), (5000, False)])
def test_line_of_progress_does_without_rows_that_spark_does_not_know(rows: int | None, has_rows: bool) -> None:
    assert progress_of_stages([1], rows, has_rows=has_rows).line() == "x: starts: 1 of 2 tasks, 0 s"
