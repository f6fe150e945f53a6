"""The command line. One file for each group of commands; heavy parts are imported when they are used."""

from __future__ import annotations

import gc
from typing import Final

# As few looks for garbage as a broker takes: a start makes hardly any, and looking for it was a fifth of the start.
_GC_THRESHOLDS: Final = (10_000, 20, 50)


def main() -> None:
    gc.set_threshold(*_GC_THRESHOLDS)
    from holdfast.cli.app import main as run

    run()


__all__ = ["main"]
