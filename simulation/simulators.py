"""The three simulators: what runs a seed of each, what may go wrong in it, and which bugs are planted to test it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from simulation.outcome import Outcome
from simulation.pair_planted import PAIR_MUTANTS
from simulation.plain_planted import PLAIN_MUTANTS
from simulation.planted import MUTANTS, Mutant


class RunSeed(Protocol):
    def __call__(self, seed: int, *, profile: str | None = None, is_traced: bool = False) -> Outcome: ...


class Simulator(NamedTuple):
    """Modules are named here, not imported: a bug must be planted before the module with the bug is imported."""

    name: str
    run_module: str
    profiles_module: str
    mutants: Sequence[Mutant]
    # How many seeds are tried to find a planted bug.
    hunted_seeds_max: int
    # Shown first, even if they are zero. Everything else that was counted follows.
    figures: Sequence[str] = ()

    @property
    def run_seed(self) -> RunSeed:
        return cast("RunSeed", import_module(self.run_module).run_seed)

    @property
    def profiles(self) -> Iterable[str]:
        return cast("Iterable[str]", import_module(self.profiles_module).PROFILES)

    def __str__(self) -> str:
        return self.name

    def mutant(self, name: str) -> Mutant:
        return next(mutant for mutant in self.mutants if mutant.name == name)

    def described(self, outcome: Outcome) -> str:
        """What broke, and how to see it happen."""
        return (
            f"seed {outcome.seed} ({outcome.profile}) broke: {outcome.invariant}\n"
            f"    {outcome.detail}\n"
            f"    replay: python -m simulation {self.name} --seed {outcome.seed} --profile {outcome.profile} --trace"
        )


CLUSTER: Final = Simulator(
    "cluster",
    "simulation.run",
    "simulation.faults",
    MUTANTS,
    400,
    ("steps", "elections", "crashes", "messages acknowledged", "reads", "changes of members", "installations"),
)
PAIR: Final = Simulator("pair", "simulation.pair_run", "simulation.pair_faults", PAIR_MUTANTS, 1500)
PLAIN: Final = Simulator("plain", "simulation.plain_run", "simulation.plain_run", PLAIN_MUTANTS, 600)
SIMULATORS: Final = {simulator.name: simulator for simulator in (CLUSTER, PAIR, PLAIN)}
