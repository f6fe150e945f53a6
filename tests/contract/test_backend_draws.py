"""Drawing from a cursor: readers who share it get each message once, and the same again when they ask again."""

from __future__ import annotations

import asyncio

import pytest
from testkit.inprocess import Store

from holdfast.model.draws import NOTHING_DRAWN, OUTDATED_DRAW, Draw, Drawn
from holdfast.model.errors import TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import READERS_PER_CURSOR_MAX

TOPIC, CURSOR = TopicName("t"), CursorName("c")


async def draw(store: Store, *wanted: Draw, start: int = 0, end: int = 10, notes_nothing: bool = False) -> list[Drawn]:
    return await store.backend.draw_cursor(
        TOPIC, CURSOR, 0, start=Offset(start), end=Offset(end), wanted=wanted, notes_nothing=notes_nothing
    )


def drawn(first: int, count: int = 1) -> Drawn:
    return Drawn(Offset(first), count)


def again(first: int, count: int = 1) -> Drawn:
    return Drawn(Offset(first), count, is_repeat=True)


async def test_request_that_comes_again_gets_the_same_message_also_after_a_restart(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    assert await draw(store, Draw("a", "1"), Draw("b", "1"), Draw("n", "x", 3)) == [drawn(0), drawn(1), drawn(2, 3)]
    assert store.cursor("t", "c") == {0: 5}
    assert await draw(store, Draw("b", "1"), Draw("a", "2"), Draw("n", "x", 3)) == [again(1), drawn(5), again(2, 3)]
    await store.restart()
    assert store.cursor("t", "c") == {0: 6}
    assert await draw(store, Draw("a", "2"), Draw("b", "1"), Draw("b", "2")) == [again(5), again(1), drawn(6)]
    # Whose reader has gone on is answered by nobody any more, and must not take a message with it.
    assert await draw(store, Draw("a", "1"), Draw("b", "1")) == [OUTDATED_DRAW, OUTDATED_DRAW]
    assert store.cursor("t", "c") == {0: 7}


async def test_no_message_is_drawn_twice_or_left_out_by_many_at_once(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    found = await asyncio.gather(*(draw(store, Draw(f"r{number}", "1"), end=100) for number in range(50)))
    assert sorted(each.first for (each,) in found) == list(range(50))
    assert all(each.count == 1 for (each,) in found)


async def test_nothing_is_drawn_where_there_is_nothing_and_no_cursor_is_made(store: Store) -> None:
    await store.create()
    assert await draw(store, Draw("a", "1"), end=0) == [NOTHING_DRAWN]
    assert store.cursor("t", "c") is None
    assert await draw(store, Draw("a", "1", 5), end=2) == [drawn(0, 2)]
    assert await draw(store, Draw("a", "2", 5), end=2) == [NOTHING_DRAWN]
    # What was not given is not remembered unless that is wanted: asked again, it gets what has come meanwhile.
    assert await draw(store, Draw("a", "2", 5), Draw("b", "1"), end=4) == [drawn(2, 2), NOTHING_DRAWN]
    assert await draw(store, Draw("a", "2"), Draw("b", "1"), end=4) == [again(2, 2), NOTHING_DRAWN]


async def test_request_that_was_told_that_there_is_nothing_takes_nothing_when_it_comes_again(store: Store) -> None:
    await store.create()
    told = await draw(store, Draw("a", "1"), Draw("b", "1"), Draw("a", "1"), end=0, notes_nothing=True)
    assert told == [NOTHING_DRAWN, NOTHING_DRAWN, again(0, 0)]
    assert store.cursor("t", "c") == {0: 0}
    assert await draw(store, Draw("b", "2"), end=0, notes_nothing=True) == [NOTHING_DRAWN]
    await store.restart()
    assert await draw(store, Draw("a", "1"), Draw("b", "1"), end=5) == [again(0, 0), OUTDATED_DRAW]
    assert await draw(store, Draw("a", "2", 3), Draw("b", "2"), end=5) == [drawn(0, 3), again(0, 0)]
    told = await draw(store, Draw("a", "3", 3), Draw("d", "1"), end=5, notes_nothing=True)
    assert told == [drawn(3, 2), NOTHING_DRAWN]
    assert await draw(store, Draw("d", "1"), Draw("a", "3", 3), end=9) == [again(0, 0), again(3, 2)]
    assert store.cursor("t", "c") == {0: 5}
    # Of those who were told so the latest are remembered, like of all others.
    await draw(store, *[Draw(f"r{number}", "1") for number in range(READERS_PER_CURSOR_MAX)], end=5, notes_nothing=True)
    assert await draw(store, Draw("r0", "1"), Draw("d", "1"), end=9) == [again(0, 0), drawn(5)]


async def test_draw_begins_where_the_log_does_and_follows_a_seek(store: Store) -> None:
    await store.publish(await store.create(), *[b"%d" % number for number in range(10)])
    assert await draw(store, Draw("a", "1"), start=3) == [drawn(3)]
    assert await draw(store, Draw("a", "2")) == [drawn(4)]
    await store.set_cursor("t", "c", {0: 1})
    assert await draw(store, Draw("a", "3"), Draw("a", "2")) == [drawn(1), OUTDATED_DRAW]
    await store.backend.take_cursor(TOPIC, CURSOR, 0, stands_at=Offset(2), to=Offset(8))
    assert await draw(store, Draw("a", "4")) == [drawn(8)]
    await store.backend.delete_cursor(TOPIC, CURSOR)
    assert await draw(store, Draw("a", "4")) == [drawn(0)]


async def test_readers_that_are_remembered_are_bounded_and_the_same_after_a_restart(store: Store) -> None:
    readers = [Draw(f"r{number}", "1") for number in range(READERS_PER_CURSOR_MAX + 1)]
    await store.publish(await store.create(), *[b"m"] * (len(readers) + 10))
    await draw(store, *readers, end=10_000)
    last = len(readers)
    # The first one is forgotten; the second one draws again, so it is not the next to be.
    assert await draw(store, Draw("r1", "2"), end=10_000) == [drawn(last)]
    await store.restart()
    assert await draw(store, Draw("new", "1"), end=10_000) == [drawn(last + 1)]
    repeated = await draw(store, Draw("r1", "2"), Draw("r3", "1"), Draw("r0", "1"), Draw("r2", "1"), end=10_000)
    assert repeated == [again(last), again(3), drawn(last + 2), drawn(last + 3)]


async def test_nothing_is_drawn_of_a_topic_that_is_not_there(store: Store) -> None:
    with pytest.raises(TopicNotFound):
        await draw(store, Draw("a", "1"))
