"""Where each writer stands: kept as a cursor of the topic of decisions, durable like every cursor, and for ever.

A cursor has a position for each partition of its topic; here the positions mean other things::

    0  the last number that was committed
    1  the decision that committed it: an offset in the writer's partition of decisions
    2  when that was decided, in milliseconds
    3  what was staged below this offset and is not committed is dropped
    4  the last decision of this writer that was looked at, whatever became of it
    5, 6    the number of rows that the commit said it holds, plus one: 23 bits each, the lower ones first
    7, 8    its checksum
    9, 10   its source, plus one

All of them only go forward, so a coordinator that was stopped and wakes up takes nothing back. For that, positions 5 to
10 have the offset of the decision in front of their 23 bits. They hold for the last number only if that is the offset
of position 1. It is not where the commit said nothing of what it holds, where a build that does not know these
positions did the decision, or where position 1 was taken back after a loss: then nothing is known.

A writer that is forgotten has no such cursor any more. What it staged may be there for an hour, though, and a commit
that names it may come late, through a node that was stopped. So another cursor has position 3 alone, and stands until
the last of that is let go of (`sweeping`): the bound on writers counts it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from holdfast.broker.backend import Backend
from holdfast.model.errors import CursorMoved, Unavailable
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName, WriterName
from holdfast.model.limits import NUMBER_MAX
from holdfast.model.names import DONE_CURSOR
from holdfast.model.transactions import CONTENTS_BITS, Contents, WriterDescription
from holdfast.wire.transactions import DECISIONS, STAGED, partition_of

_PREFIX: Final = "w."
_FORGOTTEN: Final = "f."
_NUMBER, _COMMITTED, _COMMITTED_MS, _DROPPED_BELOW, _DECIDED = range(5)
_CONTENTS: Final = range(5, 11)
_WORD_BITS: Final = CONTENTS_BITS // 2
_WORD_MASK: Final = (1 << _WORD_BITS) - 1
# A position has 63 bits.
_DECISIONS_MAX: Final = 1 << (63 - _WORD_BITS)
_NONE: Final = -1
_COUNTED_S: Final = 5.0


class WriterState(NamedTuple):
    """Everything that is known of a writer; -1 where there is nothing yet."""

    number: int = _NONE
    committed: int = _NONE
    committed_ms: int = _NONE
    dropped_below: int = 0
    decided: int = _NONE
    contents: Contents | None = None

    @property
    def is_known(self) -> bool:
        """Every decision of a writer that was looked at is noted; of one that was forgotten, none."""
        return self.decided != _NONE


class Forgotten(NamedTuple):
    """A writer that was forgotten: what it staged below this offset is dropped."""

    below: Offset
    writer: WriterName


class Note(NamedTuple):
    """A position of a cursor that speaks of a log: it is at most so far behind the log's end.

    The offset in it stands above `shift` bits that mean something else.
    """

    topic: TopicName
    name: CursorName
    place: int
    position: Offset | None
    log: PartitionId
    behind: int
    shift: int = 0


class Writers:
    """The writers of all partitions, as this node knows them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: dict[CursorName, set[asyncio.Event]] = {}
        self._count = 0
        self._counted_s = float("-inf")
        backend.watch_cursors(self._on_move)

    def state(self, writer: WriterName) -> WriterState:
        positions = self._backend.cursor(DECISIONS, _cursor(writer)) or {}
        return WriterState(
            number=positions.get(_NUMBER, _NONE),
            committed=positions.get(_COMMITTED, _NONE),
            committed_ms=positions.get(_COMMITTED_MS, _NONE),
            dropped_below=max(positions.get(_DROPPED_BELOW, 0), self._forgotten_below(writer)),
            decided=positions.get(_DECIDED, _NONE),
            contents=_contents_in(positions),
        )

    def is_known(self, writer: WriterName) -> bool:
        return self._backend.cursor(DECISIONS, _cursor(writer)) is not None

    def names(self) -> list[WriterName]:
        return sorted(self._names())

    def _names(self, *prefixes: str) -> list[WriterName]:
        """Of those that are known, unless asked for others."""
        return [
            WriterName(name[len(_PREFIX) :])
            for topic, name in self._backend.cursors()
            if topic == DECISIONS and name.startswith(prefixes or _PREFIX)
        ]

    def count(self) -> int:
        """About how many something is noted of: counted once in a while, for there may be very many."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s > _COUNTED_S:
            self._counted_s, self._count = now_s, len(self._names(_PREFIX, _FORGOTTEN))
        return self._count

    def describe(self, writer: WriterName) -> WriterDescription:
        state = self.state(writer)
        has_committed = state.number != _NONE
        return WriterDescription(
            writer=writer,
            last_number=state.number if has_committed else None,
            committed_ms=TimestampMs(state.committed_ms) if has_committed else None,
            contents=state.contents if has_committed else None,
        )

    # --- what the coordinator notes: durable on return -------------------------------------------------

    async def committed(
        self,
        writer: WriterName,
        number: int,
        decision: Offset,
        decided_ms: TimestampMs,
        contents: Contents | None = None,
    ) -> None:
        await self._note(writer, _committed(number, decision, decided_ms, contents))

    async def dropped(self, writer: WriterName, below: Offset, decision: Offset) -> None:
        await self._note(writer, {_DROPPED_BELOW: below, _DECIDED: decision})

    async def looked_at(self, writer: WriterName, decision: Offset) -> None:
        """A decision that changes nothing."""
        await self._note(writer, {_DECIDED: decision})

    async def _note(self, writer: WriterName, positions: Mapping[int, int]) -> None:
        await self._move(_cursor(writer), positions)

    async def _move(self, name: CursorName, positions: Mapping[int, int]) -> None:
        offsets = {place: Offset(value) for place, value in positions.items()}
        moved = self._backend.set_cursor(DECISIONS, name, offsets, only_forward=True)
        # The backend owns its future: a coordinator that is cancelled must not cancel it.
        await asyncio.shield(moved)

    async def note_forgotten(self, forgotten: Forgotten) -> None:
        """What it staged stays dropped, whoever holds a receipt for it: to be noted before it is forgotten."""
        await self._move(_forgotten_cursor(forgotten.writer), {_DROPPED_BELOW: forgotten.below})

    async def forget(self, writer: WriterName) -> None:
        if self.is_known(writer):
            await self._backend.delete_cursor(DECISIONS, _cursor(writer))

    def forgotten(self, coordinator: int) -> list[Forgotten]:
        """All of one coordinator that are noted to be forgotten."""
        return [
            Forgotten(self._forgotten_below(writer), writer)
            for writer in self._names(_FORGOTTEN)
            if partition_of(writer) == coordinator
        ]

    async def let_go_of(self, forgotten: Forgotten) -> None:
        """Nothing is left of what it staged; unless it began anew since, and was forgotten once more."""
        name = _forgotten_cursor(forgotten.writer)
        is_noted = self._backend.cursor(DECISIONS, name) is not None
        if is_noted and self._forgotten_below(forgotten.writer) <= forgotten.below:
            await self._backend.delete_cursor(DECISIONS, name)

    def _forgotten_below(self, writer: WriterName) -> Offset:
        positions = self._backend.cursor(DECISIONS, _forgotten_cursor(writer)) or {}
        return positions.get(_DROPPED_BELOW, Offset(0))

    # --- after a loss -----------------------------------------------------------------------------------

    def notes(self, coordinator: int) -> list[Note]:
        """Everything that is noted of the decisions and pieces of one coordinator, as of now."""
        decided, staged = PartitionId(DECISIONS, coordinator), PartitionId(STAGED, coordinator)
        notes = [
            Note(log.topic, DONE_CURSOR, coordinator, done.get(coordinator), log, 0)
            for log in (decided, staged)
            if (done := self._backend.cursor(log.topic, DONE_CURSOR))
        ]
        for writer in self._names():
            if partition_of(writer) == coordinator:
                name = _cursor(writer)
                positions = self._backend.cursor(DECISIONS, name) or {}
                for place in (_COMMITTED, _DECIDED):
                    notes.append(Note(DECISIONS, name, place, positions.get(place), decided, 1))
                for place in _CONTENTS:
                    notes.append(Note(DECISIONS, name, place, positions.get(place), decided, 1, _WORD_BITS))
                notes.append(Note(DECISIONS, name, _DROPPED_BELOW, positions.get(_DROPPED_BELOW), staged, 0))
        for below, writer in self.forgotten(coordinator):
            notes.append(Note(DECISIONS, _forgotten_cursor(writer), _DROPPED_BELOW, below, staged, 0))
        return notes

    async def take_back(self, notes: list[Note]) -> int:
        """Take back what notes say of more than their logs have, which were caught up with since; returns how many.

        With a weaker sync a power loss takes the end of a log and leaves what was noted of it. What comes to stand
        there next would be taken for looked at, dropped or done.
        """
        taken = 0
        for topic, name, place, position, log, behind, shift in notes:
            end = self._backend.end_offset(log) - behind
            if position is not None and position >> shift > end:
                to = Offset(max(end, 0) << shift if shift else end)
                with contextlib.suppress(CursorMoved):  # by another coordinator, which knows better
                    await self._backend.take_cursor(topic, name, place, stands_at=position, to=to)
                    taken += 1
        return taken

    # --- waiting ----------------------------------------------------------------------------------------

    async def until_decided(self, writer: WriterName, decision: Offset, number: int = NUMBER_MAX) -> WriterState:
        """Wait until a decision was looked at, or the writer has that number; whoever waits bounds the time.

        Where the writer was forgotten right behind it, nothing is known of the writer, and the decision is done.
        """
        state = WriterState()

        async def is_decided() -> bool:
            nonlocal state
            state = self.state(writer)
            if state.number >= number or await self._is_past(partition_of(writer), decision, state.decided):
                return True
            if not await self._is_done(writer, decision):
                return False
            # What is noted of the writer was noted before, and may only not have come here yet.
            await self._backend.catch_up_cursors()
            state = self.state(writer)
            return state.decided >= decision or not self.is_known(writer)

        await self._until((_cursor(writer), DONE_CURSOR), is_decided)
        return state

    async def until_done(self, writer: WriterName, decision: Offset) -> None:
        """Wait until everything up to a decision is done, and will not be done again."""
        await self._until((DONE_CURSOR,), lambda: self._is_done(writer, decision))

    async def _is_done(self, writer: WriterName, decision: Offset) -> bool:
        number = partition_of(writer)
        done = (self._backend.cursor(DECISIONS, DONE_CURSOR) or {}).get(number, 0)
        return await self._is_past(number, decision, done - 1)

    async def _is_past(self, number: int, decision: Offset, position: int) -> bool:
        """Whether a position says that a decision was looked at. Beyond the end of the log it says nothing.

        With a weaker sync a power loss takes decisions and leaves what was noted of them; it is taken back soon.
        """
        if position < decision:
            return False
        partition = PartitionId(DECISIONS, number)
        if position >= self._backend.end_offset(partition):
            with contextlib.suppress(Unavailable):  # then it is not known yet
                await self._backend.catch_up(partition)
        return position < self._backend.end_offset(partition)

    async def _until(self, names: tuple[CursorName, ...], is_so: Callable[[], Awaitable[bool]]) -> None:
        """Look, and again whenever one of these cursors has moved."""
        moved = asyncio.Event()
        for name in names:
            self._waiting.setdefault(name, set()).add(moved)
        try:
            while not await is_so():
                await moved.wait()
                moved.clear()
        finally:
            for name in names:
                self._waiting[name].discard(moved)
                if not self._waiting[name]:
                    del self._waiting[name]

    def _on_move(self, topic: TopicName, name: CursorName) -> None:
        if topic == DECISIONS:
            for moved in self._waiting.get(name, ()):
                moved.set()


def restored(
    writer: WriterName, number: int, committed_ms: int, decision: int, contents: Contents | None = None
) -> tuple[CursorName, dict[int, int]]:
    """The cursor that says all of a writer whose decisions and pieces are gone: they ended with `decision`."""
    return _cursor(writer), _committed(number, decision, committed_ms, contents)


def _committed(number: int, decision: int, decided_ms: int, contents: Contents | None) -> dict[int, int]:
    positions = {_NUMBER: number, _COMMITTED: decision, _COMMITTED_MS: decided_ms, _DECIDED: decision}
    if contents is not None and decision < _DECISIONS_MAX:
        fields = (contents.rows + 1, contents.checksum, 0 if contents.source is None else contents.source + 1)
        words = [word for field in fields for word in (field & _WORD_MASK, field >> _WORD_BITS)]
        positions |= {place: decision << _WORD_BITS | word for place, word in zip(_CONTENTS, words, strict=True)}
    return positions


def _contents_in(positions: Mapping[int, int]) -> Contents | None:
    """What the last commit said it holds; none if it did not say, or if that is not known any more."""
    decision = positions.get(_COMMITTED, _NONE)
    noted = [positions.get(place, _NONE) for place in _CONTENTS]
    if decision == _NONE or any(each >> _WORD_BITS != decision for each in noted):
        return None
    words = [each & _WORD_MASK for each in noted]
    rows, checksum, source = (low | high << _WORD_BITS for low, high in zip(words[::2], words[1::2], strict=True))
    if not rows:
        return None  # taken back
    return Contents(rows=rows - 1, checksum=checksum, source=source - 1 if source else None)


def _cursor(writer: WriterName) -> CursorName:
    return CursorName(_PREFIX + writer)


def _forgotten_cursor(writer: WriterName) -> CursorName:
    return CursorName(_FORGOTTEN + writer)
