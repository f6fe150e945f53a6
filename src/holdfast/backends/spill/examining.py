"""The part of `holdfast doctor` that looks at a spill: what waits, failed or is damaged, and whether there is room.

Nothing is changed, and a broker may run: what it completes, stores and deletes meanwhile is left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.backends.spill import files, inspecting
from holdfast.backends.spill.appending import WARN_TIMES
from holdfast.storage.examined import Kind, Report

_TOPICS_SHOWN: Final = 5


def examine_spill(path: Path, report: Report, *, free_bytes_min: int) -> None:
    """Add to a report what is worth knowing of the spill in a directory; nothing where there is none."""
    if not path.exists():
        return
    if not path.is_dir():
        report.found(Kind.SPILL_NOT_WRITABLE, path, "it is no directory")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        why = "its file system is read-only" if is_read_only else "this user may not write there"
        report.found(Kind.SPILL_NOT_WRITABLE, path, why)
    with report.going_on(path):
        found = inspecting.examine(path)
        report.in_use = report.in_use or found.broker is not None
        report.spilled_messages = found.lines - found.bad
        if report.spilled_messages:
            named = sorted(found.queues.items(), key=lambda each: -each[1])
            topics = ", ".join(f"{queue}: {count}" for queue, count in named[:_TOPICS_SHOWN])
            more = f" and {len(named) - _TOPICS_SHOWN} more" if len(named) > _TOPICS_SHOWN else ""
            report.found(Kind.SPILL_WAITING, path, f"{report.spilled_messages} messages ({topics}{more})")
        if found.bad:
            report.found(Kind.SPILL_DAMAGED, path, f"{found.bad} lines do not match their sums")
        if found.failed:
            report.found(Kind.SPILL_FAILED, path / "failed", f"{found.failed} lines")
        if found.recovering:
            report.found(Kind.SPILL_RECOVERING, path / files.RECOVERING, f"files: {found.recovering}")
        for name in found.bad_progress:
            report.found(Kind.SPILL_PROGRESS_DAMAGED, path / name, "it does not say how many lines are stored")
        room = os.statvfs(path)
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes < WARN_TIMES * free_bytes_min:
            detail = f"{free_bytes} bytes are free; below {free_bytes_min} publishers are refused"
            report.found(Kind.SPILL_ROOM_SCARCE, path, detail)
