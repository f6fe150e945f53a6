"""The source distribution: it holds what a user builds from, and nothing of the machine that made it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SIZE_MAX: Final = 5_000_000


def test_source_distribution_is_small_and_holds_the_tracked_files_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={tree}/"], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", made], cwd=tree, check=True)
    (archive,) = made.iterdir()
    assert archive.stat().st_size < SIZE_MAX
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    assert held == {name for name in listed.decode().split("\0") if name} | {"PKG-INFO"}
