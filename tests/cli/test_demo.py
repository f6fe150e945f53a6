"""`holdfast demo broker`: it really kills a broker, and its verdict is worth something."""

from __future__ import annotations

import os
import signal

from holdfast.cli.demo.tally import Verdict, judge
from tests.cli.program import Running, holdfast, until


def test_nothing_is_lost_when_the_broker_is_killed() -> None:
    ended = holdfast("demo", "broker", "--seconds", "4", "--json")
    assert ended.code == 0, ended
    verdict = ended.json
    assert verdict["sent"] == verdict["acknowledged"] == 40
    assert verdict["lost"] == 0 and verdict["data_directory"] == "clean"
    assert {reader["received"] >= 40 for reader in verdict["readers"].values()} == {True}
    assert {reader["out_of_order"] for reader in verdict["readers"].values()} == {0}


def test_interrupted_demo_leaves_no_broker_behind() -> None:
    with Running("demo", "broker") as playing:
        started = playing.line().decode()
        assert "broker started on" in started
        pid = int(started.rsplit("process ", 1)[1].rstrip(")\n"))
        ended = playing.end(signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err
    until(lambda: not _is_alive(pid), "the broker is gone")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_verdict() -> None:
    assert judge([1, 2, 3], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3]) == Verdict(2, 1, 0, 0)
    assert judge([1, 2], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3, 2]) == Verdict(3, 0, 0, 1)
    assert judge([1, 2, 3], [1, 2, 1, 2, 3]) == Verdict(5, 0, 2, 0)
    assert judge([], []) == Verdict(0, 0, 0, 0)
