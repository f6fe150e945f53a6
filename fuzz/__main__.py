"""Run the targets for a while; a find is printed with the bytes that made it, and ends the run with 1."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
import traceback
from random import Random, SystemRandom

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, Target
from holdfast.model.errors import HoldfastError


def run(target: Target, seconds: float, seed: int) -> tuple[int, bytes | None]:
    """How many inputs were tried, and the one that should not have done what it did."""
    dice = Random(seed)
    deadline = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < deadline:
        data = mutated(target.examples, dice)
        tried += 1
        try:
            target.run(data)
        except HoldfastError:
            continue
        except Exception:  # noqa: BLE001 - any other exception is what we are looking for
            traceback.print_exc()
            return tried, data
    return tried, None


def run_guided(name: str, seconds: float, seed: int) -> int:
    """The same in a process of its own with atheris, which ends the process when it is done; its exit code."""
    command = [sys.executable, "-m", "fuzz.guided", name, "--seconds", str(int(seconds)), "--seed", str(seed)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--plain", action="store_true", help="do without atheris, though it is installed")
    options = parser.parse_args()
    chosen = {name: target for name, target in TARGETS.items() if options.only in (None, name)}
    print(f"seed {options.seed}")
    guided = not options.plain and importlib.util.find_spec("atheris") is not None
    for name, target in chosen.items():
        if guided:
            if run_guided(name, options.seconds / len(chosen), options.seed) != 0:
                return 1
            continue
        tried, find = run(target, options.seconds / len(chosen), options.seed)
        print(f"{name:10s} {tried:8d} inputs" + (f"  FOUND {find!r}" if find is not None else ""))
        if find is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
