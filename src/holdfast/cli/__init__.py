"""The command line. One file for each group of commands; heavy parts are imported when they are used."""

from __future__ import annotations

import gc

from holdfast.model.limits import GC_THRESHOLDS


def main() -> None:
    # A start makes hardly any garbage, and looking for it was a fifth of the start.
    gc.set_threshold(*GC_THRESHOLDS)
    from holdfast.cli.app import main as run

    run()


__all__ = ["main"]
