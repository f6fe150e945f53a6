"""Lines that are not stored are kept in `failed`, each with the reason, before they count as done.

A line that the store refused is noted first, and the next step passes it. From the note on `Retrying` stores it, so it
is left out whenever its file is read.

Crash case: the line is noted, and no step has passed it. The next start finds the note, and leaves the line out even if
the store takes it by then. Damaged lines are read again, since nothing else stores them: the damage may have been the
reading's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.backends.spill import files
from holdfast.backends.spill.events import BadLine, Event
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.backends.spill.refusing import code_in, in_words
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.stretches import Stretch
from holdfast.model.errors import CallerError


class SetAside:
    """Of one file after the other. What is noted twice is recognised by its place. All that wait raise `OSError`."""

    def __init__(self, directory: SpillDirectory, stats: SpillStats) -> None:
        self._directory = directory
        self._stats = stats
        # Places of the current file's lines that were refused.
        self._refused: set[int] = set()

    async def begin(self, file: SpillFile) -> None:
        """Know what was noted of a file before."""
        noted = await asyncio.to_thread(self._directory.noted_failed, file)
        self._refused = {line.line - 1 for line in noted if code_in(line.reason) is not None}

    def left_of(self, stretch: Stretch, first: int) -> Stretch:
        """What is to be stored of a stretch that begins with that line of the file."""
        places = range(first, first + len(stretch.events))
        aside = self._refused.intersection(places) if self._refused else ()
        return stretch.without({place - first for place in aside}) if aside else stretch

    async def bad(self, file: SpillFile, bad: list[BadLine]) -> None:
        if bad:
            self._stats.failed_events += await asyncio.to_thread(self._directory.note_failed, file, bad)

    async def one(self, file: SpillFile, place: int, error: CallerError) -> None:
        [line] = await asyncio.to_thread(files.lines, file.path, place, 1)
        await self._note_refused(file, [BadLine(place, line, in_words(error))])

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
        await self._note_refused(
            file,
            [
                BadLine(first + place, lines[place], in_words(refused[event.queue]))
                for place, event in enumerate(stretch)
                if event is not None and id(event) in aside
            ],
        )

    async def _note_refused(self, file: SpillFile, refused: list[BadLine]) -> None:
        await self.bad(file, refused)
        self._refused.update(each.place for each in refused)

    async def rest(self, file: SpillFile, position: int, lines: int) -> None:
        """What is behind the last line break: a message whose own is damaged, or nothing where that was cut off.

        It is no line that is counted as done.
        """
        rest = await asyncio.to_thread(files.rest, file.path, position)
        await self.bad(file, [BadLine(lines, rest, "the file ends within it")])
