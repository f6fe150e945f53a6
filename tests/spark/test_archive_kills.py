"""A driver that archives or compacts is killed, and every offset is there once; `make chaos-archive` kills more."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import archive
from rich.console import Console

from tests.support.sizes import LONG


@pytest.mark.spark
@pytest.mark.timeout(900 if LONG else 300)
def test_killed_driver_loses_and_doubles_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kill in the middle of a batch, one in the middle of a compaction, and a driver that does the rest."""
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    assert archive.run(20 if LONG else 2, 8, tmp_path, Console(width=150))
