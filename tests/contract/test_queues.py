"""Numbered queues over every backend: each message to one reader, each number to one queue."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.backends.plain.backend import PlainBackend
from holdfast.broker.broker import Broker
from holdfast.broker.queue_names import topic_of
from holdfast.broker.queues import Queues
from holdfast.model.errors import NotAQueue, QueueNotFound, RequestOutdated, TooLarge
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import TopicConfig
from tests.contract.stores import Store


def queues_of(store: Store, session: str = "s") -> Queues:
    return Queues(Broker(store.backend, now_ms=store.clock), session)


def seen(messages: list[StoredMessage | None]) -> list[bytes | None]:
    return [None if message is None else message.value for message in messages]


async def appended(queues: Queues, queue_id: int, count: int) -> list[int]:
    done = [queues.append(queue_id, b"%d" % number, None) for number in range(count)]
    return [published.offset for published in await asyncio.gather(*done)]


async def test_numbers_are_given_once_also_to_many_at_once_and_after_a_deletion(store: Store) -> None:
    if isinstance(store.running, PlainBackend):
        pytest.skip("a plain pair replicates nothing but messages")
    queues = queues_of(store)
    assert sorted(await asyncio.gather(*(queues.create() for _ in range(5)))) == [1, 2, 3, 4, 5]
    await store.backend.create_topic(topic_of(6), TopicConfig(partitions=1))
    assert await queues.create() == 7
    await store.backend.delete_topic(topic_of(7))
    await store.restart()
    queues = queues_of(store, "later")
    assert await queues.create("me:1") == 8
    assert await queues.create("me:1") == 8
    assert queues.ids() == [1, 2, 3, 4, 5, 6, 8]


async def test_readers_who_share_a_client_get_each_message_once(store: Store) -> None:
    queues = queues_of(store)
    await queues.create()
    assert await appended(queues, 1, 20) == list(range(20))
    found = await asyncio.gather(*(queues.reads.read(1, "c", None) for _ in range(30)))
    assert sorted(value for value in seen(found) if value is not None) == sorted(b"%d" % n for n in range(20))
    assert seen(found).count(None) == 10
    # Another client has a pointer of its own.
    assert seen([await queues.reads.read(1, "d", None) for _ in range(3)]) == [b"0", b"1", b"2"]


async def test_read_that_is_sent_again_gets_the_same_message_also_after_a_restart(store: Store) -> None:
    queues = queues_of(store)
    await queues.create()
    await appended(queues, 1, 5)
    first = [queues.reads.read(1, "ü", request) for request in ("a:1", "b:1", "a:1", "lone")]
    values = seen(list(await asyncio.gather(*first)))
    assert values == [b"0", b"1", b"0", b"2"]
    await store.restart()
    queues = queues_of(store, "later")
    again = [await queues.reads.read(1, "ü", request) for request in ("lone", "b:1", "a:1", "a:2", None, "b:1")]
    assert seen(again) == [b"2", b"1", b"0", b"3", b"4", b"1"]
    # There is nothing more, and what was read before can still be asked for.
    assert seen([await queues.reads.read(1, "ü", request) for request in ("b:2", "a:2")]) == [None, b"3"]
    with pytest.raises(RequestOutdated):
        await queues.reads.read(1, "ü", "a:1")
    await appended(queues, 1, 1)
    assert seen([await queues.reads.read(1, "ü", "b:2")]) == [b"0"]


async def test_append_that_is_sent_again_with_its_id_is_stored_once(store: Store) -> None:
    queues = queues_of(store)
    await queues.create()
    together = await asyncio.gather(*(queues.append(1, b"7", name) for name in ("x", "y", "x")))
    assert [published.offset for published in together] == [0, 1, 0]
    assert (await queues.append(1, b"7", "y")).duplicate
    assert (await queues.append(1, b"8", None)).offset == 2


async def test_what_is_wrong_changes_nothing(store: Store) -> None:
    queues = queues_of(store)
    await queues.create()
    with pytest.raises(QueueNotFound):
        await queues.append(2, b"1", None)
    with pytest.raises(QueueNotFound):
        await queues.reads.read(2, "c", None)
    with pytest.raises(TooLarge):
        queues.append(1, b"x" * (1 << 21), None)
    assert store.backend.topic(topic_of(2)) is None
    if store.partitions_most(2) == 2:
        await store.create("queue-9", partitions=2)
        with pytest.raises(NotAQueue):
            await queues.append(9, b"1", None)
        with pytest.raises(NotAQueue):
            await queues.reads.read(9, "c", None)
    assert await appended(queues, 1, 1) == [0]
    assert store.cursor("queue-1", "c") is None
