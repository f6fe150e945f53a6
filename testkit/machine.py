"""Programs of the system that the faults need, and what to say where one is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable


class CannotBreak(Exception):
    """A fault cannot be injected on this machine; the text says what is missing."""


def call(*command: str) -> str:
    """Run a program to its end. Raises `CannotBreak` with what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise CannotBreak(f"there is no {command[0]} on this machine") from None
    if done.returncode != 0:
        raise CannotBreak(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def missing(programs: Iterable[str], *, root: bool) -> str | None:
    """Why something cannot be done here; `None` if it can."""
    if root and os.geteuid() != 0:
        return "needs root"
    absent = sorted(program for program in programs if shutil.which(program) is None)
    return f"needs {', '.join(absent)}" if absent else None
