"""Publishes to one kind of store again and again, each time with another place that fails.

`python -m tests.faults.run STORE PLACE [PART/PARTS]` prints as JSON what was tried and which answers were untrue. It is
a program of its own, since modules are rewritten as they are imported.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog

import holdfast
from tests.faults import sites
from tests.faults.sites import faults_of

PREFIXES = ("holdfast.backends.", "holdfast.broker.", "holdfast.storage.", "holdfast.wire.")


async def try_all(store: str, place: Path, share: tuple[int, int]) -> dict[str, object]:
    from tests.faults.stores import STORES

    stand = STORES[store](place)
    found: list[str] = []
    runs = failed = 0
    try:
        tried = await stand.try_once("none", None)
        found += [f"without any fault: {each}" for each in tried.untrue]
        faults = faults_of(tried.turns)
        for number, fault in enumerate(faults):
            if number % share[1] == share[0]:
                print(f"{number} of {len(faults)}: {fault}", file=sys.stderr, flush=True)
                tried = await stand.try_once(f"{number}", fault)
                runs += 1
                failed += tried.has_failed
                found += [f"{fault}: {each}" for each in tried.untrue]
    finally:
        await stand.stop()
    return {"sites": sorted({fault.site for fault in faults}), "runs": runs, "failed": failed, "untrue": found}


def drop(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """Nobody reads thousands of faults."""
    raise structlog.DropEvent


def main() -> None:
    store, place = sys.argv[1], Path(sys.argv[2])
    number, _, count = (sys.argv[3] if len(sys.argv) > 3 else "0/1").partition("/")
    structlog.configure(processors=[drop])
    logging.disable(logging.CRITICAL)
    sites.install(Path(holdfast.__path__[0]), PREFIXES)
    print(json.dumps(asyncio.run(try_all(store, place, (int(number), int(count)))), indent=1))


if __name__ == "__main__":
    main()
