"""Where named readers stand: what they see at once, and what is decided.

A position is visible on the node where it is set as soon as it is set, so that the next read goes on from
there, and decided when the control log has it. If that fails, the visible positions go back to the decided
ones: whoever tries again really tries again, and a cursor that could not be made is not there.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence

from holdfast.backends.cluster.commands import Command, DrawCursor, DropCursor, MoveCursor, TakeCursor
from holdfast.backends.cluster.draw_table import DrawRow, DrawTable
from holdfast.backends.cluster.state import CursorKey
from holdfast.broker.results import failure
from holdfast.model.draws import NOTHING_DRAWN, Draw, Drawn
from holdfast.model.errors import CursorMoved, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.names import is_internal

Propose = Callable[[Command], asyncio.Future[None]]
ProposeDraw = Callable[[DrawCursor], asyncio.Future[list[Drawn]]]
DrawRows = Mapping[CursorKey, Mapping[int, Sequence[DrawRow]]]


class _Cursor:
    """One cursor: what is decided, and the moves of this node that are not, in their order."""

    def __init__(self, positions: Mapping[int, Offset]) -> None:
        self.decided = dict(positions)
        self.visible = dict(positions)
        self.proposals: dict[asyncio.Future[None], Mapping[int, Offset]] = {}
        # What readers drew last, and who took the position last, should the same command come twice.
        self.draws: dict[int, DrawTable] = {}

    def refresh(self) -> None:
        """What another node moved shows at once, also while this one has moves under way."""
        self.visible = dict(self.decided)
        for positions in self.proposals.values():
            self.visible.update(positions)


class CursorTable:
    """All cursors of one cluster, as this node sees them."""

    def __init__(
        self,
        propose: Propose,
        propose_draw: ProposeDraw,
        token_of: Callable[[TopicName], str],
        loaded: Mapping[CursorKey, Mapping[int, Offset]],
        drawn: DrawRows,
    ) -> None:
        self._propose = propose
        self._propose_draw = propose_draw
        self._token_of = token_of
        self._cursors = _cursors(loaded, drawn)
        self.watchers: list[Callable[[TopicName, CursorName], None]] = []

    def _tell(self, key: CursorKey) -> None:
        if is_internal(key[0]):
            for on_move in self.watchers:
                on_move(*key)

    def get(self, key: CursorKey) -> Mapping[int, Offset] | None:
        cursor = self._cursors.get(key)
        return None if cursor is None else cursor.visible

    def decided(self, key: CursorKey) -> Mapping[int, Offset] | None:
        cursor = self._cursors.get(key)
        return None if cursor is None else cursor.decided

    def keys(self) -> list[CursorKey]:
        return list(self._cursors)

    def set(self, key: CursorKey, positions: Mapping[int, Offset], *, only_forward: bool) -> asyncio.Future[None]:
        """Move some positions. With none, the future still waits for what is being decided."""
        cursor = self._cursors.setdefault(key, _Cursor({}))
        if not positions:
            return _all(list(cursor.proposals))
        proposed = self._propose(MoveCursor(key[0], self._token_of(key[0]), key[1], dict(positions), only_forward))
        cursor.proposals[proposed] = dict(positions)
        cursor.refresh()
        proposed.add_done_callback(lambda done: self._settle(key, cursor, done))
        return proposed

    def _settle(self, key: CursorKey, cursor: _Cursor, proposed: asyncio.Future[None]) -> None:
        # Whoever waits asks for the reason; where nobody does, that is fine.
        failure(proposed)
        del cursor.proposals[proposed]
        cursor.refresh()
        if not cursor.visible and self._cursors.get(key) is cursor:
            del self._cursors[key]

    def apply(self, move: MoveCursor) -> dict[int, Offset]:
        """It is decided; returns the positions that changed."""
        cursor = self._cursors.setdefault((move.topic, move.name), _Cursor({}))
        changed = {
            number: offset
            for number, offset in move.positions.items()
            if not move.only_forward or offset > cursor.decided.get(number, -1)
        }
        cursor.decided.update(changed)
        cursor.refresh()
        self._tell((move.topic, move.name))
        return changed

    def take(self, key: CursorKey, number: int, *, stands_at: Offset | None, to: Offset) -> asyncio.Future[None]:
        """Move a position from where it stands; visible only when it is decided, for others may want it too."""
        token = self._token_of(key[0])
        if not token:
            raise TopicNotFound(f"there is no topic {key[0]}")
        return self._propose(TakeCursor(key[0], token, key[1], number, stands_at, to, uuid.uuid4().hex))

    def apply_take(self, take: TakeCursor) -> tuple[dict[int, Offset], list[DrawRow]]:
        """Move the position; returns it and the row that changed, or nothing for a repetition. Raises `CursorMoved`."""
        key = (take.topic, take.name)
        cursor = self._cursors.get(key) or _Cursor({})
        table = cursor.draws.get(take.number) or DrawTable()
        if table.was_taken_by(take.taker):
            return {}, []
        if cursor.decided.get(take.number) != take.stands_at:
            raise CursorMoved(f"cursor {take.name} on topic {take.topic} was moved by somebody else")
        self._cursors[key] = cursor
        cursor.decided[take.number] = take.to
        cursor.draws[take.number] = table
        cursor.refresh()
        return {take.number: take.to}, [table.note_taker(take.taker)]

    async def draw(
        self,
        key: CursorKey,
        number: int,
        *,
        start: Offset,
        end: Offset,
        wanted: Sequence[Draw],
        notes_nothing: bool,
    ) -> list[Drawn]:
        """Give readers what comes next. What can be told by what is decided here has not to be decided again."""
        token = self._token_of(key[0])
        if not token:
            raise TopicNotFound(f"there is no topic {key[0]}")
        cursor = self._cursors.get(key)
        position = start if cursor is None else max(start, cursor.decided.get(number, start))
        if position >= end:
            table = None if cursor is None else cursor.draws.get(number)
            before = [None if table is None else table.drawn_before(each) for each in wanted]
            if not notes_nothing or None not in before:
                return [each or NOTHING_DRAWN for each in before]
        command = DrawCursor(key[0], token, key[1], number, start, end, list(wanted), notes_nothing)
        return await self._propose_draw(command)

    def apply_draw(self, draw: DrawCursor) -> tuple[list[Drawn], dict[int, Offset], list[DrawRow]]:
        """It is this one's turn; also the position, if it changed, and the rows that changed."""
        key = (draw.topic, draw.name)
        cursor = self._cursors.get(key) or _Cursor({})
        table = cursor.draws.get(draw.number)
        if table is None:
            table = cursor.draws[draw.number] = DrawTable()
        begin = position = max(draw.start, cursor.decided.get(draw.number, draw.start))
        results: list[Drawn] = []
        rows: list[DrawRow] = []
        for wanted in draw.wanted:
            drawn, row = table.draw(position, draw.end, wanted, notes_nothing=draw.notes_nothing)
            results.append(drawn)
            if row is not None:
                rows.append(row)
                position = Offset(position + row.count)
        if position == begin and (not rows or draw.number in cursor.decided):
            return results, {}, rows
        self._cursors[key] = cursor
        cursor.decided[draw.number] = position
        cursor.refresh()
        return results, {draw.number: position}, rows

    def replace(self, loaded: Mapping[CursorKey, Mapping[int, Offset]], drawn: DrawRows) -> None:
        """Everything is as another node has it."""
        self._cursors = _cursors(loaded, drawn)
        for key in self._cursors:
            self._tell(key)

    def drop(self, key: CursorKey) -> asyncio.Future[None]:
        return self._propose(DropCursor(key[0], self._token_of(key[0]), key[1]))

    def apply_drop(self, key: CursorKey) -> None:
        self._cursors.pop(key, None)

    def forget_topic(self, name: TopicName) -> None:
        """The topic's cursors go with it."""
        for key in [key for key in self._cursors if key[0] == name]:
            del self._cursors[key]


def _cursors(loaded: Mapping[CursorKey, Mapping[int, Offset]], drawn: DrawRows) -> dict[CursorKey, _Cursor]:
    cursors = {key: _Cursor(positions) for key, positions in loaded.items()}
    for key, by_number in drawn.items():
        if key in cursors:
            cursors[key].draws = {number: DrawTable(rows) for number, rows in by_number.items()}
    return cursors


def _all(proposals: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Done when all of them are, failed if one of them is."""
    promise: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = len(proposals)

    def settle(done: asyncio.Future[None]) -> None:
        nonlocal waiting
        waiting -= 1
        error = failure(done)
        if error is not None and not promise.done():
            promise.set_exception(error)
        elif not waiting and not promise.done():
            promise.set_result(None)

    if not proposals:
        promise.set_result(None)
    for proposal in list(proposals):
        proposal.add_done_callback(settle)
    return promise
