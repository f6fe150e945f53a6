"""`holdfast pipeline`: what is wrong with settings is told before Spark is started, and flags go before the file."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console
from testkit.commands import holdfast
from typer.main import get_command
from typer.testing import CliRunner

from holdfast import pipelines
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


AUDIT = ("audit", "--sent", "a", "--received", "b")
ARCHIVE = ("archive", "orders", "--to", "there")
RECOVER = ("recover", "spill", "--store", "postgresql://db/shop")
TRANSFORM = ("transform", "--source", "a", "--target", "b", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("audit", "--sent", "a", "b"), "what was received?"),
        ((*AUDIT, "--allow", "everything"), "there are lost, duplicated"),
        ((*AUDIT, "--conf", "spark.driver.memory"), "write NAME=VALUE"),
        ((*AUDIT, "--config", "missing.toml"), "does not exist"),
        (("insight", "--since", "1h", "--from", "2026-11-18"), "give --since or --from"),
        (("insight", "--from", "yesterday"), "2026-11-18T06:00:00Z"),
        (("insight", "--once", "--every", "1m"), "give one of them"),
        (("insight", "--window", "soon"), "is no duration"),
        (("insight", "--top", "0"), "greater than or equal to 1"),
        (("archive", "orders"), "Give the archive's directory with --to"),
        (("archive", "--to", "there"), "which topics?"),
        ((*ARCHIVE, "--pattern", "o.*"), "and not both"),
        ((*ARCHIVE, "--interval", "soon"), "'soon' is no duration"),
        ((*ARCHIVE, "--batch-size", "much"), "'much' is no size"),
        ((*ARCHIVE, "--compact-files", "1"), "at least 2"),
        (("recover",), "which directories?"),
        (("recover", "spill"), "where to?"),
        ((*RECOVER, "--server", "127.0.0.1:8090"), "where to?"),
        ((*RECOVER, "--order-by", "luck"), "there are time, kept"),
        ((*RECOVER, "--partitions", "0"), "partitions"),
        (("recover", "spill", "--store", "postgres"), "start that broker"),
        ((*RECOVER, "--report-topic", "figures"), "Give --report-server"),
        (("recover", "no-such-spill", "--store", "postgresql://db/shop"), "there is no spill in no-such-spill"),
        (("transform",), "what is read? Give --source [bad_option]"),
        (("transform", "--source", "a", "--target", "b"), "Give --checkpoint [bad_option]"),
        (TRANSFORM, "give a function or sql, one of both [bad_option]"),
        ((*TRANSFORM, "--starting", "now"), "earliest or latest"),
        ((*TRANSFORM, "--function", "nothing:f"), "[bad_function]"),
    ],
)
def test_what_makes_no_sense_is_told_before_spark_is_started(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", *options)
    assert ended.code in (1, 2) and words in ended.err, ended


def test_broker_that_is_away_between_looks_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    def away() -> None:
        raise from_spark("x: [connection_lost] 127.0.0.1:1: Connection refused\n at")

    def gone() -> None:
        raise from_spark("x: [topic_not_found] there is no topic 'orders'\n at")

    look_again(away)
    assert "Connection refused; looks again" in capsys.readouterr().err
    with pytest.raises(PipelineFailed, match="there is no topic"):
        look_again(gone)


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


def insight(**found: Any) -> Insight:
    """An insight into a second, with what was found, and nothing else."""
    tables = ("topics", "partitions", "windows", "partition_windows", "sizes", "errors", "cursors")
    nothing: dict[str, Any] = {table: [] for table in tables}
    nothing |= {"window_ms": 1000, "from_ms": 0, "until_ms": 1000, "asked_ms": 1000}
    return Insight(**{**nothing, "hot_keys": {"messages": [], "bytes": []}, **found})


@pytest.mark.parametrize("as_json", [False, True])
def test_what_messages_say_is_not_for_the_terminal(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "<b>\x1b[2J\x9b2J\n[/bold]"
    key = {"topic": "orders", "rank": 1, "key": evil, "messages": 2, "bytes": 1, "share": 1.0}
    found = insight(
        totals={"messages": 1, "bytes": 1, "topics": 1, "dead": 0, "failed": 0, "dead_share": 0.0},
        hot_keys={"messages": [key], "bytes": [key]},
        errors=[{"topic": "orders", "kind": evil, "dead": 1, "error": evil}],
        cursors=[{"topic": "orders", "cursor": evil, "lag": 1}],
    )
    show(found, 1.0, str(tmp_path), as_json=as_json, again_s=None)
    told = capsys.readouterr().out
    assert told.count("[/bold]") >= 4
    assert all(each.isprintable() for each in told.replace("\n", "")), ascii(told)
    assert "<b>" not in (tmp_path / "insight.html").read_text("utf-8")


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
    show(insight(totals=row, topics=[row]), 1.0, None, as_json=False, again_s=None)
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


def test_every_argument_in_python_is_an_option_or_in_the_documentation() -> None:
    shared = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8").partition("\n## Record files")[0]
    untold = []
    for name in pipelines.__all__:
        functions = [getattr(pipelines, name)]
        functions += [transform_query.run_transform, Transform] if name == "transform" else []
        given = {each for function in functions for each in inspect.signature(function).parameters}
        command = get_command(app).commands["pipeline"].commands[name]  # type: ignore[attr-defined]
        options = {each.name for each in command.params} | {"spark", "options", "wanted"}
        untold += [(name, each) for each in given - options if f"`{each}`" not in shared]
    assert untold == []
