"""Cursors: where a named reader stands, as durable as messages."""

from __future__ import annotations

import asyncio

from testkit.inprocess import Store

from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName


async def create_filled(store: Store, name: str, partitions: int = 1, messages: int = 200) -> None:
    """A topic with messages in each partition, so that a cursor has something to stand at."""
    await store.create(name, partitions=partitions)
    for number in range(partitions):
        await store.publish(PartitionId(TopicName(name), number), *[b"%d" % i for i in range(messages)])


async def test_reader_stands_where_it_stood_after_a_restart(store: Store) -> None:
    await create_filled(store, "t", partitions=3)
    await create_filled(store, "u")
    await store.set_cursor("t", "one", {0: 5, 1: 7, 2: 9})
    await store.set_cursor("t", "two", {0: 1})
    await store.set_cursor("u", "one", {0: 3})
    await store.set_cursor("t", "one", {1: 8})
    for _ in range(3):
        assert store.cursor("t", "one") == {0: 5, 1: 8, 2: 9}
        assert store.cursor("t", "two") == {0: 1}
        assert store.cursor("u", "one") == {0: 3}
        assert store.cursor("u", "two") is None
        assert sorted(store.backend.cursors()) == [("t", "one"), ("t", "two"), ("u", "one")]
        await store.restart()


async def test_position_is_seen_at_once_and_the_last_one_stays(store: Store) -> None:
    await create_filled(store, "t")
    moved = []
    for offset in range(200):
        moved.append(store.backend.set_cursor(TopicName("t"), CursorName("c"), {0: Offset(offset)}))
        assert store.cursor("t", "c") == {0: offset}
    await asyncio.gather(*moved)
    await store.restart()
    assert store.cursor("t", "c") == {0: 199}


async def test_seek_may_go_back(store: Store) -> None:
    await create_filled(store, "t")
    await store.set_cursor("t", "c", {0: 10})
    await store.set_cursor("t", "c", {0: 2})
    await store.restart()
    assert store.cursor("t", "c") == {0: 2}


async def test_deleted_cursor_is_gone_and_a_new_one_starts_over(store: Store) -> None:
    await create_filled(store, "t", partitions=2)
    await store.set_cursor("t", "c", {0: 10, 1: 20})
    await store.set_cursor("t", "kept", {0: 1})
    await store.backend.delete_cursor(TopicName("t"), CursorName("c"))
    assert store.cursor("t", "c") is None
    await store.restart()
    assert store.cursor("t", "c") is None
    assert store.cursor("t", "kept") == {0: 1}
    await store.set_cursor("t", "c", {0: 1})
    await store.restart()
    assert store.cursor("t", "c") == {0: 1}, "a position of the cursor before came back"


async def test_moving_nothing_is_fine(store: Store) -> None:
    await create_filled(store, "t")
    await store.set_cursor("t", "c", {0: 4})
    await store.set_cursor("t", "c", {})
    await store.restart()
    assert store.cursor("t", "c") == {0: 4}
