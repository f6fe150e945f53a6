"""A worker process on its own: what it loads, what it refuses, and that it ends with whoever started it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testkit.wait import until

from holdfast.model.errors import ConfigError
from holdfast.processors.child import Child
from holdfast.processors.compute import Compute, busy
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec, parse_compute_ms
from tests.processors.processor_helpers import is_running


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("no_such_module_here:f", "there is no module 'no_such_module_here'"),
        ("sample_functions:missing", "sample_functions has no 'missing'"),
        ("sample_functions:not_a_function", "is a int, not a function"),
        ("sample_functions:asynchronous", "must be a plain function"),
        ("sample_functions:two_arguments", "must take one argument"),
        (
            "broken_import:f",
            r"importing broken_import failed: ZeroDivisionError: division by zero \(broken_import.py:2\)",
        ),
        ("broken_dependency:f", "importing broken_dependency failed: ModuleNotFoundError: No module named 'nowhere'"),
        ("broken_syntax:f", "importing broken_syntax failed: .*SyntaxError"),
        ("exits:f", "importing exits failed: SystemExit: 3"),
        ("dies:f", "ended its process while it was loaded: exit status 4"),
    ],
)
async def test_a_function_that_cannot_be_loaded_is_refused_with_the_reason(
    function: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_import.py").write_text("def f(message): return None\n1 / 0\n")
    (tmp_path / "broken_dependency.py").write_text("import nowhere\n")
    (tmp_path / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "dies.py").write_text("import os\nos._exit(4)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=reason) as refused:
        await Child.start(ProcessorSpec(function=function).arguments(0))
    assert refused.value.code == "bad_config"
    assert function.partition(":")[0] in refused.value.message


async def test_a_module_that_never_finishes_loading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match="not ready within 1 s"):
        await Child.start(["--function", "stuck:f"], timeout_s=1.0)


@pytest.mark.parametrize("text", ["", "x", "150:50", "50-150", "-1:5", "1:2:3", "50:150ms"])
def test_wrong_compute_ms_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="compute-ms"):
        ProcessorSpec.parse(compute_ms=text)


@pytest.mark.parametrize("text", ["", "module", "module:", ":f", "a b:f", "module.f", "a:b:c", "../a:f"])
def test_a_function_that_is_not_module_and_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="MODULE:FUNCTION"):
        ProcessorSpec.parse(function=text)


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="not both"):
        ProcessorSpec.parse(compute_ms="1:2", function="a:b")
    with pytest.raises(ConfigError, match="dead letter"):
        ProcessorSettings(timeout_ms=100).checked(ProcessorSpec(compute_ms=(50, 150)))
    for wrong in ({"workers": 0}, {"attempts_max": 0}, {"timeout_ms": 0}, {"inflight_per_partition": 257}):
        with pytest.raises(ConfigError, match="must be 1 to"):
            ProcessorSettings(**wrong).checked(ProcessorSpec(function="a:b"))


def test_computing_takes_a_uniform_time_of_processor_work() -> None:
    assert parse_compute_ms("50:150") == (50, 150)
    assert parse_compute_ms("100") == (100, 100)
    compute = Compute(50, 150, seed=1)
    durations = [compute.duration_s() for _ in range(5000)]
    assert min(durations) >= 0.05
    assert max(durations) <= 0.15
    assert abs(sum(durations) / len(durations) - 0.1) < 0.002
    assert durations[:3] == [Compute(50, 150, seed=1).duration_s(), *durations[1:3]]
    ticks = itertools.count()
    assert busy(0.05, clock=lambda: next(ticks) / 1000) > 1_000, "it computes between two looks at the clock"
    assert next(ticks) == pytest.approx(52, abs=1), "and looks until the time is over"


PARENT = """
import asyncio, sys
from holdfast.processors.child import Child
from holdfast.processors.protocol import ProcessorMessage, frame

async def main():
    child = await Child.start(["--function", "sample_functions:moody"])
    print(child.pid, flush=True)
    request = ProcessorMessage(
        offset=0, timestamp_ms=0, id="0-0", key=None, value=sys.argv[1].encode(), topic="t", partition=0
    )
    await child.ask(frame(request), 600)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("doing", ["nothing", "hang"])
async def test_workers_end_when_the_broker_is_killed(doing: str) -> None:
    broker = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, doing, stdout=subprocess.PIPE)
    try:
        assert broker.stdout is not None
        worker = int(await broker.stdout.readline())
        assert is_running(worker)
        await asyncio.sleep(0.2)  # so that a worker that hangs has begun
        broker.kill()
        await until(lambda: not is_running(worker), "the worker ends with its broker")
    finally:
        await broker.communicate()


async def test_a_signal_to_all_processes_leaves_the_workers_to_the_broker() -> None:
    child = await Child.start(["--compute-ms", "0:1"])
    assert os.getpgid(child.pid) != os.getpgid(0)
    assert os.getsid(child.pid) == os.getsid(0)
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    await asyncio.sleep(0.2)
    assert is_running(child.pid)
    await child.close()
    assert not is_running(child.pid)
