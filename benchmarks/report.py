"""A run as a table to read and as JSON to keep."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import quiet
from benchmarks.figures import FIGURES, short
from benchmarks.load.wire import MESSAGE_BYTES
from benchmarks.machine import Machine
from benchmarks.measure import Line, Settings, WorkResult
from benchmarks.targets import Verdict
from benchmarks.version import Version

FORMAT = 2

WEAKER = "† acknowledges before the message is on disk: a weaker promise than the others make here"


@dataclass(frozen=True, slots=True)
class Run:
    """Everything one call of the suite found out."""

    machine: Machine
    settings: Settings
    peers: Mapping[str, Mapping[str, str | None]]
    results: Sequence[WorkResult]
    verdicts: Sequence[Verdict]
    code: Version | None = None
    objection: str = ""
    """To the whole run: why none of it is judged."""


def ratio(result: WorkResult, line: Line) -> float | None:
    """This line's figure as a multiple of the one it is compared with; None where that is the line itself."""
    reference = result.line(line.against)
    if reference is None or line is reference:
        return None
    ours, theirs = line.median(result.work.figure), reference.median(result.work.figure)
    return ours / theirs if ours is not None and theirs else None


def to_json(run: Run, objections: Sequence[str] = ()) -> dict[str, Any]:
    """With all reasons why the figures should not be trusted, or not be published."""
    return {
        "format": FORMAT,
        "code": None if run.code is None else asdict(run.code),
        "objections": list(objections),
        "machine": asdict(run.machine),
        "settings": {
            "message_bytes": MESSAGE_BYTES,
            "seconds": run.settings.seconds,
            "rounds": run.settings.rounds,
            "quick": run.settings.quick,
            "short": run.settings.short,
        },
        "peers": {name: dict(peer) for name, peer in run.peers.items()},
        "works": [_work_json(result) for result in run.results],
        "targets": [_verdict_json(verdict) for verdict in run.verdicts],
    }


def _work_json(result: WorkResult) -> dict[str, Any]:
    return {
        "name": result.work.name,
        "title": result.work.title,
        "figure": result.work.figure,
        "better": result.work.better,
        "reference": result.work.reference,
        "lines": [
            {
                "contender": line.contender,
                "peer": line.peer,
                "setting": line.setting,
                "note": line.note,
                "problem": line.problem,
                "weaker": line.weaker,
                "median": {figure: line.median(figure) for figure in line.rounds},
                "rounds": line.rounds,
                "foreign_cpu_shares": line.foreign_shares,
                "against": line.against,
                "ratio": ratio(result, line),
            }
            for line in result.lines
        ],
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    target = verdict.target
    return {
        "name": target.name,
        "text": target.text,
        "sense": target.sense,
        "limit": target.limit,
        "unit": verdict.unit,
        "ours": verdict.ours,
        "theirs": verdict.theirs,
        "measured": verdict.measured,
        "passed": verdict.passed,
        "measured_best_rounds": verdict.measured_best,
        "reason": verdict.reason,
    }


def write_json(run: Run, path: Path, objections: Sequence[str] = ()) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(run, objections), indent=1, ensure_ascii=False) + "\n")


def print_tables(run: Run, console: Console) -> None:
    console.print(f"\n[bold]{run.machine}[/bold]")
    console.print(f"Holdfast {run.code}", highlight=False, markup=False)
    console.print(
        f"{MESSAGE_BYTES}-byte messages unless a title says otherwise, {run.settings.seconds:g} s a run, "
        f"median of {run.settings.rounds} interleaved round{'s' if run.settings.rounds > 1 else ''}"
    )
    shares = [share for result in run.results for line in result.lines for share in line.foreign_shares]
    if shares and max(shares) > quiet.FOREIGN_SHARE_MAX:
        console.print(
            f"[yellow]Other processes had up to {max(shares):.0%} of the machine in "
            f"{sum(share > quiet.FOREIGN_SHARE_MAX for share in shares)} of {len(shares)} runs.[/yellow]"
        )
    for name, peer in run.peers.items():
        if peer["problem"]:
            console.print(f"[yellow]{name}: {peer['problem']}[/yellow]")
    for result in run.results:
        console.print(_work_table(result))
    if run.verdicts:
        console.print(_target_table(run.verdicts))


def _work_table(result: WorkResult) -> Table:
    figures = list(dict.fromkeys(figure for line in result.lines for figure in line.rounds))
    title = f"{result.work.title} (one run)" if result.work.once else result.work.title
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    if any(line.weaker for line in result.lines):
        table.caption = WEAKER
    table.add_column("")
    table.add_column("setting")
    for figure in figures:
        table.add_column(FIGURES[figure].heading, justify="right")
    table.add_column("compared", justify="right")
    table.add_column("load", style="dim")
    for line in result.lines:
        medians = [line.median(figure) for figure in figures]
        multiple = ratio(result, line)
        table.add_row(
            f"{line.contender} †" if line.weaker else line.contender,
            line.setting,
            *("–" if value is None else number(value) for value in medians),
            "" if multiple is None else f"{multiple:.2f} × {short(line.against)}",
            f"[yellow]{line.problem}[/yellow]" if line.problem else line.note,
        )
    return table


def _target_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Targets", title_justify="left", title_style="bold")
    for heading in ("target", "ours", "theirs", "measured", "limit", ""):
        table.add_column(heading, justify="left" if heading in ("target", "") else "right")
    for verdict in verdicts:
        target = verdict.target
        mark = {
            True: "[green]pass[/green]",
            False: "[red]MISSED[/red]",
            None: f"[yellow]not judged: {verdict.reason}[/yellow]",
        }[verdict.passed]
        table.add_row(
            target.text,
            "–" if verdict.ours is None else number(verdict.ours),
            "" if verdict.theirs is None else number(verdict.theirs),
            "–" if verdict.measured is None else f"{number(verdict.measured)} {verdict.unit}",
            f"{target.sense} {target.limit:,g} {verdict.unit}",
            mark,
        )
    return table


def number(value: float) -> str:
    """Three digits that matter, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
