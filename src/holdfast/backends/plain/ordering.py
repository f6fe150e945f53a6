"""What a foreign primary handed over, in the order of its numbers: before a backup delivers it.

Replicas are kept in the order in which they came. A backup that takes over delivers them by their numbers, as the
primary would have. Where the two orders differ, it appends copies of the entries to the journal, in order, and delivers
those. They are marked as copies, and nothing else is taken meanwhile. Crash case: there are copies, and this broker has
not taken over yet. Then the journal is cut where they begin (`Intake.begin`).

A primary that begins to number anew uses a number again, for another message. What it hands over from then on is
another *run*, and comes behind the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import structlog

from holdfast.backends.plain.journal import ForeignNumber, Journal
from holdfast.consensus.plain_marks import Marks
from holdfast.model.errors import WorldError

log = structlog.get_logger("holdfast.pair")

_READ_BYTES: Final = 256 * 1024
# So many are sorted at a time: the journal is read once for each such part, and held in memory never.
_SORTED_MAX: Final = 50_000


class Numbering:
    """Which run of its numbers a foreign primary is in."""

    def __init__(self) -> None:
        self._run = 0
        self._used: Marks | None = None

    def held(self, number: ForeignNumber) -> None:
        """An entry of an earlier life of this broker. What was before the first one is not known any more."""
        if self._used is None or number.run > self._run:
            self._run = number.run
            self._used = Marks(number.number)
        self._used.add(number.number)

    def next(self, number: int) -> ForeignNumber:
        """Of a message that was not there before."""
        if self._used is None or self._used.has(number):
            self._run += self._used is not None
            self._used = Marks(0)
        self._used.add(number)
        return ForeignNumber(self._run, number)


class _Place(NamedTuple):
    """Compared in the order of delivery. Entries without a number stay behind the one before them."""

    run: int
    number: int
    position: int


async def put_in_order(
    journal: Journal, first: int, is_delivered: Callable[[int], bool], *, sorted_max: int = _SORTED_MAX
) -> int | None:
    """Append what is not delivered, in order; the position of the first of these, or none if it is in order already."""
    behind = journal.end
    before: _Place | None = None
    async for place in _places(journal, first, behind, is_delivered):
        if before is not None and place < before:
            break
        before = place
    else:
        return None
    try:
        return await _append_copies(journal, first, behind, is_delivered, sorted_max)
    except WorldError as error:
        journal.cut(behind)
        log.error("not_in_order", problem=error.message, hint="replicas are delivered in the order in which they came")
        return None


async def _append_copies(
    journal: Journal, first: int, behind: int, is_delivered: Callable[[int], bool], sorted_max: int
) -> int:
    done: _Place | None = None
    while True:
        part: list[_Place] = []
        async for place in _places(journal, first, behind, is_delivered):
            if done is None or place > done:
                part.append(place)
                if len(part) >= 2 * sorted_max:
                    part = sorted(part)[:sorted_max]
        part = sorted(part)[:sorted_max]
        if not part:
            return behind
        for place in part:
            (entry,) = journal.read(place.position, 1, place.position + 1)
            copy = ForeignNumber(place.run, place.number, is_copy=True)
            journal.append([(entry.topic, entry.message_id, entry.value)], 0, entry.timestamp_ms, copy)
            if place.position % 256 == 0:
                await asyncio.sleep(0)
        done = part[-1]


async def _places(
    journal: Journal, first: int, behind: int, is_delivered: Callable[[int], bool]
) -> AsyncIterator[_Place]:
    position, run, number = first, 0, 0
    while entries := journal.read(position, _READ_BYTES, behind):
        for entry in entries:
            if entry.number is not None:
                run, number = entry.number.run, entry.number.number
            if not is_delivered(entry.position):
                yield _Place(run, number, entry.position)
        position = entries[-1].position + 1
        await asyncio.sleep(0)
