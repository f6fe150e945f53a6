"""Lines in `failed` are tried again for as long as they are there: what the store refused it may take later.

One line stands for all of its file that are of the same topic and were refused for the same reason. When the store
takes it, the others become a file again and are stored as any other. So a reason that lasts costs one call for each
such group, however many lines there are. Damaged lines, and those that were not acknowledged, are not tried.

Crash case: the line is stored, and is still in `failed`. The store knows the last line of a file that was stored so, as
it knows how many lines of a file are stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
import structlog

from holdfast.backends.spill import events, files, inspecting
from holdfast.backends.spill.appending import CompletedFile
from holdfast.backends.spill.files import Failed, SpillDirectory
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.refusing import code_in
from holdfast.backends.spill.replay import Replayer
from holdfast.backends.spill.stats import SpillStats
from holdfast.model.errors import CallerError

log = structlog.get_logger("holdfast.spill")

# Trials of one round. The next round goes on with the others.
_TRIALS_MAX: Final = 20
# Of a group so many take turns: the first one may be the only one that is refused for good.
_CANDIDATES_MAX: Final = 16


class _Group(NamedTuple):
    """A topic, and the code with which its messages were refused."""

    queue: str
    code: str


class _Known(NamedTuple):
    """Where lines of each group begin in a file of `failed`; of the file as it was then."""

    changed_ns: int
    size_bytes: int
    groups: dict[_Group, list[int]]


class _Queue(msgspec.Struct):
    queue: str


_decode_queue = msgspec.json.Decoder(_Queue).decode


class Retrying:
    """`replayers` store the files of each kind."""

    def __init__(
        self,
        directory: SpillDirectory,
        target: Target,
        stats: SpillStats,
        retry_s: float,
        replayers: Mapping[str, Replayer],
    ) -> None:
        self._directory = directory
        self._target = target
        self._stats = stats
        self._retry_s = retry_s
        self._replayers = replayers
        self._known: dict[Path, _Known] = {}
        self._round = 0
        self._due_s = time.monotonic() + retry_s

    async def look(self) -> None:
        """Try lines again, where that is due and nothing else waits. Raises `OSError`, and what storing raises."""
        if not self._stats.failed_events or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self._retry_s
        self._round += 1
        paths = await asyncio.to_thread(files.failed_files, self._directory.path)
        self._known = {path: known for path, known in self._known.items() if path in paths}
        turned = self._round % max(1, len(paths))
        trials = 0
        for path in paths[turned:] + paths[:turned]:
            replayer = self._replayers[files.kind_of(path)]
            if replayer.pending_files or trials >= _TRIALS_MAX:
                continue
            known = await asyncio.to_thread(self._looked_at, path)
            if not known.groups or inspecting.is_unfinished(self._directory.path, path):
                continue
            if await self._was_taken(path, replayer):
                continue
            for group, positions in list(known.groups.items())[: _TRIALS_MAX - trials]:
                trials += 1
                if await self._is_taken(path, group, positions[self._round % len(positions)], replayer):
                    break  # the file has changed

    def _looked_at(self, path: Path) -> _Known:
        state = path.stat()
        known = self._known.get(path)
        if known is not None and (known.changed_ns, known.size_bytes) == (state.st_mtime_ns, state.st_size):
            return known
        before = self._directory.file_before(path, b"")
        groups: dict[_Group, list[int]] = {}
        position = 0
        with path.open("rb") as file:
            for row in file:
                try:
                    line = msgspec.json.decode(row, type=Failed)
                except msgspec.MsgspecError:
                    group = None
                else:
                    group = _group_of(line)
                    if group is not None and len(groups.get(group, ())) < _CANDIDATES_MAX:
                        good = inspecting.storable(line, before)
                        if good is not None:
                            groups.setdefault(group, []).append(position)
                position += len(row)
        self._known[path] = found = _Known(state.st_mtime_ns, state.st_size, groups)
        return found

    async def _was_taken(self, path: Path, replayer: Replayer) -> bool:
        """Finish what was cut off: a line that the store has goes from `failed` before another one is tried.

        The store knows the last one only.
        """
        stored = await self._target.progress(_writer_of(path))
        line = await asyncio.to_thread(_line_numbered, path, stored) if stored else None
        group = None if line is None else _group_of(line)
        if group is None:
            return False
        await self._take_others(path, group, stored, replayer)
        return True

    async def _is_taken(self, path: Path, group: _Group, position: int, replayer: Replayer) -> bool:
        """Whether the store takes a line of a group; the others of the group are stored next then."""
        line = await asyncio.to_thread(files.failed_line, path, position)
        good = None if line is None else inspecting.storable(line, self._directory.file_before(path, b""))
        if line is None or good is None:
            return False
        [event], _ = events.events_of(good + b"\n")
        assert event is not None, "it is good"
        try:
            await replayer.store_alone(_writer_of(path), line.line, event)
        except CallerError:
            return False
        await self._take_others(path, group, line.line, replayer)
        return True

    async def _take_others(self, path: Path, group: _Group, stored: int, replayer: Replayer) -> None:
        """One line of a group is stored: it goes from `failed`, and the others become a file."""
        file, count = await asyncio.to_thread(
            inspecting.requeue_lines,
            self._directory,
            path,
            lambda each: _group_of(each) == group,
            stored=stored,
        )
        self._stats.failed_events -= count + 1
        await self._target.forget([_writer_of(path)])
        log.info("spill_failed_taken", file=path.name, topic=group.queue, was=group.code, messages=count + 1)
        if file is not None:
            await replayer.take_over(CompletedFile(file, count, file.path.stat().st_size))


def _group_of(line: Failed) -> _Group | None:
    code = code_in(line.reason)
    if line.event is None or code is None:
        return None  # it is damaged, or was not acknowledged
    try:
        return _Group(_decode_queue(line.event).queue, code)
    except msgspec.MsgspecError:
        return None


def _line_numbered(path: Path, number: int) -> Failed | None:
    return next((line for line in files.failed_lines(path) if line.line == number), None)


def _writer_of(path: Path) -> UUID:
    """Under which the store notes the last line of a file of `failed` that was stored alone."""
    return uuid5(NAMESPACE_OID, f"holdfast spill failed {path.name}")
