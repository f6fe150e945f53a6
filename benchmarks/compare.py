"""Compares two results of the suite, figure by figure: medians, their spread, and whether they differ at all."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import FIGURES, Better
from benchmarks.measure import FAILED, ROUNDS_MIN

COLUMNS = 150
_NOT_KNOWN = "not known"
MACHINE = ("cores", "cpu", "kernel", "filesystem", "python")


@dataclass(frozen=True, slots=True)
class Spread:
    """All rounds of a figure."""

    median: float
    lowest: float
    highest: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one line in both results."""

    work: str
    contender: str
    figure: str
    before: Spread
    after: Spread
    change_pct: float | None
    verdict: str
    """`better`, `worse`, `no difference` where the rounds of both overlap, or why it cannot be said."""


def compare(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Comparison]:
    """Every figure that both results have, in the order of the second one."""
    had = {key: values for key, values, _ in _figures(before)}
    for key, values, better in _figures(after):
        if key in had:
            one, other = Spread.of(had[key]), Spread.of(values)
            change_pct = 100 * (other.median / one.median - 1) if one.median else None
            yield Comparison(*key, one, other, change_pct, _verdict(one, other, better))


def _figures(result: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], list[float], Better]]:
    for work in result["works"]:
        for line in work["lines"]:
            for figure, values in line["rounds"].items():
                kind = FIGURES.get(figure)
                yield (work["name"], line["contender"], figure), values, kind.better if kind else work["better"]


def _verdict(before: Spread, after: Spread, better: Better) -> str:
    rounds = min(before.rounds, after.rounds)
    if rounds < ROUNDS_MIN:
        return f"{_NOT_KNOWN}: {rounds} of at least {ROUNDS_MIN} rounds"
    if before.lowest <= after.highest and after.lowest <= before.highest:
        return "no difference"
    return "better" if (after.median > before.median) == (better == "higher") else "worse"


def warnings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Why the two may differ though the code does not."""
    found = []
    for name, result in (("the first", before), ("the second", after)):
        objections = result.get("objections", [])
        if objections:
            more = f" and {len(objections) - 1} more" if len(objections) > 1 else ""
            found.append(f"{name} is not fit to be published: {objections[0]}{more}")
    machines, settings = ([result[part] for result in (before, after)] for part in ("machine", "settings"))
    different = [key for key in MACHINE if machines[0][key] != machines[1][key]]
    if different:
        found.append(f"the machines differ: {', '.join(different)}")
    if settings[0]["seconds"] != settings[1]["seconds"]:
        found.append(f"runs took {settings[0]['seconds']:g} s and {settings[1]['seconds']:g} s")
    return found + failed(before, after)


def failed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Lines that were measured in the first result and failed in the second."""
    had = {key[:2] for key, _, _ in _figures(before)}
    return [
        f"{work['name']}, {line['contender']}: {line['problem']}"
        for work in after["works"]
        for line in work["lines"]
        if line.get("problem", "").startswith(FAILED) and (work["name"], line["contender"]) in had
    ]


def code(result: dict[str, Any]) -> str:
    """What a result measured. The first results only have the digest of the code."""
    known = result.get("code") or {}
    changed = "" if known.get("is_clean", True) else ", with changes"
    return f"{known.get('described') or 'commit not known'}{changed}, code {result['peers']['holdfast'].get('source')}"


def _print(comparisons: Sequence[Comparison], before: dict[str, Any], after: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from benchmarks.report import number

    console = Console() if sys.stdout.isatty() else Console(width=COLUMNS)
    console.print(f"first:  {code(before)}\nsecond: {code(after)}", markup=False, highlight=False)
    for warning in warnings(before, after):
        console.print(f"[yellow]{warning}[/yellow]")
    table = Table()
    for heading in ("work", "line", "figure"):
        table.add_column(heading)
    for heading in ("first", "lowest – highest", "second", "lowest – highest", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    colours = {"better": "green", "worse": "red", "no difference": "dim"}
    for index, one in enumerate(comparisons):
        is_new = index == 0 or comparisons[index - 1].work != one.work
        spreads = [
            text
            for spread in (one.before, one.after)
            for text in (number(spread.median), f"{number(spread.lowest)} – {number(spread.highest)}")
        ]
        change = "" if one.change_pct is None else f"{one.change_pct:+.1f} %"
        colour = colours.get(one.verdict, "yellow")
        heading = FIGURES[one.figure].heading if one.figure in FIGURES else one.figure
        work = one.work if is_new else ""
        table.add_row(work, one.contender, heading, *spreads, change, f"[{colour}]{one.verdict}[/{colour}]")
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 when a figure is worse or a line failed, with 2 when nothing could be compared",
    )
    arguments = parser.parse_args(argv)
    before, after = (json.loads(path.read_text("utf-8")) for path in (arguments.before, arguments.after))
    comparisons = list(compare(before, after))
    if arguments.json:
        found = {"warnings": warnings(before, after), "figures": [asdict(one) for one in comparisons]}
        print(json.dumps({"first": code(before), "second": code(after), **found}, indent=1, ensure_ascii=False))
    elif comparisons:
        _print(comparisons, before, after)
    else:
        print("the two results have no figure in common", file=sys.stderr)
        return 2
    is_worse = any(one.verdict == "worse" for one in comparisons) or bool(failed(before, after))
    if not arguments.check or is_worse:
        return int(arguments.check)
    if all(one.verdict.startswith(_NOT_KNOWN) for one in comparisons):
        print(f"no figure has {ROUNDS_MIN} rounds in both results: nothing was compared", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
