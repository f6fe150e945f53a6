"""The pool of workers: every message gets an outcome, whatever its function does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest
from testkit.wait import until

from holdfast.broker.processing import Dropped, GaveUp, Transformed
from holdfast.model.errors import ConfigError, ShuttingDown
from holdfast.model.limits import MIB
from holdfast.processors.child import Child
from holdfast.processors.pool import WorkerPool
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec
from tests.processors.processor_helpers import Recorder, StartPool, is_running, message


async def test_a_function_gets_the_whole_message_and_returns_bytes_text_or_nothing(start_pool: StartPool) -> None:
    upper = await start_pool("upper")
    assert await upper.run(message("abc")) == Transformed(b"ABC")
    text = await start_pool("text")
    sent = message("v", 41, key=b"\x00k", headers=[("trace", b"\xff")], id="order-17")
    assert await text.run(sent) == Transformed(b"orders/0@41 b'\\x00k' {'trace': b'\\xff'} order-17")
    drop_odd = await start_pool("drop_odd")
    assert [await drop_odd.run(message(str(n))) for n in range(3)] == [
        Transformed(b"0"),
        Dropped(),
        Transformed(b"2"),
    ]
    assert (drop_odd.stats.processed, drop_odd.stats.dropped, drop_odd.stats.busy) == (3, 1, 0)


async def test_large_messages_pass(start_pool: StartPool) -> None:
    pool = await start_pool("upper")
    large = b"a" * (5 * MIB)
    results = await asyncio.gather(*(pool.run(message(large, n)) for n in range(6)))
    assert all(result == Transformed(large.upper()) for result in results)


async def test_what_a_function_prints_and_reads_does_not_disturb_it(
    start_pool: StartPool, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = await start_pool("noisy", workers=1)
    assert [await pool.run(message("v", n)) for n in range(3)] == [Transformed(b"v")] * 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "printed 2" in shown.err
    assert "straight to descriptor 1" in shown.err
    assert "from a child process" in shown.err


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("raise it", r"ValueError: cannot handle it \(sample_functions.py:47\)"),
        ("sys-exit", "SystemExit: leaving"),
        ("return-int", "TypeError: the processor returned int; it must return bytes, str or None"),
        ("surrogate", "UnicodeEncodeError"),
        (f"large {17 * MIB}", "the processor returned 17825792 bytes; at most 16777216 are allowed"),
        ("exit", "the worker process ended: exit status 7"),
        ("segfault", "the worker process ended: killed by SIGSEGV"),
    ],
)
async def test_a_message_that_always_fails_is_given_up_after_the_attempts(
    value: str, error: str, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("moody", attempts_max=2)
    outcome = await pool.run(message(value))
    assert isinstance(outcome, GaveUp)
    assert outcome.attempts == 2
    assert re.search(error, outcome.error)
    assert (pool.stats.failed, pool.stats.retried, pool.stats.dead) == (2, 1, 1)
    assert [line["attempt"] for line in log.of("processor_failed")] == [1]
    assert await pool.run(message("fine")) == Transformed(b"fine")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("half-a-pair", r"ValueError: no customer \\ud800 \(sample_functions.py:\d+\)"),
        ("unprintable", "an error of the type Unprintable, which cannot be described"),
    ],
)
async def test_dead_letter_gives_the_reason_also_for_an_error_whose_text_cannot_be_sent(
    value: str, error: str, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("awkward", attempts_max=1)
    outcome = await pool.run(message(value))
    assert isinstance(outcome, GaveUp)
    assert re.fullmatch(error, outcome.error)
    assert await pool.run(message("fine", 1)) == Transformed(b"fine")
    assert (pool.stats.restarts, log.of("processor_restarted")) == (0, [])


async def test_output_of_a_type_made_from_bytes_reaches_subscribers(start_pool: StartPool) -> None:
    pool = await start_pool("awkward", attempts_max=1)
    assert await pool.run(message("subclass")) == Transformed(b"made")


async def test_a_function_that_hangs_is_killed_and_the_message_given_up(start_pool: StartPool) -> None:
    pool = await start_pool("moody", timeout_ms=300, attempts_max=2)
    before = set(pool.pids)
    hung, fine = await asyncio.gather(pool.run(message("hang", 0)), pool.run(message("fine", 1)))
    assert fine == Transformed(b"fine")
    assert hung == GaveUp("no answer within 300 ms", 2)
    assert (pool.stats.timeouts, pool.stats.dead) == (2, 1)
    assert await pool.run(message("fine")) == Transformed(b"fine")
    await until(lambda: pool.stats.workers == 2)
    assert set(pool.pids) != before
    assert not any(map(is_running, before - set(pool.pids)))


@pytest.mark.parametrize("verb", ["raise", "hang", "exit", "segfault"])
async def test_a_message_that_fails_once_is_delivered(verb: str, start_pool: StartPool, tmp_path: Path) -> None:
    pool = await start_pool("moody", timeout_ms=500)
    outcome = await pool.run(message(f"once-{verb} {tmp_path / 'marker'}"))
    assert outcome == Transformed(b"recovered")
    assert (pool.stats.failed, pool.stats.retried, pool.stats.dead) == (1, 1, 0)


async def test_a_worker_killed_while_it_has_nothing_to_do_costs_no_attempt(start_pool: StartPool) -> None:
    pool = await start_pool("upper", attempts_max=1)
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: pool.pids == [])
    results = await asyncio.gather(*(pool.run(message("v", n)) for n in range(10)))
    assert results == [Transformed(b"V")] * 10
    assert pool.stats.restarts == 2
    assert pool.stats.failed == 0


async def test_messages_wait_while_workers_cannot_be_started_again(
    start_pool: StartPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Recorder
) -> None:
    module = tmp_path / "comes_and_goes.py"
    source = "import os\ndef f(message):\n    if message.value == b'exit': os._exit(1)\n    return message.value\n"
    module.write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pool = await start_pool(spec=ProcessorSpec(function="comes_and_goes:f"), workers=1, attempts_max=1)
    module.unlink()
    assert isinstance(await pool.run(message("exit")), GaveUp)
    waiting = asyncio.create_task(pool.run(message("patient")))
    await until(lambda: log.of("processor_not_restarted"))
    assert not waiting.done()
    module.write_text(source)
    assert await asyncio.wait_for(waiting, 20) == Transformed(b"patient")


async def test_all_cores_work_and_the_broker_comes_first(start_pool: StartPool) -> None:
    pool = await start_pool("whoami", workers=3)
    answers = await asyncio.gather(*(pool.run(message("v", n)) for n in range(300)))
    seen = {tuple(map(int, answer.value.split())) for answer in answers if isinstance(answer, Transformed)}
    assert {pid for pid, _ in seen} <= set(pool.pids)
    assert len(seen) > 1
    assert {niceness - os.nice(0) for _, niceness in seen} == {5}


async def test_computing_leaves_the_message_as_it_is_and_the_loop_free(start_pool: StartPool) -> None:
    pool = await start_pool(spec=ProcessorSpec(compute_ms=(20, 40), seed=7))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    began_s = time.perf_counter()
    results = await asyncio.gather(*(pool.run(message(f"v{n}", n)) for n in range(20)))
    elapsed_s = time.perf_counter() - began_s
    counting.cancel()
    assert results == [Transformed(b"v%d" % n) for n in range(20)]
    assert elapsed_s >= 20 * 0.02 / 2
    assert turns > 10 * len(results), "the loop waits as long as a message takes"


async def test_pool_that_stops_while_it_kills_a_worker_leaves_no_process(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_killing, kill = asyncio.Event(), Child.kill

    async def kill_late(child: Child) -> None:
        is_killing.set()
        await asyncio.sleep(0.1)
        await kill(child)

    pool = await start_pool("moody", workers=1, timeout_ms=100)
    (pid,) = pool.pids
    hanging = asyncio.create_task(pool.run(message("hang")))
    with monkeypatch.context() as patched:
        patched.setattr(Child, "kill", kill_late)
        await is_killing.wait()
        await pool.stop()
    assert not is_running(pid)
    hanging.cancel()


async def test_a_bad_function_leaves_no_process(log: Recorder) -> None:
    pool = WorkerPool(ProcessorSpec(function="sample_functions:missing"), ProcessorSettings(workers=3), log)
    with pytest.raises(ConfigError, match="has no 'missing'"):
        await pool.start()
    assert pool.pids == []
    with pytest.raises(ShuttingDown):
        await pool.run(message("v"))


async def test_stop_ends_all_workers_and_answers_whoever_waits(start_pool: StartPool) -> None:
    pool = await start_pool("moody")
    pids = pool.pids
    waiting = [asyncio.create_task(pool.run(message("hang", n))) for n in range(30)]
    await until(lambda: pool.stats.busy == 2)
    await pool.stop()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ShuttingDown) for result in results)
    assert not any(map(is_running, pids))
    assert pool.stats.busy == 0
