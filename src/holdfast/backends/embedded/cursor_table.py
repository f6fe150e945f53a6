"""Where named readers stand: what they see at once, and what is on the disk.

A position is visible as soon as it is set, so that the next read goes on from there, and durable when its
write is done. If a write fails, the visible positions go back to the durable ones: whoever tries again really
writes again, and a cursor that could not be made is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from holdfast.backends.embedded.state import CursorKey, StateStore
from holdfast.broker.results import failure
from holdfast.model.ids import Offset, TopicName


class _Cursor:
    """One cursor; `open_writes` are the writes that are not done."""

    def __init__(self, positions: Mapping[int, Offset]) -> None:
        self.visible = dict(positions)
        self.durable = dict(positions)
        self.open_writes: list[asyncio.Future[None]] = []


class CursorTable:
    """All cursors of one backend."""

    def __init__(self, state: StateStore, loaded: Mapping[CursorKey, Mapping[int, Offset]]) -> None:
        self._state = state
        self._cursors = {key: _Cursor(positions) for key, positions in loaded.items()}

    def get(self, key: CursorKey) -> Mapping[int, Offset] | None:
        cursor = self._cursors.get(key)
        return None if cursor is None else cursor.visible

    def keys(self) -> list[CursorKey]:
        return list(self._cursors)

    def set(self, key: CursorKey, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        """Move some positions. With none, the future still waits for what is being written."""
        cursor = self._cursors.setdefault(key, _Cursor({}))
        if not positions:
            return _all(cursor.open_writes)
        cursor.visible.update(positions)
        stored = self._state.put_cursor(key, positions)
        cursor.open_writes.append(stored)
        stored.add_done_callback(lambda done: self._settle(key, cursor, positions, done))
        return stored

    def _settle(
        self, key: CursorKey, cursor: _Cursor, positions: Mapping[int, Offset], stored: asyncio.Future[None]
    ) -> None:
        cursor.open_writes.remove(stored)
        if failure(stored) is None:
            cursor.durable.update(positions)
        if not cursor.open_writes:
            cursor.visible = dict(cursor.durable)
            if not cursor.durable and self._cursors.get(key) is cursor:
                del self._cursors[key]

    def forget(self, key: CursorKey) -> asyncio.Future[None]:
        self._cursors.pop(key, None)
        return self._state.remove_cursor(key)

    def forget_topic(self, name: TopicName) -> None:
        """The topic's rows are removed with the topic's own."""
        for key in [key for key in self._cursors if key[0] == name]:
            del self._cursors[key]


def _all(writes: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Done when all of them are, failed if one of them is."""
    promise: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = len(writes)

    def settle(done: asyncio.Future[None]) -> None:
        nonlocal waiting
        waiting -= 1
        error = failure(done)
        if error is not None and not promise.done():
            promise.set_exception(error)
        elif not waiting and not promise.done():
            promise.set_result(None)

    if not writes:
        promise.set_result(None)
    for write in list(writes):
        write.add_done_callback(settle)
    return promise
