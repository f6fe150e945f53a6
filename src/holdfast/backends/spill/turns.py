"""What a broker stores next, where several brokers over one store have kept messages (`merging` has their order).

While its lines come before those of all others, a broker stores them itself. Where they alternate with others' in time,
each broker offers its next lines to all in the store, and the one of the lowest rank merges what is offered and stores
it, others' lines included. A batch ends where the first of these offers ends: what comes behind it is not known yet.

A broker that does not offer anything, or does not take what is offered, is waited for for a second. For some time after
that the others go on as if it did not merge: each stores what comes before all other brokers' messages. So lines that
one broker cannot store are left to the broker that has them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from holdfast.backends.spill import files, stretches
from holdfast.backends.spill.events import Event
from holdfast.backends.spill.files import SpillFile
from holdfast.backends.spill.merging import Head, Run, before, head_of, merge
from holdfast.backends.spill.ports import Target
from holdfast.model.limits import MIB
from holdfast.model.spill import Chunk, LinesMoved, Others, OtherSpill, Rank

# What a broker offers at once, and how much of that it offers ahead.
_CHUNK_LINES_MAX: Final = 2_500
_CHUNK_BYTES_MAX: Final = 1 * MIB
_CHUNKS_MAX: Final = 2
# Whose chunks are merged at once. More brokers take turns.
_MERGED_BROKERS_MAX: Final = 16
# How often a broker looks what others have done, and from when on one that does nothing is not waited for.
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 1.0
_SILENT_S: Final = 5.0
# A run of one other broker's lines alone is left to that broker for so long.
_ALONE_S: Final = 0.1

# Sets aside what must not be offered of the lines of a file from a number on; whether there was any.
Aside = Callable[[SpillFile, int, Sequence[Event | None]], Awaitable[bool]]


class Turn(NamedTuple):
    """The next `own` lines may be stored, or are stored by others where `is_done`.

    If some of the lines were set aside, `own` is 0 and `is_done` is true: the caller offers the rest again.

    `events` has others' lines among the own ones, in order, and `others` says for their files from which line on and up
    to which; both are empty where only own lines are stored.
    """

    own: int
    is_done: bool = False
    events: Sequence[Event | None] = ()
    others: Sequence[tuple[UUID, int, int]] = ()


class _Held(NamedTuple):
    """Why nothing could be stored: unchanged, nothing can be stored now."""

    at: tuple[int, Rank]
    done: int | None
    offered: tuple[tuple[Chunk, ...], ...]


class Turns:
    """Of one broker. `aside` is asked before lines are offered."""

    def __init__(self, target: Target, aside: Aside) -> None:
        self._target = target
        self._aside = aside
        # Chunks that this broker offers.
        self._chunks: list[Chunk] = []
        # Lines of others' chunks.
        self._read: dict[tuple[UUID, int], list[Event | None]] = {}
        # Brokers that do not take part, and until when nobody waits for them; also this one itself.
        self._silent: dict[Rank, float] = {}
        self._held: _Held | None = None

    @property
    def is_held_up(self) -> bool:
        """Whether others' older messages are waited for."""
        return self._held is not None

    def reset(self) -> None:
        """Something went wrong, or the file is gone: what was known of others may not be true any more."""
        self._chunks.clear()
        self._read.clear()
        self._held = None

    def give_way(self) -> None:
        """This broker cannot store another one's line: that one has to find out itself what is wrong with it."""
        self._silent[self._target.rank] = time.monotonic() + 2 * _SILENT_S

    async def is_still_held_up(self, file: SpillFile) -> bool:
        """Known before lines are read again and again."""
        if self._held is None:
            return False
        others = await self._target.others(file.id)
        if not others.is_known:
            return True
        heads = list(map(head_of, others.spills))
        if heads and min(heads) <= self._held.at and _held_by(self._held.at, others) == self._held:
            return True
        self._held = None
        return False

    async def next(self, file: SpillFile, done: int, events: Sequence[Event | None], events_max: int) -> Turn | None:
        """What becomes of the next lines; none where others' older messages come first. Raises `LinesMoved`."""
        began_s = time.monotonic()
        at = next((event.at for event in events if event is not None), 0), self._target.rank
        while True:
            others = await self._target.others(file.id)
            if others.done is not None and others.done != done:
                if others.done < done:
                    raise LinesMoved(f"{others.done} lines of the file are stored, not {done}")
                return Turn(min(others.done - done, len(events)), is_done=True)
            waited_s = time.monotonic() - began_s
            if others.is_known:
                turn = await self._decided(file, done, events, events_max, others, waited_s)
                if turn is not None:
                    self._held = None
                    return turn
            if not others.is_known or waited_s > _PATIENCE_S:
                self._held = _held_by(at, others)
                return None
            await asyncio.sleep(_LOOK_S)

    async def _decided(
        self,
        file: SpillFile,
        done: int,
        events: Sequence[Event | None],
        events_max: int,
        others: Others,
        waited_s: float,
    ) -> Turn | None:
        spills = others.spills
        if not spills:
            return Turn(len(events))
        rank = self._target.rank
        allowed = before(events, rank, min(map(head_of, spills)))
        if allowed == len(events):
            return Turn(allowed)
        now_s = time.monotonic()
        self._silent = {each: until_s for each, until_s in self._silent.items() if until_s > now_s}
        taking_part = [spill for spill in spills if spill.rank not in self._silent]
        first = min((each.rank for each in taking_part), default=rank)
        if not taking_part or (rank < first and rank not in self._silent):
            turn = await self._merged(events, events_max, spills, waited_s)
            if turn is not None:
                return turn
            in_the_way = [spill.rank for spill in taking_part if not spill.offered]
        else:
            if not await self._has_offered(file, done, events):
                return Turn(0, is_done=True)
            if allowed >= self._chunks[-1].end - done:
                return Turn(allowed)  # others have nothing to merge it with
            in_the_way = [first]
        if allowed and (not in_the_way or waited_s > _PATIENCE_S):
            self._silent.update(dict.fromkeys(in_the_way, now_s + _SILENT_S))
            self._chunks.clear()
            return Turn(allowed)
        return None

    # --- merging --------------------------------------------------------------------------------------

    async def _merged(
        self, events: Sequence[Event | None], events_max: int, spills: Sequence[OtherSpill], waited_s: float
    ) -> Turn | None:
        """Lines of several brokers; none where too little is offered."""
        runs, sources = [Run(self._target.rank, events)], []
        heads: list[Head] = []
        self._read = {
            (chunk.file, chunk.first): self._read[chunk.file, chunk.first]
            for spill in spills
            for chunk in spill.offered
            if (chunk.file, chunk.first) in self._read
        }
        for place, spill in enumerate(sorted(spills, key=head_of)):
            lines = await self._lines_of(spill) if place < _MERGED_BROKERS_MAX else []
            if lines:
                runs.append(Run(spill.rank, lines))
                sources.append(spill)
            else:
                heads.append(head_of(spill))
        found = merge(runs, heads, events_max)
        own, *taken = found.taken
        if not any(taken):
            return Turn(own) if own else None
        if not own and len(taken) - taken.count(0) == 1 and waited_s < _ALONE_S:
            return None
        moved = [
            (spill.chunks[0].file, spill.done, spill.done + count)
            for spill, count in zip(sources, taken, strict=True)
            if count
        ]
        return Turn(own, events=found.events, others=moved)

    async def _lines_of(self, spill: OtherSpill) -> list[Event | None]:
        """Those that are offered and not stored."""
        found: list[Event | None] = []
        at = spill.done
        for chunk in spill.offered:
            key = chunk.file, chunk.first
            if len(self._read.get(key, ())) != chunk.end - chunk.first:
                data = await self._target.offered(spill.rank, chunk)
                if data is None:
                    break
                self._read[key] = await stretches.taken_apart(data)
            found += self._read[key][at - chunk.first :]
            at = chunk.end
        return found

    # --- offering -------------------------------------------------------------------------------------

    async def _has_offered(self, file: SpillFile, done: int, events: Sequence[Event | None]) -> bool:
        """Offer as much of the next lines as others may need soon; false where some of them were set aside instead."""
        self._chunks = [chunk for chunk in self._chunks if chunk.file == file.id and chunk.end > done]
        end = self._chunks[-1].end if self._chunks else done
        while len(self._chunks) < _CHUNKS_MAX and end < done + len(events):
            some = events[end - done : end - done + _CHUNK_LINES_MAX]
            lines = await asyncio.to_thread(files.lines, file.path, end, len(some))
            size = count = 0
            for line in lines:
                size += len(line) + 1
                if count and size > _CHUNK_BYTES_MAX:
                    break
                count += 1
            if await self._aside(file, end, some[:count]):
                return False
            newest_ms = max((event.at for event in some[:count] if event is not None), default=0)
            chunk = Chunk(file.id, end, end + count, newest_ms)
            oldest_ms = next((event.at for event in events if event is not None), newest_ms)
            # What this broker does not store, nobody stores.
            shown = (b"" if event is None else line for line, event in zip(lines[:count], some, strict=False))
            await self._target.offer(chunk, b"".join(line + b"\n" for line in shown), oldest_ms, done)
            self._chunks.append(chunk)
            end = chunk.end
        return True


def _held_by(at: tuple[int, Rank], others: Others) -> _Held:
    return _Held(at, others.done, tuple(spill.offered for spill in others.spills))
