"""Lines in `failed` are tried again for as long as they are there: what the store refused it may take later.

One line stands for all of its file that are of the same topic and were refused for the same reason. When the store
takes it, the others become a file again and are stored as any other. So a reason that lasts costs one call for each
such group, however many lines there are. Damaged lines, and those that were not acknowledged, are not tried.

The store knows the last line of a file that was stored so, as it knows how many lines of a file are stored. A line of
which it cannot say so yet is tried itself until that is known, and no other one of its file before.

**Crash cases.**

- *The line is stored, and is still in `failed`*: the store knows it, so it goes, and the others become a file.
- *The others are on their way* (`requeueing`): that is finished first.
- *The store was not told to forget the line*: no line of `failed` has that number any more. It is told then.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
import structlog

from holdfast.backends.spill import events, files, requeueing, stretches
from holdfast.backends.spill.appending import CompletedFile
from holdfast.backends.spill.files import Failed, SpillDirectory
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.refusing import NoRoom, code_in
from holdfast.backends.spill.replay import Replayer
from holdfast.backends.spill.stats import SpillStats
from holdfast.model.errors import CallerError
from holdfast.model.ids import PartitionId

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
    is_marked: bool


class _NewFile(NamedTuple):
    """Made of lines of a file in `failed`, which may be in both still."""

    path: Path
    made: requeueing.Requeued
    counts: Counter[PartitionId]
    replayer: Replayer


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
        self._new_file: _NewFile | None = None
        self._round = 0
        self._due_s = time.monotonic() + retry_s

    async def look(self) -> None:
        """Try lines again, where that is due and nothing else waits. Raises `OSError`, and what storing raises."""
        if not self._stats.failed_events or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self._retry_s
        await self._hand_over()
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
            if known.is_marked:
                await self._requeue(path, replayer)
            elif known.groups and not requeueing.is_unfinished(self._directory.path, path):
                trials += await self._tried(path, known, replayer, _TRIALS_MAX - trials)

    async def _tried(self, path: Path, known: _Known, replayer: Replayer, trials_max: int) -> int:
        """Try lines of a file; how many were tried."""
        if await self._was_taken(path, replayer):
            return 0
        unsettled = await self._target.unsettled(_writer_of(path))
        line = await asyncio.to_thread(_line_numbered, path, unsettled) if unsettled else None
        if line is not None:
            await self._is_taken(path, line, replayer)
            return 1
        trials = 0
        for positions in list(known.groups.values())[:trials_max]:
            trials += 1
            line = await asyncio.to_thread(files.failed_line, path, positions[self._round % len(positions)])
            if line is not None and await self._is_taken(path, line, replayer):
                break  # the file has changed
        return trials

    def _looked_at(self, path: Path) -> _Known:
        state = path.stat()
        known = self._known.get(path)
        if known is not None and (known.changed_ns, known.size_bytes) == (state.st_mtime_ns, state.st_size):
            return known
        before = self._directory.file_before(path, b"")
        groups: dict[_Group, list[int]] = {}
        is_marked = False
        position = 0
        with path.open("rb") as file:
            for row in file:
                try:
                    line = msgspec.json.decode(row, type=Failed)
                except msgspec.MsgspecError:
                    group = None
                else:
                    is_marked |= requeueing.is_marked(line, before)
                    group = _group_of(line)
                    if group is not None and len(groups.get(group, ())) < _CANDIDATES_MAX:
                        good = requeueing.storable(line, before)
                        if good is not None:
                            groups.setdefault(group, []).append(position)
                position += len(row)
        self._known[path] = found = _Known(state.st_mtime_ns, state.st_size, groups, is_marked)
        return found

    async def _was_taken(self, path: Path, replayer: Replayer) -> bool:
        """Finish what was cut off: a line that the store has goes from `failed` before another one is tried.

        The store knows the last one only.
        """
        writer = _writer_of(path)
        stored = await self._target.progress(writer)
        line = await asyncio.to_thread(_line_numbered, path, stored) if stored else None
        if line is not None and _group_of(line) is not None:
            await self._take_group(path, line, replayer)
            return True
        if stored:
            await self._target.forget([writer])
        return False

    async def _is_taken(self, path: Path, line: Failed, replayer: Replayer) -> bool:
        """Whether the store takes a line; the others of its group are stored next then."""
        good = requeueing.storable(line, self._directory.file_before(path, b""))
        if good is None:
            return False
        [event], _ = events.events_of(good + b"\n")
        assert event is not None, "it is good"
        writer = _writer_of(path)
        try:
            await replayer.store_alone(writer, line.line, event)
        except (CallerError, NoRoom):
            # It is not stored, nor by an earlier try: the next one looks for it from where the log ends then.
            await self._target.forget([writer])
            return False
        await self._take_group(path, line, replayer)
        return True

    async def _take_group(self, path: Path, stored: Failed, replayer: Replayer) -> None:
        """A line is stored: it goes from `failed`, and the others of its group become a file."""
        group = _group_of(stored)
        assert group is not None, "no other line is tried"
        await asyncio.to_thread(
            requeueing.mark_for_requeue,
            self._directory,
            path,
            lambda each: _group_of(each) == group,
            stored=stored.line,
        )
        count = await self._requeue(path, replayer)
        log.info("spill_failed_taken", file=path.name, topic=group.queue, was=group.code, messages=count + 1)
        await self._target.forget([_writer_of(path)])

    async def _requeue(self, path: Path, replayer: Replayer) -> int:
        """Make a file of the lines that are marked; how many they are. Raises `OSError`; it is finished later then."""
        made = await asyncio.to_thread(requeueing.write_marked, self._directory, path)
        if made is not None:
            counts = await asyncio.to_thread(_counts_of, made.content)
            self._new_file = _NewFile(path, made, counts, replayer)
            await self._hand_over()
        else:
            self._stats.failed_events = await asyncio.to_thread(files.count_failed, self._directory.path)
        return 0 if made is None else made.messages

    async def _hand_over(self) -> None:
        """Have the new file stored once its lines are nowhere else. What fails is done again at the next look."""
        if self._new_file is None:
            return
        path, made, counts, replayer = self._new_file
        await asyncio.to_thread(requeueing.drop_marked, self._directory, path)
        self._stats.failed_events = await asyncio.to_thread(files.count_failed, self._directory.path)
        replayer.take_over(CompletedFile(made.file, made.messages, len(made.content)), counts)
        self._new_file = None


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


def _counts_of(content: bytes) -> Counter[PartitionId]:
    return stretches.counts_of(event for event in events.events_of(content)[0] if event is not None)


def _writer_of(path: Path) -> UUID:
    """Under which the store notes the last line of a file of `failed` that was stored alone."""
    return uuid5(NAMESPACE_OID, f"holdfast spill failed {path.name}")
