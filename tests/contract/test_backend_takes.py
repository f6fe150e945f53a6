"""Taking a cursor: of all who read from one place, one gets it."""

from __future__ import annotations

import asyncio

import pytest
from testkit.inprocess import Store

from holdfast.model.errors import CursorMoved, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName

TOPIC, CURSOR = TopicName("t"), CursorName("c")


async def take(store: Store, stands_at: int | None, to: int) -> None:
    before = None if stands_at is None else Offset(stands_at)
    await store.backend.take_cursor(TOPIC, CURSOR, 0, stands_at=before, to=Offset(to))


async def test_what_was_taken_is_not_taken_again_and_stays_so_after_a_restart(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    await take(store, None, 3)
    assert store.cursor("t", "c") == {0: 3}
    for stands_at in (None, 2, 4):
        with pytest.raises(CursorMoved):
            await take(store, stands_at, 9)
    await take(store, 3, 5)
    await store.restart()
    assert store.cursor("t", "c") == {0: 5}
    with pytest.raises(CursorMoved):
        await take(store, 3, 6)
    await take(store, 5, 6)


async def test_one_of_many_takers_wins(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    for stands_at in (None, 1, 2):
        # All go to the same place: that it is where one wanted it does not mean that it was this one.
        to = (stands_at or 0) + 1
        ended = await asyncio.gather(*(take(store, stands_at, to) for _ in range(20)), return_exceptions=True)
        assert sum(each is None for each in ended) == 1
        assert sum(isinstance(each, CursorMoved) for each in ended) == 19
    assert store.cursor("t", "c") == {0: 3}


async def test_seek_is_where_the_next_one_takes_it_from(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    await take(store, None, 3)
    await store.set_cursor("t", "c", {0: 1})
    with pytest.raises(CursorMoved):
        await take(store, 3, 4)
    await take(store, 1, 2)
    await store.backend.delete_cursor(TOPIC, CURSOR)
    await take(store, None, 1)


async def test_nothing_is_taken_of_a_topic_that_is_not_there(store: Store) -> None:
    with pytest.raises(TopicNotFound):
        await take(store, None, 1)
