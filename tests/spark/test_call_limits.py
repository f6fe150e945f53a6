"""A call that takes too long is that message's fault, and no call holds up a pipeline for ever."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.pipelines.call_limits import CallLimit, CallTimedOut
from holdfast.pipelines.transform_rows import over_batches
from holdfast.pipelines.transform_state import Fold, as_table
from tests.spark.test_transform_rows import RULES, batch, message, said

LIMITED = RULES._replace(call_timeout_s=0.2)


def spin() -> None:
    while True:
        pass


def swallow_exceptions() -> None:
    while True:
        with contextlib.suppress(Exception):
            spin()


def return_late() -> None:
    """Catches everything once, and returns as if nothing had been."""
    with contextlib.suppress(BaseException):
        spin()


def raise_late() -> None:
    try:
        spin()
    except BaseException as error:
        raise ValueError("something else") from error


def swallow_in_a_finalizer() -> None:
    """Python prints what is raised there, and goes on."""

    class Finalized:
        def __del__(self) -> None:
            spin()

    Finalized()
    spin()


def match_for_ever() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@pytest.mark.parametrize(
    "how",
    [
        spin,
        swallow_exceptions,
        return_late,
        raise_late,
        match_for_ever,
        lambda: time.sleep(3600),
        lambda: subprocess.run(["sleep", "3600"], check=False),
        pytest.param(
            swallow_in_a_finalizer,
            marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        ),
    ],
)
def test_message_that_takes_too_long_is_dead_and_holds_up_no_other(how: Callable[[], Any]) -> None:
    def slow_for_one(given_batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"poison" in given_batch["value"].to_pylist():
            how()
        return given_batch.select(["value"])

    rows = [message(0), message(1, b"poison")]
    made = [row for each in over_batches(slow_for_one, LIMITED)([batch(*rows)]) for row in each.to_pylist()]
    check_poison_is_dead(made)


def test_message_that_takes_too_long_changes_no_state() -> None:
    def slow_for_one(state: Any, given_batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        if b"poison" in given_batch["value"].to_pylist():
            spin()
        return state, given_batch.select(["value"])

    fold = Fold(slow_for_one, LIMITED, '"before"')
    rows = as_table([message(0), message(1, b"poison")], has_windows=False)
    check_poison_is_dead([row for table in fold.take(rows) for row in table.to_pylist()])
    assert fold.text == '"before"'


def check_poison_is_dead(made: list[dict[str, Any]]) -> None:
    assert [(row["topic"], row["value"]) for row in made] == [("made", b"0"), ("orders.dead", b"poison")]
    reasons = said(made[1])
    assert reasons["offset"] == b"1" and reasons["class"] == b"CallTimedOut"
    assert re.fullmatch(rb"CallTimedOut: the call took longer than 0.2 s, and was at \w+\.py:\d+", reasons["error"]), (
        reasons["error"]
    )


def test_end_of_a_window_that_takes_too_long_ends() -> None:
    with pytest.raises(CallTimedOut):
        Fold(lambda _state, _batch: spin(), LIMITED, "1").end()  # type: ignore[arg-type,return-value]


def test_calls_that_end_in_time_are_left_alone_and_nothing_is_raised_behind_them() -> None:
    in_time = CallLimit(60.0)
    for number in range(2000):
        assert in_time.call(lambda number=number: number, "orders/0/1") == number  # type: ignore[misc]
    limit = CallLimit(0.15)
    assert limit.call(lambda: "done", "orders/0/1") == "done"
    time.sleep(0.2)  # past the limit of the last call: a timer that went on would raise here
    with pytest.raises(ZeroDivisionError):
        limit.call(lambda: 1 // 0, "orders/0/1")


def test_calls_that_end_at_their_limit_are_done_or_timed_out_and_nothing_else() -> None:
    limit = CallLimit(0.002)
    ends = []
    for number in range(300):
        until = time.monotonic() + 0.0019 + number % 10 * 0.00003

        def nearly(until: float = until) -> str:
            while time.monotonic() < until:
                pass
            return "done"

        try:
            ends.append(limit.call(nearly, "orders/0/1"))
        except CallTimedOut:
            ends.append("timed out")
    assert set(ends) <= {"done", "timed out"} and len(ends) == 300


UNINTERRUPTIBLE = {
    "catches everything": """
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass
        """,
    "in C, with Python's lock": "sum(itertools.repeat(1))",
    "in another thread": """
        thread = threading.Thread(target=CallLimit(0.1, 0.3).call, args=(lambda: time.sleep(3600), "orders/0/7"))
        thread.start()
        thread.join()
        """,
}


@pytest.mark.parametrize("how", UNINTERRUPTIBLE)
def test_call_that_cannot_be_interrupted_ends_its_process_and_leaves_where_it_was(how: str, tmp_path: Path) -> None:
    body = UNINTERRUPTIBLE[how]
    code = (
        "import itertools, threading, time\n"
        "from holdfast.pipelines.call_limits import CallLimit\n"
        f"def stuck():\n        {body.strip()}\n"
    )
    code += "stuck()\n" if "thread" in how else 'CallLimit(0.1, 0.3).call(stuck, "orders/0/7")\n'
    environment = {**os.environ, "PYTHON_FAULTHANDLER_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)
    assert ended.returncode == 1, ended.stderr.decode()
    [left] = tmp_path.iterdir()
    words = left.read_text()
    assert words.startswith("[function_ended] a worker process ended while the function ran for orders/0/7. Either")
    assert "most recent call first" in words


def test_what_was_left_is_gone_when_the_call_has_ended(tmp_path: Path) -> None:
    """A process that dies later would be told of with messages that are done."""
    code = (
        "import os\nfrom holdfast.pipelines.call_limits import CallLimit\n"
        'CallLimit(60).call(lambda: None, "orders/0/7")\nos._exit(7)'
    )
    environment = {**os.environ, "PYTHON_FAULTHANDLER_DIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 7
    assert [left.read_text() for left in tmp_path.iterdir()] == [""]
