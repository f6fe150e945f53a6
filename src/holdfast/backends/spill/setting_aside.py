"""Lines that are not stored are kept in `failed`, each with the reason, before they count as done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.backends.spill import files
from holdfast.backends.spill.events import BadLine, Event
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.backends.spill.refusing import in_words
from holdfast.backends.spill.stats import SpillStats
from holdfast.model.errors import CallerError


class SetAside:
    """What is noted twice, after a crash, is recognised by its place. All raise `OSError`."""

    def __init__(self, directory: SpillDirectory, stats: SpillStats) -> None:
        self._directory = directory
        self._stats = stats

    async def bad(self, file: SpillFile, bad: list[BadLine]) -> None:
        if bad:
            self._stats.failed_events += await asyncio.to_thread(self._directory.note_failed, file, bad)

    async def one(self, file: SpillFile, place: int, error: CallerError) -> None:
        [line] = await asyncio.to_thread(files.lines, file.path, place, 1)
        await self.bad(file, [BadLine(place, line, in_words(error))])

    async def of_topics(
        self,
        file: SpillFile,
        first: int,
        stretch: Sequence[Event | None],
        fresh: Sequence[Event],
        refused: Mapping[str, CallerError],
    ) -> None:
        """Those of a stretch, which begins with that line, that are not stored yet and whose topics are refused."""
        aside = {id(event) for event in fresh if event.queue in refused}
        lines = await asyncio.to_thread(files.lines, file.path, first, len(stretch))
        await self.bad(
            file,
            [
                BadLine(first + place, lines[place], in_words(refused[event.queue]))
                for place, event in enumerate(stretch)
                if event is not None and id(event) in aside
            ],
        )

    async def rest(self, file: SpillFile, position: int, lines: int) -> None:
        """What is behind the last line break: a message whose own is damaged, or nothing where that was cut off.

        It is no line that is counted as done.
        """
        rest = await asyncio.to_thread(files.rest, file.path, position)
        await self.bad(file, [BadLine(lines, rest, "the file ends within it")])
