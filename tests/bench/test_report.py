"""A report that hides a missing peer or a path says less, or more, than it should."""

import io
import json
import os
from pathlib import Path

from benchmarks import report
from benchmarks.machine import Machine
from benchmarks.measure import Line, Settings, WorkResult
from benchmarks.quiet import Moment, foreign_share, machine_busy_s
from benchmarks.rounds import plain
from benchmarks.targets import judge
from benchmarks.works.publish import DURABLE
from rich.console import Console

MACHINE = Machine(
    cores=2,
    cpu="Some CPU",
    memory_gb=8.0,
    kernel="6.1",
    filesystem="ext4",
    fsync_p50_ms=2.0,
    fsync_p50_ms_after=0.2,
    python="3.11.0",
    load_before=0.1,
)


REDIS = "Redis Streams"


def _run() -> report.Run:
    lines = (
        Line(
            "Holdfast text", "holdfast", "--sync group", {"msg_per_s": [4e6, 6e6, 5e6]}, [0.0, 0.5, 0.0], against=REDIS
        ),
        Line(
            "Redis Streams",
            "redis",
            "appendfsync always",
            {"msg_per_s": [1e6, 1e6, 1e6]},
            [0.0, 0.0, 0.0],
            against=REDIS,
        ),
        Line("NATS JetStream", "nats", "file storage", problem="not installed: apt install nats-server"),
        Line("RabbitMQ stream", "rabbitmq", "one replica", {"msg_per_s": [7e5]}, [0.0], weaker=True),
    )
    results = [WorkResult(DURABLE, lines)]
    peers = {"nats": {"version": None, "problem": "not installed: apt install nats-server"}}
    return report.Run(MACHINE, Settings(), peers, results, judge(results))


def _printed() -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    report.print_tables(_run(), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_medians_and_ratios_stand_in_the_json(tmp_path: Path) -> None:
    report.write_json(_run(), tmp_path / "run.json")
    work = json.loads((tmp_path / "run.json").read_text())["works"][0]
    ours, reference = work["lines"][0], work["lines"][1]
    assert ours["median"] == {"msg_per_s": 5e6}
    assert (ours["ratio"], reference["ratio"]) == (5.0, None)


def test_the_disk_is_named_by_its_undisturbed_time() -> None:
    assert "fsync 0.20 ms" in str(MACHINE)


def test_a_missing_peer_is_named_with_the_way_to_get_it() -> None:
    assert "apt install nats-server" in _printed()
    nats = report.to_json(_run())["works"][0]["lines"][2]
    assert (nats["problem"], nats["median"]) == ("not installed: apt install nats-server", {})


def test_a_server_that_does_not_sync_is_marked_as_weaker() -> None:
    printed = _printed()
    assert "RabbitMQ stream †" in printed
    assert "† acknowledges before the message is on disk" in printed


def test_runs_that_others_disturbed_are_counted() -> None:
    assert "up to 50% of the machine in 1 of 7 runs" in _printed()


def test_a_problem_is_told_in_one_line_without_paths() -> None:
    assert plain("Traceback\n  File '/srv/somebody/x.py'\nOSError: /srv/somebody/data is full") == (
        "OSError: … is full"
    )


def test_only_what_is_not_our_own_counts_as_foreign() -> None:
    before, after = Moment(0.0, 100.0, 10.0), Moment(10.0, 110.0, 15.0)
    cores = os.cpu_count() or 1
    assert foreign_share(before, after) == min(1.0, 5.0 / (10.0 * cores))
    assert foreign_share(before, Moment(10.0, 105.0, 15.0)) == 0.0


def test_idle_and_waiting_for_disks_is_not_busy() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert machine_busy_s(f"cpu  {ticks} 0 {ticks} 999 999 0 0 {ticks} 0 0\ncpu0 1 2 3") == 3.0
