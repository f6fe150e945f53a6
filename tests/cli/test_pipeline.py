"""`holdfast pipeline`: what is wrong with settings is told before Spark is started, and flags go before the file."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from rich.console import Console
from testkit.commands import holdfast
from typer.main import get_command
from typer.testing import CliRunner

from holdfast import pipelines
from holdfast import spark as connector
from holdfast.cli import output
from holdfast.cli.app import app
from holdfast.cli.options import SERVER_DEFAULT
from holdfast.cli.pipeline.commands import conclude
from holdfast.cli.pipeline.insight import look_again, show
from holdfast.cli.pipeline.recover import conclude as conclude_recovery
from holdfast.pipelines import archiving, audit_page, frame, reaching, streams, transform_query
from holdfast.pipelines.audit_verdict import Verdict
from holdfast.pipelines.errors import BadPipelineSetting, PipelineFailed, from_spark
from holdfast.pipelines.insight_findings import Insight
from holdfast.pipelines.recover_run import Recovered
from holdfast.pipelines.streams import StreamRun
from holdfast.pipelines.transform_plans import Transform
from holdfast.recovery.backlog import Outcome

KNOWN = {"sent": list, "out": str}
FILE = """
master = "local[1]"
[conf]
"spark.driver.memory" = "1g"
[audit]
sent = ["a"]
out = "from-file"
[another]
what = "ever"
"""


def test_audit_of_nothing_says_what_to_give() -> None:
    ended = holdfast("pipeline", "audit", "--sent", "a", "b")
    assert ended.code == 1 and "what was received?" in ended.err and "[bad_option]" in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--allow", "everything"), "there are lost, duplicated"),
        (("--conf", "spark.driver.memory"), "write NAME=VALUE"),
        (("--config", "missing.toml"), "does not exist"),
    ],
)
def test_settings_that_make_no_sense_are_told(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "audit", "--sent", "a", "--received", "b", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--since", "1h", "--from", "2026-11-18"), "give --since or --from"),
        (("--from", "yesterday"), "2026-11-18T06:00:00Z"),
        (("--once", "--every", "1m"), "give one of them"),
        (("--window", "soon"), "is no duration"),
        (("--top", "0"), "greater than or equal to 1"),
    ],
)
def test_insight_that_makes_no_sense_is_told(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "insight", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


def test_broker_that_is_away_between_looks_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    def away() -> None:
        raise from_spark("x: [connection_lost] 127.0.0.1:1: Connection refused\n at")

    def gone() -> None:
        raise from_spark("x: [topic_not_found] there is no topic 'orders'\n at")

    look_again(away)
    assert "Connection refused; looks again" in capsys.readouterr().err
    with pytest.raises(PipelineFailed, match="there is no topic"):
        look_again(gone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("orders",), "Give the archive's directory with --to"),
        (("--to", "there"), "which topics?"),
        (("orders", "--pattern", "o.*", "--to", "there"), "and not both"),
        (("orders", "--to", "there", "--interval", "soon"), "'soon' is no duration"),
        (("orders", "--to", "there", "--batch-size", "much"), "'much' is no size"),
        (("orders", "--to", "there", "--compact-files", "1"), "at least 2"),
    ],
)
def test_archive_says_what_is_missing_before_spark_is_started(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "archive", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


def test_nought_is_a_value_and_a_flag_that_was_not_given_is_none() -> None:
    _, _, own = frame.settings("x", None, {"top": int, "once": bool}, {"top": 0, "once": False})
    assert own == {"top": 0}


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.toml"
    file.write_text(FILE)
    none: dict[str, object] = {"master": None, "conf": {}, "sent": None, "out": None}
    assert frame.settings("audit", file, KNOWN, none) == (
        "local[1]",
        {"spark.driver.memory": "1g"},
        {"sent": ["a"], "out": "from-file"},
    )
    given = {**none, "master": "local[2]", "conf": {"spark.driver.memory": "3g"}, "sent": ["b", "c"]}
    assert frame.settings("audit", file, KNOWN, given) == (
        "local[2]",
        {"spark.driver.memory": "3g"},
        {"sent": ["b", "c"], "out": "from-file"},
    )


@pytest.mark.parametrize(
    ("options", "environment", "asked"),
    [
        (("--server", SERVER_DEFAULT), {}, SERVER_DEFAULT),
        ((), {"HOLDFAST_SERVER": SERVER_DEFAULT}, SERVER_DEFAULT),
        ((), {}, "10.0.0.1:8090"),
        (("--server", "10.0.0.2:8090"), {}, "10.0.0.2:8090"),
    ],
)
def test_server_of_the_command_goes_before_that_of_the_file(
    options: tuple[str, ...],
    environment: dict[str, str],
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asked(Exception):
        pass

    def audit(*_: object, servers: str, **__: object) -> None:
        raise Asked(servers)

    monkeypatch.setattr(pipelines, "audit", audit)
    monkeypatch.setattr(frame, "running", lambda *_, **__: nullcontext((None, SimpleNamespace(tell=None))))
    monkeypatch.delenv("HOLDFAST_SERVER", raising=False)
    file = tmp_path / "pipelines.toml"
    file.write_text("[audit]\nserver = '10.0.0.1:8090'\nsent = ['a']\nreceived = ['b']")
    told = CliRunner().invoke(app, ["pipeline", "audit", "--config", str(file), *options], env=environment)
    assert isinstance(told.exception, Asked) and str(told.exception) == asked, told.output


def test_what_records_say_is_not_for_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "drawn", lambda *_: "")
    example = {"topic": "[/bold]", "id": "a\x1b[2J\x9b2J", "partition": None}
    columns = ("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom")
    verdict = Verdict(
        counts=Counter(sent=1, lost=1),
        topics=[{"topic": "b\x1b[2J\x9b2J", "partition": None, **dict.fromkeys(columns, 1)}],
        receivers=[],
        latency_ms={},
        rate={"from_ms": 0, "bin_ms": 10},
        examples={"lost": [example]},
    )
    conclude(verdict, 1.0, tmp_path / "[/red]\x1b[2J", as_json=False)
    told = capsys.readouterr().out
    assert '"[/bold]"' in told and "[/red]\\x1b[2J/audit.html" in told
    assert all(each.isprintable() for each in told.replace("\n", "")), ascii(told)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_messages_say_is_not_for_the_terminal(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "<b>\x1b[2J\x9b2J\n[/bold]"
    key = {"topic": "orders", "rank": 1, "key": evil, "messages": 2, "bytes": 1, "share": 1.0}
    found = Insight(
        window_ms=1000,
        from_ms=0,
        until_ms=1000,
        asked_ms=1000,
        totals={"messages": 1, "bytes": 1, "topics": 1, "dead": 0, "failed": 0, "dead_share": 0.0},
        topics=[],
        partitions=[],
        windows=[],
        partition_windows=[],
        sizes=[],
        hot_keys={"messages": [key], "bytes": [key]},
        errors=[{"topic": "orders", "kind": evil, "dead": 1, "error": evil}],
        cursors=[{"topic": "orders", "cursor": evil, "lag": 1}],
    )
    show(found, 1.0, str(tmp_path), as_json=as_json, again_s=None)
    told = capsys.readouterr().out
    assert told.count("[/bold]") >= 4
    assert all(each.isprintable() for each in told.replace("\n", "")), ascii(told)
    assert "<b>" not in (tmp_path / "insight.html").read_text("utf-8")


class Session:
    """As far as a pipeline that does nothing needs one."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.sparkContext = SimpleNamespace(
            setLogLevel=str, setLocalProperty=lambda *_: None, statusTracker=lambda: None, cancelAllJobs=lambda: None
        )

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_java_starts_ends_the_command_when_java_can_be_ended(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    before_all = signal.getsignal(signal.SIGINT)

    def start(*_: object, **__: object) -> Session:
        # As Spark does: Java must not hear Ctrl-C; and its own handler raises in the middle of whatever is done.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        signal.signal(signal.SIGUSR2, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), number)
        return session

    monkeypatch.setattr(connector, "session", start)
    with pytest.raises(SystemExit) as ended, frame.running("audit", "local[1]", {}):
        raise AssertionError("it went on")
    assert ended.value.code == 128 + number and session.is_stopped
    assert signal.getsignal(signal.SIGINT) is before_all


def test_java_that_does_not_start_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(connector, "session", start)
    with pytest.raises(PipelineFailed, match="JAVA_GATEWAY_EXITED"), frame.running("audit", "local[1]", {}):
        raise AssertionError("it went on")


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
    environment: dict[str, str], conf: dict[str, str], options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with two of them."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: dict[str, str] = {}

    def start(*_: object, config: dict[str, str]) -> Session:
        given.update(config)
        return Session()

    monkeypatch.setattr(connector, "session", start)
    with frame.running("audit", "local[1]", conf):
        pass
    assert given.get("spark.driver.extraJavaOptions", "") == options
    assert given["spark.driver.memory"] == "2g"


@pytest.mark.parametrize(
    ("asked", "started"),
    [
        ("local", "local[1, 2]"),
        ("local[*]", "local[*, 2]"),
        ("local[4]", "local[4, 2]"),
        ("local[4, 1]", "local[4, 1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_task_that_fails_on_one_machine_is_tried_once_more(
    asked: str, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters: list[str] = []

    def start(master: str, *_: object, config: dict[str, str]) -> Session:
        masters.append(master)
        return Session()

    monkeypatch.setattr(connector, "session", start)
    monkeypatch.setattr(reaching, "reach_master", lambda _: None)
    with frame.running("audit", asked, {}):
        pass
    assert masters == [started]


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


def test_line_of_insight_says_which_look_how_fast_and_how_far_readers_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    progress = SimpleNamespace(tell=lines.append, seconds=1.0)
    found = MagicMock(as_json=dict, totals={"messages": 5000}, cursors=[{"lag": 1234}, {"lag": 2}])

    @contextmanager
    def running(_: str, __: str, ___: object, stop: frame.Stop, **____: object) -> Iterator[tuple[None, object]]:
        waits = iter((False, True))
        monkeypatch.setattr(stop.asked, "wait", lambda _: next(waits))
        yield None, progress

    def look(*_: object, tell: Callable[[str], None], **__: object) -> object:
        tell("reading the log")
        return found

    monkeypatch.setattr(frame, "running", running)
    monkeypatch.setattr(pipelines, "insight", look)
    assert CliRunner().invoke(app, ["pipeline", "insight", "--json"]).exit_code == 0
    assert "look 2: reading the log" in lines
    assert re.fullmatch(
        r"look 2 done, [\d,]+ rows/s, readers' lag at most 1,234 messages; looks again every 60 s", lines[-1]
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[audit]\nsend = []", "there are out, sent"),
        ("[audit]\nsent = 'a'", "is to be a list"),
        ("cores = 2", "there are audit, conf, master"),
        ("[audit", "cannot be read as TOML"),
    ],
)
def test_file_that_makes_no_sense_is_told(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "pipelines.toml"
    file.write_text(text)
    with pytest.raises(BadPipelineSetting, match=words) as refused:
        frame.settings("audit", file, KNOWN, {})
    assert refused.value.code == "bad_option"


def test_code_of_the_connector_survives_spark() -> None:
    failed = from_spark("An error occurred: x.y.Z: [topic_not_found] there is no topic 'orders'\n at a.b.C")
    assert (failed.code, failed.message) == ("topic_not_found", "there is no topic 'orders'")
    worker = "An exception was thrown from the Python worker: \nTraceback (most recent call last):\n  File\n"
    told = from_spark(f"{worker}ModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000\n at a.b.C")
    assert told.message == "Spark could not do it: ModuleNotFoundError: No module named 'pyarrow'"
    assert from_spark("[UNRESOLVED_COLUMN] no such column\n at").code == "pipeline_failed"
    full = "x.FSError: java.io.IOException: No space left on device\n\tat a.b.C\n\tCaused by: x.Y: an aside\n"
    told = from_spark(f": x.Z: [TASK_WRITE_FAILED] Task failed\n\tat a.b.C\nCaused by: x.Y: no\nCaused by: {full}")
    assert told.message == "Spark could not do it: x.Z: [TASK_WRITE_FAILED] Task failed (No space left on device)"
    raised = (
        "thrown from the worker:\nTraceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'b'\n at c"
    )
    assert from_spark(raised).message == "Spark could not do it: KeyError: 'b'"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "which directories?"),
        (("spill",), "where to?"),
        (("spill", "--store", "postgresql://db/shop", "--server", "127.0.0.1:8090"), "where to?"),
        (("spill", "--store", "postgresql://db/shop", "--order-by", "luck"), "there are time, kept"),
        (("spill", "--store", "postgresql://db/shop", "--partitions", "0"), "partitions"),
        (("spill", "--store", "postgres"), "start that broker"),
        (("spill", "--store", "postgresql://db/shop", "--report-topic", "figures"), "Give --report-server"),
        (("no-such-spill", "--store", "postgresql://db/shop"), "there is no spill in no-such-spill"),
    ],
)
def test_recovery_that_makes_no_sense_is_told(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "recover", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


PIPELINES = {
    "archive": ("topics = ['orders']", "to = 'there'"),
    "audit": ("sent = ['a']", "received = ['b']"),
    "insight": (),
    "recover": ("directories = ['.']", "store = 'postgresql://db/shop'"),
    "transform": ("source = 'orders'", "target = 'teas'", "checkpoint = 'c'", "sql = 'SELECT value FROM messages'"),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_option_may_stand_in_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[str]] = {}

    def settings(_: str, __: object, known: dict[str, type], flags: dict[str, object]) -> None:
        asked.update(known=set(known), flags=set(flags))
        raise BadPipelineSetting("enough")

    monkeypatch.setattr(frame, "settings", settings)
    CliRunner().invoke(app, ["pipeline", name])
    options = get_command(app).commands["pipeline"].commands[name].params  # type: ignore[attr-defined]
    names = {max(each.opts, key=len).removeprefix("--").replace("-", "_") for each in options}
    assert names - {"help", "config", "master", "conf"} == asked["known"]
    assert asked["known"] <= asked["flags"]


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("options", "lines"), [(("--once", "--json"), ()), ((), ("once = true", "json = true"))])
def test_every_pipeline_runs_once_and_tells_its_end_as_json(
    name: str, options: tuple[str, ...], lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = SimpleNamespace(tell=lambda _: None, seconds=1.0)
    monkeypatch.setattr(frame, "running", lambda *_, **__: nullcontext((MagicMock(), progress)))
    monkeypatch.setattr(archiving, "archive_topics", lambda *_, **__: StreamRun())
    monkeypatch.setattr(pipelines, "audit", lambda *_, **__: MagicMock(as_json=lambda: {"lost": 0}, latency_ms={}))
    looked = MagicMock(as_json=lambda: {"topics": []}, totals={"messages": 0}, cursors=[])
    monkeypatch.setattr(pipelines, "insight", lambda *_, **__: looked)
    monkeypatch.setattr(pipelines, "recover", lambda *_, **__: Recovered())
    monkeypatch.setattr(reaching, "reach_brokers", lambda _: None)
    monkeypatch.setattr(transform_query, "prepare", lambda *_: None)
    monkeypatch.setattr(transform_query, "run_transform", lambda *_, **__: StreamRun())
    file = tmp_path / "pipelines.toml"
    file.write_text("\n".join((f"[{name}]", *PIPELINES[name], *lines)))
    told = CliRunner().invoke(app, ["pipeline", name, "--config", str(file), *options])
    assert told.exit_code == 0 and "seconds" in json.loads(told.output), told.output


@pytest.mark.parametrize(
    ("options", "broker"),
    [
        (("--server", "10.0.0.1:8090"), "10.0.0.1:8090"),
        (("--server", "10.0.0.1:8090", "--report-server", "10.0.0.2:8090"), "10.0.0.2:8090"),
        (("--store", "postgresql://db/shop", "--report-server", "10.0.0.2:8090"), "10.0.0.2:8090"),
    ],
)
def test_figures_of_a_recovery_come_into_a_broker(
    options: tuple[str, ...], broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[tuple[str, str, dict[str, object]]] = []

    class Reports:
        def __init__(self, servers: str, topic: str) -> None:
            self.to = (servers, topic)

        def publish_whole(self, name: str, figures: dict[str, object]) -> None:
            published.append((*self.to, {"pipeline": name, **figures}))

        def close(self) -> None:
            pass

    done = Recovered()
    done.add(2, Outcome({"orders": {"events": 5, "stored": 4, "duplicates": 1}}, 0, 0))
    monkeypatch.setattr(frame, "running", lambda *_, **__: nullcontext((None, SimpleNamespace(tell=None, seconds=1.0))))
    monkeypatch.setattr(pipelines, "recover", lambda *_, **__: done)
    monkeypatch.setattr(streams, "Reports", Reports)
    told = CliRunner().invoke(app, ["pipeline", "recover", str(tmp_path), "--report-topic", "figures", *options])
    assert told.exit_code == 0, told.output
    [(servers, topic, figures)] = published
    assert (servers, topic) == (broker, "figures")
    assert figures.items() >= {"pipeline": "recover", "files": 2, "events": 5, "stored": 4, "seconds": 1.0}.items()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are drawn as on a terminal of 80 columns."""
    monkeypatch.setattr(output, "console", lambda: Console(width=80, highlight=False, emoji=False))


def flawed(**counts: int) -> Verdict:
    columns = ("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom")
    row = {"topic": "orders", "partition": 11, **dict.fromkeys(columns, 0)}
    row |= dict.fromkeys(columns[:3], 10_000_000)
    example = {"topic": "orders", "partition": 11, "id": "a-publisher-of-a-long-name/17", "sequence": 17, "copies": 2}
    return Verdict(
        counts=Counter(counts),
        topics=[row],
        receivers=[],
        latency_ms={},
        rate={},
        examples={name: [example] * min(count, 10) for name, count in counts.items()},
    )


@pytest.mark.usefixtures("narrow")
def test_audit_in_80_columns_breaks_no_word_and_no_example(capsys: pytest.CaptureFixture[str]) -> None:
    conclude(flawed(lost=5, duplicated=1), 1.0, None, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert told[1].split() == ["topic", "part", "sent", "acked", "received", "lost", "dupl.", "order", "phantom"]
    assert told[2].split()[:5] == ["orders", "11", *["10,000,000"] * 3]
    examples = [json.loads(line.partition(": ")[2]) for line in told if "{" in line]
    assert len(examples) == 4 and "lost: 3 of 5 are shown" in told
    assert not any("duplicated: 1 of" in line for line in told)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"duplicated": 1, "phantom": 2}, "Nothing but what is allowed: 1 duplicated, 2 phantom."),
        ({"lost": 1, "duplicated": 1}, "Not flawless: 1 lost, 1 duplicated (allowed)."),
    ],
)
def test_audit_says_which_flaws_were_allowed(
    counts: dict[str, int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude(flawed(**counts), 1.0, None, as_json=False, allowed=["duplicated", "phantom"])
    assert capsys.readouterr().out.splitlines()[-1] == words


@pytest.mark.usefixtures("narrow")
def test_insight_begins_on_a_line_of_its_own_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    row = {"topic": "orders", "messages": 10_000_000, "messages_per_s": 12_345.0, "messages_per_s_max": 99_999.0}
    row |= {"p50_bytes": 999_900, "p99_bytes": 999_900, "max_bytes": 999_900, "bytes": 999_900_000_000}
    row |= {"keys": 1_000_000, "dead": 1_000_000, "failed": 1_000_000, "dead_share": 0.1, "lag_max": 1_000_000}
    found = Insight(
        window_ms=1000,
        from_ms=0,
        until_ms=1000,
        asked_ms=1000,
        totals=row,
        topics=[row],
        partitions=[],
        windows=[],
        partition_windows=[],
        sizes=[],
        hot_keys={"messages": [], "bytes": []},
        errors=[],
        cursors=[],
    )
    show(found, 1.0, None, as_json=False, again_s=None)
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].split() == ["topic", "messages", "mean/s", "peak/s", "bytes", "lag"]
    assert lines[2].split() == ["topic", "p50", "p99", "max", "keys", "dead", "dead", "%"]
    assert [line for line in lines if "hot key" in line] == [
        "hot key of orders: none, no key has notably more messages than the others"
    ]
    assert told.err == "\r\033[K"


def test_second_recovery_says_that_nothing_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recovered").mkdir()
    (tmp_path / "recovered" / "one.buf").touch()
    conclude_recovery(Recovered(), 0.6, [str(tmp_path)], as_json=False)
    assert capsys.readouterr().out == "nothing waits; 1 file is in recovered/\n"


def test_wrong_keyword_of_transform_is_told_with_those_there_are_before_anything_connects() -> None:
    with pytest.raises(TypeError, match=r"transform\(\) has no argument 'interval'; it has .* interval_s, .*reports"):
        pipelines.transform(MagicMock(), source="a", target="b", checkpoint="c", sql="SELECT 1", interval=5)


@pytest.mark.parametrize("name", pipelines.__all__)
def test_every_argument_in_python_is_an_option_or_in_the_documentation(name: str) -> None:
    shared = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8").partition("\n## Record files")[0]
    functions = [getattr(pipelines, name)]
    functions += [transform_query.run_transform, Transform] if name == "transform" else []
    given = {each for function in functions for each in inspect.signature(function).parameters}
    command = get_command(app).commands["pipeline"].commands[name]  # type: ignore[attr-defined]
    options = {each.name for each in command.params}
    assert [each for each in given - options - {"spark", "options", "wanted"} if f"`{each}`" not in shared] == []
