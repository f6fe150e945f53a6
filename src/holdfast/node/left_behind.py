"""What another start has left where this broker does not look: people are told, since it was acknowledged."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import structlog

from holdfast.backends.spill import files
from holdfast.node.config import Config

log = structlog.get_logger("holdfast")


def warn_of_a_log(topics: Path) -> None:
    """What a broker without a database has stored in the same directory stays there, and nobody sees it."""
    try:
        is_there = topics.is_dir() and any(topics.iterdir())
    except OSError as error:
        log.warning("log_unreadable", directory=str(topics), problem=str(error))
        return
    if is_there:
        log.warning(
            "log_ignored",
            directory=str(topics),
            hint="messages that were stored without a database are there; start without --store to read them",
        )


def warn_of_recovery(path: Path) -> None:
    """A recovery in bulk that was not finished has files that no broker sees, and what comes now overtakes them."""
    left = len(list((path / files.RECOVERING).glob("*.buf")))
    if left:
        log.warning(
            "spill_recovering",
            directory=str(path / files.RECOVERING),
            files=left,
            hint="they are acknowledged and not all stored, and newer ones overtake them: stop, and finish `holdfast "
            "pipeline recover`",
        )


async def warn_of_left_behind(config: Config) -> None:
    """A broker that goes without a spill does not touch what one with a spill has left: acknowledged messages."""
    path = config.spill_directory
    warn_of_recovery(path)
    try:
        messages = await asyncio.to_thread(files.count_waiting, path)
    except OSError as error:
        log.warning("spill_unreadable", directory=str(path), problem=str(error))
        return
    if messages:
        log.warning(
            "spill_ignored",
            directory=str(path),
            messages=messages,
            hint="they are acknowledged and not stored, and newer ones overtake them: start with --spill, or stop and "
            f"store them with `holdfast spill replay {shlex.quote(str(path))}`",
        )
