"""What can be chosen about a spill."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SpillSettings(NamedTuple):
    """As the settings of a broker have them; `docs/spill.md` says what each is for."""

    directory: Path
    flush_ms: int = 100
    max_batch: int = 100
    events_per_file: int = 10_000
    retry_interval_s: float = 5.0
    startup_recovery_timeout_s: float = 3600.0
    deadline_ms_min: int = 200
    deadline_ms_max: int = 2_000
    free_bytes_min: int = 64 * 1024 * 1024
    auto_create: bool = True
