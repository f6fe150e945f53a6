"""Topics that cannot be made for now because there are too many: what was kept for them comes back by itself.

That passes when somebody deletes a topic, so it is no verdict on the messages, and they may not be overtaken. They
stand in `failed` like all that is not stored, with `[too_many_topics]` in the reason, and nobody else waits for them.
For as long as a topic has some there it is held: whatever comes for it queues, and goes there, too. As soon as it can
be made, or is there, all of them become a file again that is stored before all others.

**Crash cases.** Their lines are put into `failed/<name>.ready`, whole or not at all, then removed from where they were,
then the file gets its place. A start that finds a `.ready` file does the rest of that, so none is lost or stored twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.backends.spill import files
from holdfast.backends.spill.appending import CompletedFile
from holdfast.backends.spill.files import Failed, SpillDirectory, SpillFile
from holdfast.backends.spill.refusing import Refusals
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.stretches import counted
from holdfast.backends.spill.waiting import Waiting
from holdfast.model.errors import TooManyTopics
from holdfast.model.ids import TopicName
from holdfast.model.topics import Topic
from holdfast.storage.durable import replace_file, sync_directory

log = structlog.get_logger("holdfast.spill")

_READY: Final = ".ready"


class _Line(msgspec.Struct):
    queue: str


class HeldTopics:
    """Of files of one kind; `waiting.held` has their names. All raise `OSError`."""

    def __init__(
        self,
        directory: SpillDirectory,
        kind: str,
        waiting: Waiting,
        stats: SpillStats,
        refusals: Refusals,
        retry_s: float,
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._waiting = waiting
        self._stats = stats
        self._refusals = refusals
        self._retry_s = retry_s
        self._not_before_s = float("-inf")

    def found(self) -> set[TopicName]:
        """The topics for which an earlier broker left something."""
        return {_topic(line) for _, line in self._lines()}

    def hold(self, topic: TopicName) -> None:
        if not self._waiting.held:
            self._not_before_s = time.monotonic() + self._retry_s
        self._waiting.held.add(topic)

    async def brought_back(self, topic_of: Callable[[TopicName], Topic | None]) -> list[CompletedFile]:
        """Files of what is held for topics that are there, or can be made, by now. Raises `Unavailable`."""
        if not self._waiting.held or time.monotonic() < self._not_before_s:
            return []
        self._not_before_s = time.monotonic() + self._retry_s
        back: list[CompletedFile] = []
        may_ask = True
        for topic in sorted(self._waiting.held):
            if topic_of(topic) is None:
                # What one of them is refused for, all others are.
                may_ask = may_ask and await self._refusals.can_be_made(topic)
                if not may_ask:
                    continue
            file = await asyncio.to_thread(self._let_go, topic)
            if file is not None:
                counts, lines = await asyncio.to_thread(counted, file)
                for partition, count in counts.items():
                    self._waiting.add(partition, count)
                self._stats.failed_events -= lines
                back.append(CompletedFile(file, lines, file.path.stat().st_size))
                log.info("spill_topic_made", topic=topic, messages=lines)
            self._waiting.held.discard(topic)
        return back

    def _let_go(self, topic: TopicName) -> SpillFile | None:
        """Make a file of what is held for a topic; none where somebody took it away."""
        lines = [(path, line) for path, line in self._lines() if _topic(line) == topic]
        if not lines:
            return None
        file = self._directory.file_before(lines[0][0])
        failed = self._directory.path / "failed"
        ready = failed / f"{file.path.name}{_READY}"
        replace_file(ready, b"".join((line.event or "").encode() + b"\n" for _, line in lines))
        sync_directory(failed)
        _put_back(self._directory.path, ready)
        return file

    def _lines(self) -> Iterator[tuple[Path, Failed]]:
        for path in _failed_files(self._directory.path, self._kind):
            yield from ((path, line) for line in files.failed_lines(path) if _is_held(line))


def put_back_ready(directory: Path) -> None:
    """Do the rest of what a crash cut off, before the files are listed. Raises `OSError`."""
    for ready in (directory / "failed").glob(f"*{_READY}"):
        _put_back(directory, ready)


def _put_back(directory: Path, ready: Path) -> None:
    with ready.open("rb") as opened:
        topic = msgspec.json.decode(opened.readline(), type=_Line).queue
    for path in _failed_files(directory, ready.name.partition("_")[0]):
        noted = files.failed_lines(path)
        left = [line for line in noted if not _is_held(line) or _topic(line) != topic]
        if not left:
            path.unlink()
        elif len(left) < len(noted):
            replace_file(path, b"".join(msgspec.json.encode(line) + b"\n" for line in left))
    sync_directory(ready.parent)
    ready.rename(directory / ready.name.removesuffix(_READY))
    sync_directory(directory)
    sync_directory(ready.parent)


def _failed_files(directory: Path, kind: str) -> list[Path]:
    return [path for path in files.failed_files(directory) if path.name.startswith(f"{kind}_")]


def _is_held(line: Failed) -> bool:
    return line.event is not None and line.reason.endswith(f"[{TooManyTopics.code}]")


def _topic(line: Failed) -> TopicName:
    return TopicName(msgspec.json.decode(line.event or "", type=_Line).queue)
