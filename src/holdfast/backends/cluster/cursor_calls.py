"""The part of the seam that is about cursors: everything goes to the table, which the control log keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from holdfast.backends.cluster.control_state import ControlState
from holdfast.model.draws import Draw, Drawn
from holdfast.model.ids import CursorName, Offset, TopicName


class CursorCalls:
    """What `broker.backend.Backend` promises of cursors."""

    state: ControlState

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        return self.state.cursors.get((topic, name))

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]:
        return self.state.cursors.keys()

    def watch_cursors(self, on_move: Callable[[TopicName, CursorName], None]) -> None:
        self.state.cursors.watchers.append(on_move)

    def set_cursor(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool = False
    ) -> asyncio.Future[None]:
        return self.state.cursors.set((topic, name), positions, only_forward=only_forward)

    async def take_cursor(
        self, topic: TopicName, name: CursorName, number: int, *, stands_at: Offset | None, to: Offset
    ) -> None:
        await self.state.cursors.take((topic, name), number, stands_at=stands_at, to=to)

    async def draw_cursor(
        self,
        topic: TopicName,
        name: CursorName,
        number: int,
        *,
        start: Offset,
        end: Offset,
        wanted: Sequence[Draw],
        notes_nothing: bool = False,
    ) -> list[Drawn]:
        return await self.state.cursors.draw(
            (topic, name), number, start=start, end=end, wanted=wanted, notes_nothing=notes_nothing
        )

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None:
        await self.state.cursors.drop((topic, name))
