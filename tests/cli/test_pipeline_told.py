"""What a pipeline's command tells when something is wrong: a line that helps, soon, and no pages of Java."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from typer.testing import CliRunner

from holdfast import pipelines
from holdfast import spark as connector
from holdfast.cli.app import app
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.pipelines import frame
from holdfast.pipelines.audit_verdict import Verdict, nothing_sent
from holdfast.pipelines.errors import from_spark

OPTIONS = "spark.driver.defaultJavaOptions"
LOST = "[data_lost] orders is another topic; with the option failOnDataLoss=false a query goes on without it"


class Session:
    """As far as a pipeline that does nothing needs one."""

    def __init__(self) -> None:
        self.levels: list[str] = []
        tracker = SimpleNamespace(getActiveStageIds=list)
        self.sparkContext = SimpleNamespace(
            setLogLevel=self.levels.append, setLocalProperty=lambda *_: None, statusTracker=lambda: tracker
        )

    def stop(self) -> None:
        pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> tuple[Session, dict[str, str]]:
    """The session that a pipeline gets, and the settings that it asked for."""
    session, given = Session(), {}

    def start(*_: object, config: dict[str, str]) -> Session:
        given.update(config)
        return session

    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connector, "session", start)
    return session, given


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of this machine at which nobody answers, and that nobody else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize(("conf", "level"), [({}, "OFF"), ({"spark.log.level": "warn"}, "WARN")])
def test_spark_logs_nothing_unless_it_is_asked_to(
    conf: dict[str, str], level: str, started: tuple[Session, dict[str, str]]
) -> None:
    session, given = started
    with frame.running("audit", "local[1]", {**conf, OPTIONS: "-Da=b"}):
        pass
    file, chosen, own = given[OPTIONS].split()
    assert session.levels == [level] and chosen == f"-Dholdfast.spark.log={level}" and own == "-Da=b"
    # Spark tells of a level that it is given by this setting.
    assert "spark.log.level" not in given
    named = Path(file.strip('"').removeprefix("-Dlog4j2.configurationFile=file://"))
    assert "${sys:holdfast.spark.log" in named.read_text("utf-8")


def test_own_way_of_logging_stays(
    started: tuple[Session, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, given = started
    with frame.running("audit", "local[1]", {OPTIONS: "-Dlog4j2.configurationFile=own.xml"}):
        pass
    assert given[OPTIONS] == "-Dlog4j2.configurationFile=own.xml" and session.levels == []
    given.clear()
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with frame.running("audit", "local[1]", {}):
        pass
    assert OPTIONS not in given and session.levels == []


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


def test_one_of_several_masters_is_enough_and_one_that_goes_is_told_by_name(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise Py4JError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n at a.b.C")

    monkeypatch.setattr(connector, "session", start)
    with socket.create_server(("127.0.0.1", 0)) as there:
        master = f"spark://127.0.0.1:{silent_port},127.0.0.1:{there.getsockname()[1]}"
        failed = refusal("audit", master, {})
    assert (
        failed.code == "pipeline_failed" and master in failed.message and "start the pipeline again" in failed.message
    )


@pytest.mark.parametrize(
    ("name", "advice"), [("archive", "--allow-gaps"), ("transform", "a new --checkpoint"), ("audit", "run it again")]
)
def test_advice_names_options_that_the_command_has(
    name: str, advice: str, started: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HoldfastError) as lost, frame.running(name, "local[1]", {}):
        raise from_spark(f"x.Y: {LOST}\n at a.b.C")
    assert lost.value.code == "data_lost" and advice in lost.value.message
    assert "failOnDataLoss" not in lost.value.message


def test_broker_that_is_away_is_told_before_spark_is_started(
    silent_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.pipelines import reaching

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
        assert stop.asked.wait(5)
        deadline = time.monotonic() + 5
        told = ""
        while not told and time.monotonic() < deadline:
            time.sleep(0.05)
            told = capsys.readouterr().err
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
