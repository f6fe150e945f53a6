"""One cluster lives through faults that overlap, drawn from a seed, for as long as is wanted."""

from __future__ import annotations

import argparse
import time
from typing import Final

from rich.progress import BarColumn, Progress, TextColumn
from testkit.nemesis import FAULTS

from chaos import picture, report
from chaos.report import Report
from chaos.run import LONG_RATE, WORKLOADS, Now, Outcome, Plan, run

_EVERY_S: Final = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long")
    parser.add_argument("--nodes", type=int, default=5, choices=range(3, 10), help="of the cluster")
    parser.add_argument("--rate", type=float, default=LONG_RATE, help="messages a second, while all is well")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), default=[], help="only these")
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), default=[], help="only these")


def main(options: argparse.Namespace) -> int:
    plan = Plan.long(
        options.seed,
        options.minutes,
        faults=options.fault,
        nodes=options.nodes,
        rate=options.rate,
        workloads=options.workload,
    )
    made = Report("long", options)
    with made.attempt(plan.replay):
        outcome = _shown(plan, made)
        (made.directory / "timeline.svg").write_text(picture.drawn(outcome), "utf-8")
        made.add(outcome)
        facts = report.described(outcome)
        for what in ("worst_gap_seconds", "worst_recovery_seconds", "judged_seconds"):
            made.say(f"{what.replace('_', ' ')}: {facts[what]}")
        made.say(f"picture: {made.directory / 'timeline.svg'}")
    return made.finish()


def _shown(plan: Plan, made: Report) -> Outcome:
    """Run it, and tell how far it is: on a line that stays, or on one every ten seconds."""
    columns = (TextColumn("{task.fields[left]}"), BarColumn(20), TextColumn("{task.description}"))
    with Progress(*columns, console=made.console, disable=not made.console.is_terminal) as progress:
        total_s = (plan.minutes or 0.0) * 60
        task = progress.add_task("starting", total=total_s, left="")
        last = time.monotonic()

        def tell(now: Now) -> None:
            nonlocal last
            left = f"{int(now.left_s) // 60}:{int(now.left_s) % 60:02d} left"
            doing = f"{now.acknowledged:,} acknowledged, {now.rate:,.0f}/s, {now.doing}"
            progress.update(task, completed=total_s - now.left_s, description=doing, left=left)
            if not made.console.is_terminal and time.monotonic() - last >= _EVERY_S:
                last = time.monotonic()
                made.say(f"{left}: {doing}")

        return run(plan, tell)
