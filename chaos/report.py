"""What runs found: as JSON, as a table, and, of runs that are not clean, with all that is needed to look into it."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from testkit import records
from testkit.checker import Verdict, gap_list
from testkit.machine import CannotBreak

from chaos.run import Outcome
from holdfast.testing import ClusterFailed

RESULTS: Final = Path(__file__).parent / "results"
GAP_S: Final = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every campaign is told."""
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 31), help="do the same again")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIRECTORY", help="where the report goes")
    parser.add_argument(
        "--records", type=Path, metavar="DIRECTORY", help="write all that was sent and received, for `pipeline audit`"
    )
    parser.add_argument("--json", action="store_true", help="print the report instead of a table")


class Report:
    """All runs of a campaign; written after each, so that one which is broken off has told what it found."""

    def __init__(self, campaign: str, options: argparse.Namespace) -> None:
        self.verdict = Verdict()
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.seed: int = options.seed
        self.console = Console(stderr=options.json, width=None if Console().is_terminal else 150)
        self._campaign = campaign
        self._options = options
        self._runs: list[dict[str, Any]] = []
        self.directory = options.results / f"{campaign}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.say(f"seed {options.seed}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def attempt(self, replay: str = "", faults: Sequence[str] = ()) -> Iterator[None]:
        """A run of these faults that may be impossible here, whose brokers may not start, or that may not go on."""
        replay = replay or f"python -m chaos {self._campaign} --seed {self.seed}, and the other options of this run"
        try:
            yield
        except CannotBreak as error:
            self.skipped |= dict.fromkeys(faults or [self._campaign], str(error))
        except ClusterFailed as error:
            self.verdict.add("did not go on", [f"no cluster came up: {error}"])
            self.say(f"no cluster came up; repeat with\n  {replay}\n{error}")
        except AssertionError as error:
            self.verdict.add("did not go on", [str(error)])
            self.say(f"{traceback.format_exc()}repeat with: {replay}")

    def add(self, outcome: Outcome) -> None:
        if not outcome.history.acknowledged:
            # Nothing was promised, so no other check can fail.
            outcome.verdict.add("did not go on", ["nothing was acknowledged in the whole run"])
        self.verdict.merge(outcome.verdict)
        self.faults.update(outcome.faults)
        self.totals.update({"runs": 1, **outcome.totals})
        self.skipped |= outcome.skipped
        self._runs.append(described(outcome))
        # Several runs of one campaign have directories of their own.
        name = f"{self._campaign}-{outcome.seed}"
        if self._options.records is not None:
            records.write(outcome.history, self._options.records / name)
        if not outcome.verdict.is_clean:
            self._keep(outcome, self.directory / name)
        self.write()
        self.say(
            f"{'clean' if outcome.verdict.is_clean else 'BROKEN'}: {', '.join(sorted(outcome.faults))}: "
            f"{outcome.history.acknowledged:,} acknowledged, {outcome.seconds:.0f} s"
        )

    def _keep(self, outcome: Outcome, directory: Path) -> None:
        records.write(outcome.history, directory)
        (directory / "notes.txt").write_text("\n".join(outcome.notes) + "\n", "utf-8")
        for name, log in outcome.logs.items():
            (directory / f"{name}.log").write_text(log, "utf-8")
        for each in outcome.verdict.examples:
            self.say(f"{each.kind}: {each.detail}")
        self.say(f"logs, notes and records: {directory}")
        self.say(f"repeat with: {outcome.replay}")

    def as_json(self) -> dict[str, Any]:
        return {
            "campaign": self._campaign,
            "seed": self.seed,
            **self.verdict.as_json(),
            "faults": dict(sorted(self.faults.items())),
            "totals": dict(self.totals),
            "skipped": self.skipped,
            "runs": self._runs,
        }

    def write(self) -> None:
        (self.directory / "report.json").write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")

    def finish(self) -> int:
        """Show all of it; 0 where everything held, 1 where something did not, 2 where nothing could be run."""
        self.write()
        if self._options.json:
            print(json.dumps(self.as_json()))
        else:
            self.console.print(self._table())
        for name, reason in self.skipped.items():
            self.say(f"not done: {name}: {reason}")
        self.say(f"report: {self.directory / 'report.json'}")
        if not self.verdict.is_clean:
            return 1
        return 0 if self._runs else 2

    def _table(self) -> Table:
        table = Table("what", "how much")
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

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[str, int], None]]:
        """A bar; what is yielded moves it: what is done now, and how much more is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as shown:
            task = shown.add_task(what, total=total)
            yield lambda doing, more: shown.update(task, advance=more, description=doing)


def described(outcome: Outcome) -> dict[str, Any]:
    history = outcome.history
    gaps = gap_list(history, GAP_S)
    return {
        "seed": outcome.seed,
        "replay": outcome.replay,
        **outcome.verdict.as_json(),
        "seconds": round(outcome.seconds, 1),
        "judged_seconds": round(outcome.judged_s, 1),
        "sent": history.sent,
        "acknowledged": history.acknowledged,
        "delivered": history.delivered,
        "episodes": outcome.episodes,
        "faults": dict(sorted(outcome.faults.items())),
        "skipped": outcome.skipped,
        "worst_gap_seconds": round(max((ended - began for began, ended in gaps), default=0.0), 1),
        "gaps_over_a_second": len(gaps),
        "worst_recovery_seconds": round(max(outcome.recoveries_s, default=0.0), 1),
        "terms_seen": len(history.leaders),
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
        "notes": outcome.notes,
        **outcome.facts,
    }
