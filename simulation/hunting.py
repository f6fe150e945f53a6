"""Planting bugs, one at a time, to see whether a simulator finds them.

A simulator that finds nothing proves nothing; one that finds each of these is worth its time. A mutant is changed
source text, compiled instead of the original in a process of its own; the product has no hooks for that.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from simulation.planted import Mutant

_ROOT = Path(__file__).parents[1]
_CAUGHT, _SURVIVED = 10, 0


class Hunt(NamedTuple):
    """Which bugs are planted, and which simulator is to find them."""

    module: str
    # Imported only where a bug is planted, or it would come with the original of what is changed.
    run_module: str
    mutants: Sequence[Mutant]
    seeds_max: int
    # Where a bug shows only under some faults, or late: how and from which seed on to look for it.
    profile_of: Mapping[str, str] = {}
    start_of: Mapping[str, int] = {}

    def mutant(self, name: str) -> Mutant:
        return next(mutant for mutant in self.mutants if mutant.name == name)

    def find(self, mutant: Mutant, seeds: int) -> int:
        """In a process of its own: run seeds until one of them breaks something."""
        sys.meta_path.insert(0, _MutantFinder(mutated_sources(mutant)))
        run_seed = importlib.import_module(self.run_module).run_seed
        start = self.start_of.get(mutant.name, 0)
        for seed in range(start, start + seeds):
            outcome = run_seed(seed, profile=self.profile_of.get(mutant.name))
            if not outcome.is_clean:
                print(f"{seed}\t{outcome.invariant}")
                return _CAUGHT
        return _SURVIVED


class Verdict:
    """What became of one mutant: the seed that found it, and what that broke."""

    def __init__(self, hunt: Hunt, mutant: Mutant, seeds: int) -> None:
        self.mutant = mutant
        command = [sys.executable, "-m", hunt.module, "--hunt", mutant.name, "--seeds", str(seeds)]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in (_CAUGHT, _SURVIVED):
            raise RuntimeError(f"{mutant.name}: {done.stderr}")
        self.is_caught = done.returncode == _CAUGHT
        self.seed, self.invariant = [*done.stdout.strip().split("\t"), ""][:2]

    @property
    def described(self) -> str:
        return f"{self.invariant} (seed {self.seed})" if self.is_caught else "NOT FOUND"


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


def main(hunt: Hunt, description: str | None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {hunt.module}", description=description)
    parser.add_argument("--seeds", type=int, default=hunt.seeds_max, help="how many to try at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hunt is not None:
        return hunt.find(hunt.mutant(options.hunt), options.seeds)
    chosen = [mutant for mutant in hunt.mutants if not options.only or mutant.name in options.only]
    console = Console()
    table = Table("mutant", "what is wrong", "seed", "found by")
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(options.jobs) as pool, Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=len(chosen))
        for verdict in pool.map(lambda mutant: Verdict(hunt, mutant, options.seeds), chosen):
            verdicts.append(verdict)
            bar.advance(task)
            if not console.is_terminal:
                print(f"{verdict.mutant.name}: {verdict.described}", flush=True)
    for verdict in verdicts:
        table.add_row(verdict.mutant.name, verdict.mutant.what, verdict.seed, verdict.invariant or "NOTHING")
    console.print(table)
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.is_caught]
    console.print(
        f"{len(verdicts) - len(survivors)} of {len(verdicts)} found" + (f", not {survivors}" if survivors else "")
    )
    return 1 if survivors else 0


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, path: str, source: str) -> None:
        super().__init__(module, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _MutantFinder(importlib.abc.MetaPathFinder):
    """Gives changed modules to whoever imports them."""

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
