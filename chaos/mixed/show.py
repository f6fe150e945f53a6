"""The long form on a terminal: how it goes, and what was found, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from testkit.commands import CannotBreak

from chaos.mixed import picture, records
from chaos.mixed.judge import gap_list
from chaos.mixed.run import Now, Outcome, Plan, run
from holdfast.testing import ClusterFailed

_EVERY_S = 10.0


def show(plan: Plan, results: Path, *, as_json: bool, records_to: Path | None = None) -> int:
    """Run it; 0 where everything held, 1 where something did not, 2 where nothing could be run."""
    console = Console(stderr=as_json)
    console.print(f"seed {plan.seed}", highlight=False)
    directory = results / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        outcome = _run(plan, console, directory)
    except CannotBreak as error:
        console.print(f"cannot be done on this machine: {error}", markup=False, highlight=False)
        return 2
    except ClusterFailed as error:
        console.print(f"no cluster came up; repeat with\n  {plan.replay}\n{error}", markup=False, highlight=False)
        return 1
    (directory / "timeline.svg").write_text(picture.drawn(outcome), "utf-8")
    report = described(outcome)
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if as_json:
        print(json.dumps(report))
    else:
        console.print(table(outcome))
    for name, reason in outcome.skipped.items():
        console.print(f"not done: {name}: {reason}", markup=False, highlight=False)
    if records_to is not None:
        records.write(outcome.ledger, records_to / str(plan.seed), time.time() - time.monotonic())
    (directory / "notes.txt").write_text("\n".join(outcome.notes) + "\n", "utf-8")
    if not outcome.verdict.is_clean:
        for each in outcome.verdict.examples:
            console.print(f"{each.kind}: {each.detail}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"logs of the nodes and notes: {directory}", markup=False, highlight=False)
    console.print(f"repeat with: {plan.replay}", markup=False, highlight=False)
    console.print(f"picture: {directory / 'timeline.svg'}", markup=False, highlight=False)
    console.print(f"report: {directory / 'report.json'}", markup=False, highlight=False)
    return 0 if outcome.verdict.is_clean else 1


def _run(plan: Plan, console: Console, directory: Path) -> Outcome:
    columns = (TextColumn("{task.fields[left]}"), BarColumn(20), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total_s = plan.minutes * 60
        task = progress.add_task("starting", total=total_s, left="")
        last = time.monotonic()

        def tell(now: Now) -> None:
            nonlocal last
            left = f"{int(now.left_s) // 60}:{int(now.left_s) % 60:02d} left"
            doing = f"{now.acknowledged:,} acknowledged, {now.rate:,.0f}/s, {now.doing}"
            progress.update(task, completed=total_s - now.left_s, description=doing, left=left)
            if not console.is_terminal and time.monotonic() - last >= _EVERY_S:
                last = time.monotonic()
                console.print(f"{left}: {doing}", markup=False, highlight=False, soft_wrap=True)

        return run(plan, tell, directory)


def described(outcome: Outcome) -> dict[str, Any]:
    gaps = gap_list(outcome.ledger, picture.GAP_S)
    return {
        "seed": outcome.plan.seed,
        "minutes": outcome.plan.minutes,
        "nodes": outcome.plan.nodes,
        "replay": outcome.plan.replay,
        **outcome.verdict.as_json(),
        "totals": outcome.totals,
        "episodes": outcome.episodes,
        "faults": dict(sorted(outcome.faults.items())),
        "skipped": outcome.skipped,
        "seconds": round(outcome.seconds, 1),
        "judged_seconds": round(outcome.judged_s, 1),
        "worst_gap_seconds": round(max((ended - began for began, ended in gaps), default=0.0), 1),
        "gaps_over_a_second": len(gaps),
        "worst_recovery_seconds": round(max(outcome.recoveries_s, default=0.0), 1),
        "terms_seen": len(outcome.ledger.leaders),
        "refusals": outcome.errors,
        "bars": [
            {
                "fault": bar.name,
                "detail": bar.detail,
                "from_seconds": round(bar.began - outcome.began, 2),
                "to_seconds": round(bar.ended - outcome.began, 2),
            }
            for bar in outcome.bars
        ],
    }


def table(outcome: Outcome) -> Table:
    facts = described(outcome)
    made = Table("what", "how much")
    made.columns[1].justify = "right"
    for name, count in outcome.totals.items():
        made.add_row(name, f"{count:,}")
    made.add_row("episodes of trouble", f"{outcome.episodes:,}")
    made.add_row("longest time without an acknowledgement", f"{facts['worst_gap_seconds']} s")
    made.add_row("slowest recovery after an episode", f"{facts['worst_recovery_seconds']} s")
    made.add_row("judged in", f"{facts['judged_seconds']} s")
    made.add_section()
    for name, count in sorted(outcome.faults.items()):
        made.add_row(f"fault: {name}", f"{count:,}")
    made.add_section()
    for name, count in outcome.verdict.counts.items():
        made.add_row(f"violation: {name}", f"{count:,}", style="bold red" if count else None)
    return made
