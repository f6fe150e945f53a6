"""Whether a run kept what Holdfast promises about its speed: the rows of `targets.toml`, and a verdict on each."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.figures import FIGURES, short
from benchmarks.measure import Work, WorkResult


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run: which work, whose line, which figure; no name is the work's own figure."""

    work: str
    contender: str
    figure: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Ours, or ours divided by theirs, must be at least or at most the limit.

    Where there are two ways to do the work, `or_contender` names the other one, and the better one counts.
    """

    name: str
    text: str
    ours: Figure
    theirs: Figure | None
    sense: Literal["at least", "at most"]
    limit: float
    or_contender: str = ""
    is_short: bool = False
    """Judged by a short run, too."""

    @property
    def contenders(self) -> set[str]:
        """The lines of its work that it needs."""
        return {self.ours.contender, self.theirs.contender if self.theirs else "", self.or_contender} - {""}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`passed` is None when nothing was judged; `reason` says why.

    A verdict must hold for the medians and for the best rounds. Where the two disagree, somebody else's
    work on the machine decided, and neither pass nor miss would be true.
    """

    target: Target
    unit: str
    ours: float | None = None
    theirs: float | None = None
    measured: float | None = None
    measured_best: float | None = None
    passed: bool | None = None
    reason: str = ""


def _target(work: str, name: str, row: Mapping[str, Any]) -> Target:
    figure = row.get("figure", "")
    return Target(
        name=name,
        text=row["text"],
        ours=Figure(work, row["line"], figure),
        theirs=Figure(work, row["times"], figure) if "times" in row else None,
        sense="at least" if "at_least" in row else "at most",
        limit=row["at_least"] if "at_least" in row else row["at_most"],
        or_contender=row.get("or", ""),
        is_short=row.get("short", False),
    )


_TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
TARGETS = tuple(_target(work, name, row) for work, rows in _TABLE.items() for name, row in rows.items())


def short_works(works: Iterable[Work]) -> list[Work]:
    """What a short run judges: each work with the lines that its targets need."""
    needed: dict[str, set[str]] = {}
    for target in TARGETS:
        if target.is_short:
            needed.setdefault(target.ours.work, set()).update(target.contenders)
    return [
        replace(work, contenders=tuple(one for one in work.contenders if one.name in needed[work.name]))
        for work in works
        if work.name in needed
    ]


def judge(results: Iterable[WorkResult], objection: str = "") -> list[Verdict]:
    """A verdict on every target whose work was run, in the order of the targets.

    With an `objection` to the whole run there are figures, but no pass and no miss.
    """
    by_name = {result.work.name: result for result in results}
    return [_judge(target, by_name[target.ours.work], objection) for target in TARGETS if target.ours.work in by_name]


class _Found(NamedTuple):
    """A line's median and best round, or why there are none; `doubt` says why they are not to be judged."""

    median: float | None
    best: float | None = None
    problem: str = ""
    doubt: str = ""


def _judge(target: Target, result: WorkResult, objection: str) -> Verdict:
    figure = target.ours.figure or result.work.figure
    ours = _ours(target, result, figure)
    theirs = _look_up(target, result, target.theirs.contender, figure) if target.theirs else _Found(None)
    unit = f"× {short(target.theirs.contender)}" if target.theirs else FIGURES[figure].unit
    verdict = Verdict(target, unit, ours.median, theirs.median)
    if ours.median is None or (target.theirs and not theirs.median):
        return replace(verdict, reason=ours.problem or theirs.problem)
    measured = ours.median / theirs.median if theirs.median else ours.median
    # A figure that stands alone has nothing to be disturbed differently from.
    best = ours.best / theirs.best if ours.best and theirs.best else measured
    verdict = replace(verdict, measured=measured, measured_best=best)
    if doubt := objection or ours.doubt or theirs.doubt:
        return replace(verdict, reason=doubt)
    if _keeps(target, measured) != _keeps(target, best):
        return replace(verdict, reason=f"unsteady: {measured:.2f} by medians, {best:.2f} by best rounds")
    return replace(verdict, passed=_keeps(target, measured))


def _keeps(target: Target, measured: float) -> bool:
    return measured >= target.limit if target.sense == "at least" else measured <= target.limit


def _ours(target: Target, result: WorkResult, figure: str) -> _Found:
    """Our figure; of two lines that of the better one, by medians."""
    found = _look_up(target, result, target.ours.contender, figure)
    other = _look_up(target, result, target.or_contender, figure) if target.or_contender else found
    if found.median is None or other.median is None:
        return found if other.median is None else other
    prefer = max if target.sense == "at least" else min
    return prefer(found, other, key=lambda one: one.median or 0.0)


def _look_up(target: Target, result: WorkResult, contender: str, figure: str) -> _Found:
    line = result.line(contender)
    value = line.median(figure) if line else None
    if line is None or value is None:
        return _Found(None, problem=f"{contender}: {(line.problem if line else '') or 'no figures'}")
    # While most rounds are undisturbed, the median lies between theirs.
    mostly_disturbed = 2 * line.disturbed_rounds >= len(line.foreign_shares)
    doubt = line.problem or line.too_few_rounds(result.work.rounds_min)
    if mostly_disturbed:
        doubt = doubt or line.disturbance()
    best = line.best(figure, "higher" if target.sense == "at least" else "lower")
    return _Found(value, best, doubt=doubt)
