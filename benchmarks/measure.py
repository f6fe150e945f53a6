"""The vocabulary of the suite: a work is a task, contenders do it, each run of one gives figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.figures import FIGURES, Better
from benchmarks.load.background import in_child
from benchmarks.load.pipeline import Flow
from benchmarks.quiet import FOREIGN_SHARE_MAX

ROUNDS_MIN = 3
# How the problem of a line begins that could not be measured to the end.
FAILED = "failed: "

# A generator that was told to run for some seconds may still wait for its last replies.
GENERATOR_SLACK_S = 180.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often everything is measured, and where the servers keep their data."""

    seconds: float = 2.0
    rounds: int = 3
    # Of works whose single run has everything in it many times, such as fifty kills.
    once_rounds: int = 1
    quick: bool = False
    # What is done many times in a run is done less often.
    short: bool = False
    directory: Path | None = None

    @property
    def probe_seconds(self) -> float:
        """For finding the shape of load that suits a server best."""
        return min(0.6, self.seconds / 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run and, where it helps, the shape of load that gave them.

    `weaker` marks a server that promised less than the work's title says: no fsync before the answer.
    """

    figures: Mapping[str, float]
    note: str = ""
    weaker: bool = False


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of a work: who does it, under which setting, and how it is run once.

    `against` names the line it is compared with, where that is not the work's reference.
    """

    name: str
    peer: str
    setting: str
    run: Callable[[Settings], Measured]
    against: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured; `figure` is the one that ratios are made of."""

    name: str
    title: str
    figure: str
    contenders: tuple[Contender, ...]
    reference: str
    once: bool = False

    @property
    def better(self) -> Better:
        return FIGURES[self.figure].better

    @property
    def rounds_min(self) -> int:
        """With fewer rounds its figures are neither judged nor published."""
        return 1 if self.once else ROUNDS_MIN


@dataclass(slots=True)
class Line:
    """All rounds of one contender, or the reason why there are none."""

    contender: str
    peer: str
    setting: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    foreign_shares: list[float] = field(default_factory=list)
    note: str = ""
    problem: str = ""
    weaker: bool = False
    against: str = ""

    def median(self, figure: str) -> float | None:
        values = self.rounds.get(figure)
        return median(values) if values else None

    def too_few_rounds(self, rounds_min: int) -> str:
        """What is wrong with the number of rounds, if anything."""
        count = max(map(len, self.rounds.values()), default=0)
        return "" if count >= rounds_min else f"{count} of at least {rounds_min} rounds"

    @property
    def disturbed_rounds(self) -> int:
        return sum(share > FOREIGN_SHARE_MAX for share in self.foreign_shares)

    def disturbance(self) -> str:
        """How much of the machine others had, if it was too much."""
        if not self.disturbed_rounds:
            return ""
        rounds = f"{self.disturbed_rounds} of {len(self.foreign_shares)} rounds"
        return f"others had up to {max(self.foreign_shares):.0%} of the machine in {rounds}"

    @property
    def failed(self) -> bool:
        """Whether a round failed; what is not there or was not chosen has not."""
        return self.problem.startswith(FAILED)

    def best(self, figure: str, better: Better) -> float | None:
        """The round that was disturbed least, if disturbance only ever makes a server slower."""
        values = self.rounds.get(figure)
        return None if not values else max(values) if better == "higher" else min(values)


@dataclass(frozen=True, slots=True)
class WorkResult:
    work: Work
    lines: tuple[Line, ...]

    def line(self, contender: str) -> Line | None:
        return next((line for line in self.lines if line.contender == contender), None)


Spec = TypeVar("Spec")
Outcome = TypeVar("Outcome")
Shape = TypeVar("Shape")


def generate(
    settings: Settings, function: Callable[[Spec], Outcome], spec: Spec, cores: set[int] | None = None
) -> Outcome:
    """Run a generator in its own process, bounded in time."""
    return in_child(function, spec, settings.seconds + GENERATOR_SLACK_S, cores)


def best_shape(settings: Settings, shapes: Sequence[Shape], run: Callable[[Shape, float], Flow]) -> Shape:
    """Try every shape of load for a moment and keep the one with the highest rate."""
    if settings.quick or len(shapes) == 1:
        return shapes[0]
    rates = {index: run(shape, settings.probe_seconds).per_s for index, shape in enumerate(shapes)}
    return shapes[max(rates, key=lambda index: rates[index])]
