"""Whatever fails: an error that says that nothing was stored is true of the log, and an acknowledgement too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from testkit.sizes import dice, scaled

ROOT = Path(__file__).parents[2]
# At least so many places that raise an error are passed by the publishes.
SITES_MIN = 35


# How many parts the faults of a store are dealt into; one of them is tried, and all in the long form.
PARTS = {"alone": 3, "cluster": 10, "plain": 10, "postgres": 6, "spill": 10}


@pytest.mark.parametrize("store", PARTS)
def test_publisher_is_told_the_truth_whatever_fails(tmp_path: Path, store: str) -> None:
    """Told that nothing was stored, it sends all of it again; told that it was, it forgets the message."""
    parts = scaled(PARTS[store], 1)
    part = dice("which faults are tried").randrange(parts)
    command = [sys.executable, "-m", "tests.faults.run", store, str(tmp_path), f"{part}/{parts}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout)
    assert found["untrue"] == []
    assert len(found["sites"]) >= SITES_MIN
    # Nearly all of them have failed: timers and other nodes do not pass their sites equally often each time.
    assert found["failed"] >= 0.6 * found["runs"]
