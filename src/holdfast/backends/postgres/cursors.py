"""Where named readers stand: what they see at once, and what is stored.

A position is visible on the broker where it is set as soon as it is set, and stored in one statement with all that
wait. If that fails, the visible positions go back to the stored ones. Every stored move has a number of its own, so
that what a broker hears from others, later or twice, cannot take it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import asyncpg

from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics
from holdfast.broker.results import refuse
from holdfast.model.draws import Draw, Drawn
from holdfast.model.errors import CursorMoved, HoldfastError, LeaderChanged, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import READERS_PER_CURSOR_MAX
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic

# Moves in one statement: each is a row and a notice.
_MOVES_MAX: Final = 1000

_Key = tuple[int, CursorName]


class _Move(NamedTuple):
    key: _Key
    positions: Mapping[int, Offset]
    only_forward: bool
    done: asyncio.Future[None]


class _Cursor:
    """One cursor: what is stored, with the numbers of the moves, and the moves of this broker that are not yet."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[Offset, int]] = {}
        self.moves: list[_Move] = []
        self.visible: dict[int, Offset] = {}

    def refresh(self) -> None:
        visible = {number: position for number, (position, _) in self.stored.items()}
        for move in self.moves:
            for number, offset in move.positions.items():
                kept = visible.get(number, Offset(-1)) if move.only_forward else Offset(-1)
                visible[number] = max(kept, offset)
        self.visible = visible


class Cursors:
    """All cursors of a store, as this broker sees them."""

    def __init__(self, database: Database, topics: KnownTopics) -> None:
        self._database = database
        self._topics = topics
        self._cursors: dict[_Key, _Cursor] = {}
        # Deleted through this broker, until its notice has come: what is heard before that is older.
        self._dropped: dict[_Key, int] = {}
        self.watchers: list[Callable[[TopicName, CursorName], None]] = []
        self._waiting: list[_Move] = []
        self._storing: asyncio.Task[None] | None = None
        topics.deletion_watchers.append(self._forget_topic)

    def get(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        known = self._topics.by_name.get(topic)
        cursor = None if known is None else self._cursors.get((known.id, name))
        return None if cursor is None else cursor.visible

    def keys(self) -> list[tuple[TopicName, CursorName]]:
        by_id = self._topics.by_id
        return [(by_id[topic_id].name, name) for topic_id, name in self._cursors if topic_id in by_id]

    # --- moving ---------------------------------------------------------------------------------------

    def set(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool
    ) -> asyncio.Future[None]:
        """Move some positions. With none, the future still waits for what is being stored."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known = self._topics.by_name.get(topic)
        if known is None or not self._database.is_up:
            missing = TopicNotFound(f"there is no topic {topic}")
            refuse(done, missing if self._database.is_up else self._database.unavailable())
            return done
        key = (known.id, name)
        cursor = self._cursors.get(key)
        if not positions:
            if cursor is None or not cursor.moves:
                done.set_result(None)
                return done
            # Behind all that waits now: it moves nothing.
            positions, only_forward = {}, True
        if cursor is None:
            cursor = self._cursors[key] = _Cursor()
        move = _Move(key, dict(positions), only_forward, done)
        cursor.moves.append(move)
        cursor.refresh()
        self._waiting.append(move)
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store_on())
        return done

    async def _store_on(self) -> None:
        try:
            while self._waiting:
                moves, self._waiting = self._waiting[:_MOVES_MAX], self._waiting[_MOVES_MAX:]
                error: HoldfastError | None = LeaderChanged("the broker stopped before this was known to be stored")
                rows: list[Any] = []
                try:
                    rows = await self._stored(moves)
                    error = None
                except HoldfastError as caught:
                    error = caught
                finally:
                    self._settle(moves, rows, error)
        finally:
            self._storing = None

    async def _stored(self, moves: list[_Move]) -> list[Any]:
        merged = sorted(_merged(moves).items())
        values = (
            [key[0] for (key, _), _ in merged],
            [key[1] for (key, _), _ in merged],
            [number for (_, number), _ in merged],
            [offset for _, (offset, _) in merged],
            [only_forward for _, (_, only_forward) in merged],
        )
        try:
            return await self._database.change(sql("move_cursors"), *values)
        except HoldfastError as error:
            if not isinstance(error.__cause__, asyncpg.ForeignKeyViolationError):
                raise
            # A topic was deleted in that very moment; now it is not found, and the others go on.
            return await self._database.change(sql("move_cursors"), *values)

    def _settle(self, moves: list[_Move], rows: list[Any], error: HoldfastError | None) -> None:
        stored: set[_Key] = set()
        for topic_id, name, number, position, move_number, *_ in rows:
            stored.add((topic_id, CursorName(name)))
            self.moved(topic_id, CursorName(name), number, Offset(position), move_number)
        for move in moves:
            cursor = self._cursors.get(move.key)
            if cursor is not None and move in cursor.moves:
                cursor.moves.remove(move)
                cursor.refresh()
                if not cursor.visible and not cursor.moves:
                    del self._cursors[move.key]
            if error is not None:
                refuse(move.done, error)
            elif move.positions and move.key not in stored:
                refuse(move.done, TopicNotFound("its topic was deleted"))
            elif not move.done.done():
                move.done.set_result(None)

    async def take(
        self, topic: TopicName, name: CursorName, number: int, *, stands_at: Offset | None, to: Offset
    ) -> None:
        """Move a position from where it stands; the database decides who was first. Raises `CursorMoved`."""
        known = self._topics.by_name.get(topic)
        if known is None:
            raise TopicNotFound(f"there is no topic {topic}")
        taken = await self._database.change(sql("take_cursor"), known.id, name, number, stands_at, to)
        if not taken:
            raise CursorMoved(f"cursor {name} on topic {topic} was moved by somebody else")
        self.moved(known.id, name, number, to, taken[0][0])

    async def draw(
        self,
        topic: TopicName,
        name: CursorName,
        number: int,
        *,
        start: Offset,
        end: Offset,
        wanted: Sequence[Draw],
        notes_nothing: bool,
    ) -> list[Drawn]:
        """Give readers what comes next; the database decides, in the order in which it is asked."""
        known = self._topics.by_name.get(topic)
        if known is None:
            raise TopicNotFound(f"there is no topic {topic}")
        columns = ([each.reader for each in wanted], [each.request for each in wanted], [each.count for each in wanted])
        ((firsts, counts, repeats, position, move),) = await self._database.change(
            sql("draw_cursor"), known.id, name, number, start, end, *columns, READERS_PER_CURSOR_MAX, notes_nothing
        )
        if len(firsts) != len(wanted):
            raise TopicNotFound(f"topic {topic} was deleted")
        if position is not None:
            self.moved(known.id, name, number, Offset(position), move)
        return list(map(Drawn, map(Offset, firsts), counts, repeats))

    async def delete(self, topic: TopicName, name: CursorName) -> None:
        known = self._topics.by_name.get(topic)
        if known is None:
            raise TopicNotFound(f"there is no topic {topic}")
        ((move, _),) = await self._database.change(sql("delete_cursor"), known.id, name)
        key = (known.id, name)
        self._dropped[key] = move
        self._drop(key, move)

    # --- what was stored anywhere ---------------------------------------------------------------------

    def moved(self, topic_id: int, name: CursorName, number: int, position: Offset, move: int) -> None:
        """A position that is stored; what is older than what is known changes nothing."""
        key = (topic_id, name)
        if topic_id not in self._topics.by_id or move <= self._dropped.get(key, 0):
            return
        cursor = self._cursors.get(key)
        if cursor is None:
            cursor = self._cursors[key] = _Cursor()
        if move > cursor.stored.get(number, (0, 0))[1]:
            cursor.stored[number] = (position, move)
            cursor.refresh()
            topic = self._topics.by_id[topic_id].name
            if is_internal(topic):
                for on_move in self.watchers:
                    on_move(topic, name)

    def dropped(self, topic_id: int, name: CursorName, move: int) -> None:
        """The notice of a deletion: everything that is older has been heard."""
        key = (topic_id, name)
        if self._dropped.get(key, 0) <= move:
            self._dropped.pop(key, None)
        self._drop(key, move)

    def _drop(self, key: _Key, move: int) -> None:
        cursor = self._cursors.get(key)
        if cursor is None:
            return
        cursor.stored = {number: stored for number, stored in cursor.stored.items() if stored[1] > move}
        cursor.refresh()
        if not cursor.visible and not cursor.moves:
            del self._cursors[key]

    def moves(self) -> dict[tuple[_Key, int], int]:
        """The number of the last move of each position."""
        return {
            (key, number): move for key, cursor in self._cursors.items() for number, (_, move) in cursor.stored.items()
        }

    def replace(self, rows: Iterable[Any], before: Mapping[tuple[_Key, int], int]) -> None:
        """All cursors as the database has them; `before`: the moves that were known when it was asked."""
        self._dropped.clear()
        for key, cursor in self._cursors.items():
            # What this broker stored since then may not be in the rows.
            cursor.stored = {
                number: each for number, each in cursor.stored.items() if each[1] != before.get((key, number))
            }
        for topic_id, name, number, position, move in rows:
            self.moved(topic_id, CursorName(name), number, Offset(position), move)
        for key, cursor in list(self._cursors.items()):
            cursor.refresh()
            if not cursor.visible and not cursor.moves:
                del self._cursors[key]

    def _forget_topic(self, topic: Topic) -> None:
        for remembered in (self._cursors, self._dropped):
            for key in [key for key in remembered if key[0] == topic.id]:
                del remembered[key]

    async def stop(self) -> None:
        if self._storing is not None:
            await asyncio.gather(self._storing, return_exceptions=True)


def _merged(moves: Iterable[_Move]) -> dict[tuple[_Key, int], tuple[Offset, bool]]:
    """What is left of moves that follow each other: one statement can move a position once."""
    merged: dict[tuple[_Key, int], tuple[Offset, bool]] = {}
    for move in moves:
        for number, offset in move.positions.items():
            place = (move.key, number)
            before = merged.get(place)
            if before is None or not move.only_forward:
                merged[place] = (offset, move.only_forward)
            else:
                merged[place] = (max(before[0], offset), before[1])
    return merged
