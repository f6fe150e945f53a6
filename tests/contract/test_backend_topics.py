"""Topics: durable once created, gone once deleted, and a new one has nothing of the old one."""

from __future__ import annotations

import asyncio

import pytest
from testkit.batches import values_batch
from testkit.inprocess import Store

from holdfast.model.errors import LeaderChanged, TopicExists, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.topics import Topic, TopicConfig


async def test_created_topic_is_there_after_a_restart_with_its_settings(store: Store) -> None:
    config = TopicConfig(partitions=min(3, store.partitions_max), retention_ms=123_456, retention_bytes=99)
    created = await store.backend.create_topic(TopicName("orders"), config)
    assert created == store.backend.topic(TopicName("orders"))
    await store.restart()
    assert store.backend.topic(TopicName("orders")) == created
    assert created.config == config
    assert list(store.backend.topics()) == [created]
    for number in range(3):
        assert store.backend.end_offset(PartitionId(TopicName("orders"), number)) == 0


UNUSUAL = ["sensors/kitchen/temperature", "../up", "grün ☃", "two words", "50%", 'say "hi"', "a\\b", "a:b"]


async def test_topics_of_unusual_names_are_there_after_a_restart_and_can_be_deleted(store: Store) -> None:
    partitions = [await store.create(name) for name in UNUSUAL]
    for place, partition in enumerate(partitions):
        await store.publish(partition, b"%d" % place)
        await store.set_cursor(partition.topic, "reader", {0: 1})
    await store.restart()
    assert {topic.name for topic in store.backend.topics()} == set(UNUSUAL)
    for place, partition in enumerate(partitions):
        assert await store.read_all(partition) == {0: b"%d" % place}
        assert store.cursor(partition.topic, "reader") is not None
    for name in UNUSUAL[::2]:
        await store.backend.delete_topic(TopicName(name))
    await store.restart()
    assert {topic.name for topic in store.backend.topics()} == set(UNUSUAL[1::2])
    assert await store.publish(await store.create(UNUSUAL[0]), b"new") == 0


async def test_topic_cannot_be_created_over_another(store: Store) -> None:
    t = await store.create("t", partitions=2)
    await store.publish(t, b"precious")
    with pytest.raises(TopicExists):
        await store.create("t", partitions=1)
    topic = store.backend.topic(TopicName("t"))
    assert topic is not None and topic.config.partitions == 2
    assert await store.read_all(t) == {0: b"precious"}


async def test_one_of_many_creators_wins_and_nothing_is_lost(store: Store) -> None:
    outcomes = await asyncio.gather(*[store.create("t") for _ in range(5)], return_exceptions=True)
    assert sum(isinstance(outcome, PartitionId) for outcome in outcomes) == 1
    assert all(isinstance(outcome, PartitionId | TopicExists) for outcome in outcomes)
    t = PartitionId(TopicName("t"), 0)
    assert await store.publish(t, b"x") == 0


async def test_deleted_topic_is_gone_and_stays_gone(store: Store) -> None:
    t = await store.create("t")
    other = await store.create("other")
    await store.publish(t, b"old")
    await store.publish(other, b"kept")
    await store.set_cursor("t", "reader", {0: 1})
    await store.backend.delete_topic(TopicName("t"))
    for _ in range(2):
        assert store.backend.topic(TopicName("t")) is None
        assert [topic.name for topic in store.backend.topics()] == ["other"]
        assert list(store.backend.cursors()) == []
        with pytest.raises(TopicNotFound):
            await store.read(t)
        with pytest.raises(TopicNotFound):
            await store.publish(t, b"x")
        with pytest.raises(TopicNotFound):
            await store.backend.delete_topic(TopicName("t"))
        assert await store.read_all(other) == {0: b"kept"}
        await store.restart()


async def test_nothing_of_a_deleted_topic_comes_back_with_its_name(store: Store) -> None:
    t = await store.create("t", partitions=2)
    for i in range(30):
        await store.publish(t, b"old %d" % i * 50)
    await store.set_cursor("t", "reader", {0: 30})
    await store.backend.delete_topic(TopicName("t"))
    await store.create("t", partitions=1)
    for _ in range(2):
        assert store.backend.end_offset(t) == 0
        assert await store.read(t) == []
        assert store.cursor("t", "reader") is None
        topic = store.backend.topic(TopicName("t"))
        assert topic is not None and topic.config.partitions == 1
        await store.restart()
    assert await store.publish(t, b"new") == 0
    await store.restart()
    assert await store.read_all(t) == {0: b"new"}


async def test_publish_under_way_when_its_topic_is_deleted_is_not_left_hanging(store: Store) -> None:
    t = await store.create("t")
    appended = [store.append(t, values_batch(b"%d" % i)) for i in range(5)]
    await store.backend.delete_topic(TopicName("t"))
    outcomes = await asyncio.wait_for(asyncio.gather(*appended, return_exceptions=True), 60)
    # Another node that led it may have stored some; nobody can tell any more.
    told = (int, TopicNotFound) if store.leads else (int, TopicNotFound, LeaderChanged)
    assert all(isinstance(outcome, told) for outcome in outcomes)


async def test_reader_that_waits_hears_of_the_deletion(store: Store) -> None:
    t = await store.create("t")
    heard = asyncio.Event()
    store.backend.watch(t, heard.set)
    await store.backend.delete_topic(TopicName("t"))
    await asyncio.wait_for(heard.wait(), 60)


async def test_topic_watcher_hears_of_every_topic_there_is_and_comes(store: Store) -> None:
    await store.create("before")
    heard: list[Topic] = []
    store.backend.watch_topics(heard.append)
    await store.create("after")
    assert [topic.name for topic in heard] == ["before", "after"]
    await store.restart()
    again: list[Topic] = []
    store.backend.watch_topics(again.append)
    assert sorted(topic.name for topic in again) == ["after", "before"]


async def test_topic_recreated_while_it_is_being_deleted_is_new(store: Store) -> None:
    t = await store.create("t")
    await store.publish(t, b"old")

    async def create() -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.create("t")
                    return
                except TopicExists:
                    await asyncio.sleep(0.001)

    await asyncio.gather(store.backend.delete_topic(TopicName("t")), create())
    assert store.backend.end_offset(t) == 0
    assert await store.publish(t, b"new") == 0
    await store.restart()
    assert await store.read_all(t) == {0: b"new"}
    assert await store.backend.read(t, Offset(1), 10) == []
