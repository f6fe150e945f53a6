"""Break a real cluster in every way there is: `python -m chaos --rounds 20`; one run again: `--seed 7 --fault NAME`.

One cluster through mixed trouble for a long time: `python -m chaos --minutes 30`; again: `--minutes 30 --seed 7`.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from testkit.commands import CannotBreak

from chaos import records
from chaos.checker import CHECKS, Verdict
from chaos.mixed.registry import LOADS, TROUBLES
from chaos.mixed.run import RATE
from chaos.mixed.run import Plan as LongPlan
from chaos.mixed.show import show
from chaos.run import ALL, Outcome, Plan, plans, run
from holdfast.testing import ClusterFailed

RESULTS = Path(__file__).parent / "results"


class Report:
    """All runs together; written after each, so that a run which is broken off has told what it found."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.verdict = Verdict()
        for kind in CHECKS:
            self.verdict.add(kind, ())
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self._seed = seed
        self._runs: list[dict[str, object]] = []
        self.directory = directory / time.strftime("%Y%m%d-%H%M%S")
        self.directory.mkdir(parents=True, exist_ok=True)

    def add(self, outcome: Outcome) -> None:
        self.verdict.merge(outcome.verdict)
        self.faults.update(outcome.plan.names)
        self.totals.update(
            {
                "runs": 1,
                "messages sent": len(outcome.history.sent),
                "messages acknowledged": outcome.history.acknowledged,
                "messages seen by subscribers": len(outcome.history.seen),
                "reads to the end": len(outcome.history.tails),
                "cursor events": len(outcome.history.cursors),
            }
        )
        self._runs.append(outcome.as_json())
        if outcome.logs:
            (self.directory / f"{outcome.plan.seed}.log").write_text(outcome.logs, "utf-8")
            records.write(outcome.history, self.directory / str(outcome.plan.seed))
        self.write()

    def write(self) -> None:
        content = {
            "seed": self._seed,
            **self.verdict.as_json(),
            "faults": dict(sorted(self.faults.items())),
            "totals": dict(self.totals),
            "skipped": self.skipped,
            "runs": self._runs,
        }
        (self.directory / "report.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")

    def table(self) -> Table:
        table = Table("what", "how often")
        table.columns[1].justify = "right"
        for name, count in self.totals.items():
            table.add_row(name, f"{count:,}")
        table.add_section()
        for name, count in sorted(self.faults.items()):
            table.add_row(f"fault: {name}", f"{count:,}")
        table.add_section()
        for name, count in self.verdict.counts.items():
            table.add_row(f"violation: {name}", f"{count:,}", style="bold red" if count else None)
        return table


def run_all(chosen: list[Plan], report: Report, console: Console, records_to: Path | None) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("faults", total=sum(len(plan.names) for plan in chosen))
        for plan in chosen:
            progress.update(task, description=plan.names[0])
            try:
                outcome = run(plan)
            except CannotBreak as error:
                for name in plan.names:
                    report.skipped[name] = str(error)
                continue
            except ClusterFailed as error:
                report.verdict.add("did not go on", [f"no cluster came up: {error}"])
                console.print(f"no cluster came up; repeat with\n  {plan.replay}\n{error}", markup=False)
                continue
            report.add(outcome)
            if records_to is not None:
                records.write(outcome.history, records_to / str(plan.seed))
            progress.advance(task, len(plan.names))
            if not console.is_terminal:
                said = "clean" if outcome.verdict.is_clean else "BROKEN"
                told = f"{said}: {', '.join(plan.names)}: {outcome.history.acknowledged} acknowledged"
                console.print(f"{told}, {outcome.seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)
            if not outcome.verdict.is_clean:
                for each in outcome.verdict.examples:
                    console.print(f"{each.kind}: {each.detail}", markup=False, highlight=False, soft_wrap=True)
                console.print(f"  repeat with: {plan.replay}", markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is brought about")
    parser.add_argument("--faults-per-run", type=int, default=4, help="faults that one cluster lives through")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--fault", action="append", choices=sorted(ALL), help="one run with these, in this order")
    parser.add_argument("--without", action="append", choices=sorted(ALL), default=[], help="leave this one out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--minutes", type=float, help="one cluster lives through mixed troubles for this long")
    parser.add_argument("--nodes", type=int, default=5, choices=range(3, 10), help="with --minutes: so many")
    parser.add_argument("--rate", type=float, default=RATE, help="with --minutes: messages a second")
    parser.add_argument("--trouble", action="append", choices=sorted(TROUBLES), default=[], help="only these")
    parser.add_argument("--load", action="append", choices=sorted(LOADS), default=[], help="only these")
    parser.add_argument("--json", action="store_true", help="with --minutes: print the report")
    parser.add_argument("--records", type=Path, help="write what was sent and received, one directory for each run")
    options = parser.parse_args()
    # Whoever ends this leaves no mounts and namespaces behind.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # That clients lose brokers is what is wanted here.
    logging.getLogger("holdfast.client").setLevel(logging.ERROR)
    if options.minutes is not None:
        # In the order of the list: those that come later may use what earlier ones have made.
        loads = tuple(name for name in LOADS if name in (options.load or LOADS))
        troubles = tuple(options.trouble)
        plan = LongPlan(options.seed, options.minutes, options.nodes, options.rate, loads, troubles)
        return show(plan, options.results, as_json=options.json, records_to=options.records)
    console = Console()
    console.print(f"seed {options.seed}", highlight=False)
    report = Report(options.results, options.seed)
    if options.fault:
        chosen = [Plan(options.seed, tuple(options.fault))]
    else:
        report.skipped = {name: reason for name, fault in ALL.items() if (reason := fault.why_not()) is not None}
        possible = [name for name in ALL if name not in (*report.skipped, *options.without)]
        chosen = plans(options.seed, possible, options.rounds, options.faults_per_run)
    run_all(chosen, report, console, options.records)
    report.write()
    console.print(report.table())
    for name, reason in report.skipped.items():
        console.print(f"not done: {name}: {reason}", highlight=False)
    console.print(f"report: {report.directory / 'report.json'}", highlight=False)
    return 0 if report.verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
