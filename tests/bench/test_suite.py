"""The suite itself, quickly and without peers: that it runs, ends and writes what it promises."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.works import ALL, named

ROOT = Path(__file__).parents[2]


def _suite(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", *arguments]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


CLUSTER = [work.name for work in named("cluster")]
PAIR = [work.name for work in named("pair")]
POSTGRES = [work.name for work in named("postgres")]
# Each of these starts Spark, which tests/spark does once for all tests.
SPARK = [work.name for family in ("spark", "pipeline") for work in named(family)]
CASES = [work.name for work in named("cases")]
ALONE = [work.name for work in ALL if work.name not in CLUSTER + PAIR + POSTGRES + SPARK + CASES]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("names", "only"),
    [
        pytest.param(ALONE, ALONE, id="one broker"),
        # test_cases has one line of each kind by day.
        pytest.param(CASES, ["cases"], id="cases", marks=pytest.mark.night),
        pytest.param(CLUSTER, ["cluster"], id="three nodes"),
        pytest.param(PAIR, ["pair"], id="a pair"),
        pytest.param(POSTGRES, ["postgres"], id="a database"),
    ],
)
def test_a_quick_run_measures_every_work_and_keeps_the_result(
    tmp_path: Path, names: list[str], only: list[str]
) -> None:
    result_path = tmp_path / "run.json"
    chosen = [argument for name in only for argument in ("--only", name)]
    command = _suite("--quick", "--peers", "", *chosen, "--json", str(result_path), "--dir", str(tmp_path))
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("ending", "work", "servers_min"),
    [
        (signal.SIGINT, "cluster-latency", 3),
        (signal.SIGTERM, "latency-nosync", 1),
        (signal.SIGKILL, "cluster-latency", 3),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_an_interrupted_run_leaves_no_server_behind(
    tmp_path: Path, ending: signal.Signals, work: str, servers_min: int
) -> None:
    command = _suite("--quick", "--peers", "", "--only", work, "--seconds", "30", "--dir", str(tmp_path))
    suite = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        servers = _wait_for_children(suite, servers_min + 1)
        suite.send_signal(ending)
        assert suite.wait(30) == (-ending if ending == signal.SIGKILL else 128 + ending)
        assert _still_alive_after(servers, patience_s=20) == []
        # Who is killed cannot tidy up its files.
        assert ending == signal.SIGKILL or list(tmp_path.iterdir()) == []
    finally:
        if suite.poll() is None:
            suite.terminate()
            suite.wait(30)


def _wait_for_children(suite: subprocess.Popen[bytes], count_min: int) -> list[int]:
    deadline = time.monotonic() + 25
    while time.monotonic() < deadline:
        children = _children(suite.pid)
        # The brokers and the generator.
        if len(children) >= count_min:
            time.sleep(0.5)
            return _children(suite.pid)
        time.sleep(0.05)
    raise AssertionError("the suite started no server")


def _still_alive_after(pids: list[int], patience_s: float) -> list[int]:
    """Python's own helper of child processes ends a moment after its parent."""
    deadline = time.monotonic() + patience_s
    while (alive := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # What is dead and only waits for its parent to look holds no port and no file.
    return state != "Z"
