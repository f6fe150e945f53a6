"""The suite itself, quickly and without peers: that it runs, ends and writes what it promises."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.works import ALL, named
from testkit.processes import children, is_alive
from testkit.wait import wait_until

ROOT = Path(__file__).parents[2]
CLUSTER = [work.name for work in named("cluster")]
PAIR = [work.name for work in named("pair")]
POSTGRES = [work.name for work in named("postgres")]
# Each of these starts Spark, which tests/spark does once for all tests.
SPARK = [work.name for family in ("spark", "pipeline") for work in named(family)]
CASES = [work.name for work in named("cases")]
ALONE = [work.name for work in ALL if work.name not in CLUSTER + PAIR + POSTGRES + SPARK + CASES]


def _suite(tmp_path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", "--quick", "--peers", "", "--dir", str(tmp_path), *arguments]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("names", "only"),
    [
        pytest.param(["publish-durable"], ["publish-durable"], id="one work"),
        pytest.param(ALONE, ALONE, id="one broker", marks=pytest.mark.night),
        pytest.param(CLUSTER, ["cluster"], id="three nodes", marks=pytest.mark.night),
        pytest.param(PAIR, ["pair"], id="a pair", marks=pytest.mark.night),
        pytest.param(POSTGRES, ["postgres"], id="a database", marks=pytest.mark.night),
        pytest.param(CASES, ["cases"], id="cases", marks=pytest.mark.night),  # test_cases has a line of each by day
    ],
)
def test_a_quick_run_measures_every_work_and_keeps_the_result(
    tmp_path: Path, names: list[str], only: list[str]
) -> None:
    result_path = tmp_path / "run.json"
    chosen = [argument for name in only for argument in ("--only", name)]
    command = _suite(tmp_path, *chosen, "--json", str(result_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stderr
    run = json.loads(result_path.read_text())
    assert run["settings"]["quick"] is True
    assert len(run["peers"]["holdfast"]["source"]) == 12
    assert [work["name"] for work in run["works"]] == names
    ours = [line for work in run["works"] for line in work["lines"] if line["peer"] == "holdfast"]
    assert [(line["contender"], line["problem"]) for line in ours if line["problem"]] == []
    # What a proxy adds is a difference: on a busy machine it may be none.
    figures = [(line["contender"], name, value) for line in ours for name, value in line["median"].items()]
    nothing = [(contender, name) for contender, name, value in figures if not value > 0 and name != "added_us"]
    assert nothing == []
    theirs = [line for work in run["works"] for line in work["lines"] if line["peer"] != "holdfast"]
    # Nobody else has a pair, or a database below.
    alone = only in (["pair"], ["postgres"])
    assert {line["problem"] for line in theirs} == (set() if alone else {"not selected for this run"})
    assert all(target["passed"] is None for target in run["targets"])
    assert result_path.with_suffix(".png").stat().st_size > 10_000
    assert str(tmp_path) not in result_path.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.png"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ending", "work", "processes"),
    [
        # The brokers and the generator.
        pytest.param(signal.SIGINT, "latency-nosync", 2, id="SIGINT"),
        pytest.param(signal.SIGTERM, "cluster-latency", 4, id="SIGTERM", marks=pytest.mark.night),
        pytest.param(signal.SIGKILL, "cluster-latency", 4, id="SIGKILL", marks=pytest.mark.night),
    ],
)
def test_an_interrupted_run_leaves_no_server_behind(
    tmp_path: Path, ending: signal.Signals, work: str, processes: int
) -> None:
    suite = subprocess.Popen(
        _suite(tmp_path, "--only", work, "--seconds", "30"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(children(suite.pid)) >= processes, "the servers and the generator are started")
        started = children(suite.pid)
        suite.send_signal(ending)
        assert suite.wait(60) == (-ending if ending == signal.SIGKILL else 128 + ending)
        # Python's own helper of child processes ends a moment after its parent.
        wait_until(lambda: not any(map(is_alive, started)), "all of them are gone")
        # What is killed cannot tidy up its files.
        assert ending == signal.SIGKILL or list(tmp_path.iterdir()) == []
    finally:
        if suite.poll() is None:
            suite.terminate()
            suite.wait(60)
