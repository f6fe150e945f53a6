"""Planting bugs, one at a time, to see whether a simulator finds them.

A simulator that finds nothing proves nothing. A mutant is changed source text, compiled instead of the original in a
process of its own; the product has no hooks for that.

`mutant_seeds.json` says which seed found each mutant, so that it is found at once. A change of the simulator or of
the code it runs may let the same seed take another course. Then the seeds behind the recorded one are tried, and
`python -m simulation [cluster|pair|plain] --mutants --record` records the one that finds the mutant.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from simulation.planted import Mutant
from simulation.simulators import SIMULATORS, Simulator

_ROOT = Path(__file__).parents[1]
_RECORD = Path(__file__).with_name("mutant_seeds.json")
_CAUGHT, _SURVIVED = 10, 0


def recorded_seeds() -> dict[str, dict[str, int]]:
    """Of each simulator: the seed that finds each mutant."""
    recorded: dict[str, dict[str, int]] = json.loads(_RECORD.read_text("utf-8"))
    return recorded


class Verdict(NamedTuple):
    """Whether one mutant was found, by which seed, and what that broke."""

    simulator: Simulator
    mutant: Mutant
    first_seed: int
    seed: int | None
    invariant: str

    @property
    def is_caught(self) -> bool:
        return self.seed is not None

    @property
    def is_stale(self) -> bool:
        """Another seed found it than the one that was tried first."""
        return self.is_caught and self.seed != self.first_seed

    @property
    def described(self) -> str:
        if not self.is_caught:
            return "NOT FOUND"
        return f"{self.invariant} (seed {self.seed}{f', no longer {self.first_seed}' if self.is_stale else ''})"


def hunt(simulator: Simulator, mutant: Mutant, start: int | None = None, seeds: int | None = None) -> Verdict:
    """Plant it in a process of its own, and try the recorded seed and those behind it until one breaks something."""
    recorded = recorded_seeds()[simulator.name].get(mutant.name)
    first = start if start is not None else recorded or 0
    end = first + (seeds or simulator.hunted_seeds_max)
    following = first
    while True:
        seed, invariant = _first_found(simulator, mutant, range(following, end))
        # A seed that breaks something without the bug as well proves nothing about the bug.
        if seed is None or seed == recorded or simulator.run_seed(seed, profile=mutant.profile).is_clean:
            return Verdict(simulator, mutant, first, seed, invariant)
        following = seed + 1


def _first_found(simulator: Simulator, mutant: Mutant, seeds: range) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "simulation", simulator.name, "--hunt", mutant.name]
    command += ["--start", str(seeds.start), "--seeds", str(len(seeds))]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _SURVIVED:
        return None, ""
    if done.returncode != _CAUGHT:
        raise RuntimeError(f"{mutant.name}: {done.stderr}")
    seed, invariant = done.stdout.strip().split("\t")
    return int(seed), invariant


def hunt_here(simulator: Simulator, mutant: Mutant, seeds: range) -> int:
    """In a process that imported nothing of what is changed. The exit code says whether the mutant was found."""
    sys.meta_path.insert(0, _MutantFinder(mutated_sources(mutant)))
    run_seed = simulator.run_seed
    for seed in seeds:
        outcome = run_seed(seed, profile=mutant.profile)
        if not outcome.is_clean:
            print(f"{seed}\t{outcome.invariant}")
            return _CAUGHT
    return _SURVIVED


def hunt_many(
    simulator: Simulator,
    mutants: Sequence[Mutant],
    start: int | None,
    seeds: int | None,
    *,
    jobs: int,
    is_recorded: bool,
) -> int:
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda mutant: hunt(simulator, mutant, start, seeds), mutants):
            verdicts.append(verdict)
            print(f"{verdict.mutant.name}: {verdict.described}\n    {verdict.mutant.what}", flush=True)
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.is_caught]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} found" + (f", not {survivors}" if survivors else ""))
    if is_recorded:
        _record(simulator, {verdict.mutant.name: verdict.seed for verdict in verdicts if verdict.seed is not None})
    return 1 if survivors else 0


def _record(simulator: Simulator, found: dict[str, int]) -> None:
    recorded = recorded_seeds()
    recorded[simulator.name] |= found
    planted = {
        each.name: {
            mutant.name: recorded[each.name][mutant.name]
            for mutant in each.mutants
            if mutant.name in recorded[each.name]
        }
        for each in SIMULATORS.values()
    }
    _RECORD.write_text(json.dumps(planted, indent=2) + "\n", "utf-8")


def source_path(module: str) -> Path:
    base = _ROOT if module.startswith("simulation") else _ROOT / "src"
    return base.joinpath(*module.split(".")).with_suffix(".py")


def mutated_sources(mutant: Mutant) -> dict[str, str]:
    """The whole text of each changed module."""
    sources: dict[str, str] = {}
    for module, old, new in mutant.edits:
        text = sources.get(module) or source_path(module).read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {old!r} occurs {text.count(old)} times in {module}")
        sources[module] = text.replace(old, new)
    return sources


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, path: str, source: str) -> None:
        super().__init__(module, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _MutantFinder(importlib.abc.MetaPathFinder):
    """Imports changed modules instead of the originals."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        location = str(source_path(fullname))
        loader = _MutantLoader(fullname, location, self._sources[fullname])
        return importlib.util.spec_from_file_location(fullname, location, loader=loader)
