"""What each reader of a cursor has drawn last: the same on every node, since every node computes it from the log.

A row has a place among `READERS_PER_CURSOR_MAX`, and a number that rises with every draw of the cursor. Whoever is new
gets the place of the one that has not drawn for longest. Numbers and places stand in the file, so that a node that was
restarted forgets the same reader as those that were not.

The last command that took the position (`TakeCursor`) has a row too, under a name that no reader has. So every node
recognises a repetition of it, also one that was restarted or got its state from another node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.model.draws import NOTHING_DRAWN, OUTDATED_DRAW, Draw, Drawn, is_outdated
from holdfast.model.ids import Offset
from holdfast.model.limits import READERS_PER_CURSOR_MAX

# The names of readers are not empty.
_TAKER: Final = ""


class DrawRow(msgspec.Struct, frozen=True):
    """The last draw of one reader."""

    place: int
    number: int
    reader: str
    request: str
    first: Offset
    count: int


class DrawTable:
    """The last draws from one position of a cursor."""

    __slots__ = ("_last", "_number")

    def __init__(self, rows: Iterable[DrawRow] = ()) -> None:
        # Whoever has not drawn for longest comes first.
        self._last = {row.reader: row for row in sorted(rows, key=lambda row: row.number)}
        self._number = max((row.number for row in self._last.values()), default=0)

    def drawn_before(self, wanted: Draw) -> Drawn | None:
        """What this very request has drawn, or that it is outdated; `None` if it is a new one."""
        last = self._last.get(wanted.reader)
        if last is None:
            return None
        if last.request == wanted.request:
            return Drawn(last.first, last.count, is_repeat=True)
        return OUTDATED_DRAW if is_outdated(wanted.request, last.request) else None

    def draw(self, position: Offset, end: Offset, wanted: Draw, *, notes_nothing: bool) -> tuple[Drawn, DrawRow | None]:
        """Draw from `position`; also the row that changed. With `notes_nothing`, nothing is a result to remember."""
        before = self.drawn_before(wanted)
        if before is not None:
            return before, None
        count = min(wanted.count, end - position)
        drawn = Drawn(position, count) if count > 0 else NOTHING_DRAWN
        if not drawn.count and not notes_nothing:
            return drawn, None
        return drawn, self._note(wanted.reader, wanted.request, drawn)

    def was_taken_by(self, taker: str) -> bool:
        last = self._last.get(_TAKER)
        return last is not None and last.request == taker

    def note_taker(self, taker: str) -> DrawRow:
        return self._note(_TAKER, taker, NOTHING_DRAWN)

    def _note(self, reader: str, request: str, drawn: Drawn) -> DrawRow:
        self._number += 1
        row = DrawRow(self._place_for(reader), self._number, reader, request, drawn.first, drawn.count)
        self._last[reader] = row
        return row

    def _place_for(self, reader: str) -> int:
        """The reader's own place, a free one, or the one of whoever is forgotten for it."""
        own = self._last.pop(reader, None)
        if own is not None:
            return own.place
        if len(self._last) < READERS_PER_CURSOR_MAX:
            return len(self._last)
        return self._last.pop(next(iter(self._last))).place
