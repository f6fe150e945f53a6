"""The database does what it is asked and the answer is lost: nobody is told that nothing was done."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from holdfast.model.draws import Draw
from holdfast.model.errors import LeaderChanged
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import TopicConfig
from tests.postgres.conftest import Open
from tests.postgres.relay import Relay, relayed
from tests.postgres.stores import Opened, query

T, U, C = TopicName("t"), TopicName("u"), CursorName("c")


class LosesAnswer(Relay):
    """Cuts the connection on which one statement was run, when its answer comes."""

    # A part of the statement's text.
    lost: bytes | None = None
    # The name under which it was prepared.
    _prepared = b""
    _run_on: object = None

    def cuts(self, data: bytes, connection: object, *, is_answer: bool) -> bool:
        if is_answer:
            return self._run_on is connection
        if self.lost is not None and self.lost in data:
            self.lost = None
            # A statement without values is run at once; any other is prepared first.
            self._run_on = connection if data.startswith(b"Q") else None
            self._prepared = data[5 : data.index(b"\0", 5)]
        elif data.startswith(b"B") and self._prepared and self._prepared in data:
            self._run_on = connection
        return False


def take(store: Opened) -> Awaitable[object]:
    return store.backend.take_cursor(T, C, 0, stands_at=None, to=Offset(1))


def draw(store: Opened) -> Awaitable[object]:
    wanted = [Draw("reader", "first", 1)]
    return store.backend.draw_cursor(T, C, 0, start=Offset(0), end=Offset(1), wanted=wanted)


def move(store: Opened) -> Awaitable[object]:
    return store.backend.set_cursor(T, C, {0: Offset(1)})


def create(store: Opened) -> Awaitable[object]:
    return store.backend.create_topic(U, TopicConfig())


def forget(store: Opened) -> Awaitable[object]:
    return store.backend.delete_cursor(T, CursorName("old"))


def delete(store: Opened) -> Awaitable[object]:
    return store.backend.delete_topic(TopicName("old"))


CURSORS = "SELECT position FROM holdfast.cursors WHERE name = 'c'"
OLD_CURSORS = "SELECT position FROM holdfast.cursors WHERE name = 'old'"
CHANGES = {
    "take": (take, b"taken AS", CURSORS, 1),
    "draw": (draw, b"holdfast.draw(", CURSORS, 1),
    "move": (move, b"moved AS", CURSORS, 1),
    "create": (create, b"INSERT INTO holdfast.topics", "SELECT 1 FROM holdfast.topics WHERE name = 'u'", 1),
    "forget": (forget, b"DELETE FROM holdfast.cursors", OLD_CURSORS, 0),
    "delete": (delete, b"COMMIT", "SELECT 1 FROM holdfast.topics WHERE name = 'old'", 0),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_change_whose_answer_is_lost_is_not_called_undone(opened: Open, url: str, change: str) -> None:
    do, marker, look, count = CHANGES[change]
    before = await opened("n1")
    await before.create()
    await before.create("old")
    await before.publish(b"x")
    await before.backend.set_cursor(T, CursorName("old"), {0: Offset(1)})
    async with relayed(url, LosesAnswer) as (relay, address):
        store = await opened("n2", address=address)
        relay.lost = marker
        with pytest.raises(LeaderChanged, match="the database was lost before it said whether this is done"):
            await do(store)
        assert relay.lost is None, "the statement was not seen"
        await store.backend.stop()
    assert len(await query(url, look)) == count
