"""Numbered queues over every backend: each message to one reader, each number to one queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from testkit.inprocess import PlainNode, Store

from holdfast.broker.broker import Broker
from holdfast.broker.queue_making import LAST_NUMBER, NUMBERS
from holdfast.broker.queue_names import QUEUE_ID_MAX, topic_of
from holdfast.broker.queues import Queues
from holdfast.broker.read_ahead import ReadAhead
from holdfast.model.draws import Drawn
from holdfast.model.errors import (
    NotAQueue,
    OffsetOutOfRange,
    QueueNotFound,
    RequestOutdated,
    TooLarge,
    TooManyTopics,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import MESSAGE_BYTES_MAX
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import TopicConfig


def queues_of(store: Store, session: str = "s") -> Queues:
    return Queues(Broker(store.backend, now_ms=store.clock), session)


def seen(messages: list[StoredMessage | None]) -> list[bytes | None]:
    return [None if message is None else message.value for message in messages]


async def appended(queues: Queues, queue_id: int, count: int) -> list[int]:
    done = [queues.append(queue_id, b"%d" % number, None) for number in range(count)]
    return [published.offset for published in await asyncio.gather(*done)]


async def test_numbers_are_given_once_also_to_many_at_once_and_after_a_deletion(store: Store) -> None:
    if isinstance(store, PlainNode):
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


async def test_topics_made_by_hand_neither_use_up_the_numbers_nor_are_taken_for_new_queues(store: Store) -> None:
    queues = queues_of(store)
    far = topic_of(QUEUE_ID_MAX)
    await store.create(far)
    assert await queues.create() == 1
    await store.create(topic_of(2))
    assert await queues.create() == 3
    if isinstance(store, PlainNode):
        return
    # Those that are made while a number is drawn.
    draw, by_hand = store.backend.draw_cursor, [4, 5]

    async def drawing(topic: TopicName, name: CursorName, number: int, **more: Any) -> list[Drawn]:
        found = await draw(topic, name, number, **more)
        if by_hand and found[0].first == by_hand[0]:
            await store.create(topic_of(by_hand.pop(0)))
        return found

    store.backend.draw_cursor = drawing  # type: ignore[method-assign]
    try:
        assert await queues.create("a:1") == 6
    finally:
        store.backend.draw_cursor = draw  # type: ignore[method-assign]
    assert [await queues.create("a:1") for _ in range(2)] == [6, 6]
    assert [await queues.create("a:2"), await queues.create()] == [7, 8]


async def test_numbers_that_have_run_out_are_not_given_twice(store: Store) -> None:
    if isinstance(store, PlainNode):
        pytest.skip("a plain pair replicates nothing but messages")
    queues = queues_of(store)
    await queues.create()
    last = {0: Offset(QUEUE_ID_MAX)}
    await store.backend.set_cursor(NUMBERS, LAST_NUMBER, last)
    assert await queues.create() == QUEUE_ID_MAX
    for request_id in (None, "a:1", "b:1"):
        with pytest.raises(TooManyTopics):
            await queues.create(request_id)


async def test_request_makes_a_queue_that_was_not_finished_and_none_that_was_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, PlainNode):
        pytest.skip("a plain pair replicates nothing but messages")
    queues = queues_of(store)
    with monkeypatch.context() as patched:

        async def failing(*_: object) -> None:
            raise Unavailable("the node is gone before it made the topic")

        patched.setattr(Broker, "create_topic", failing)
        with pytest.raises(Unavailable):
            await queues.create("a:1")
    assert await queues.create("b:1") == 2
    assert await queues.create("a:1") == 1
    await store.backend.delete_topic(topic_of(1))
    await store.restart()
    queues = queues_of(store, "later")
    with pytest.raises(QueueNotFound, match="was deleted"):
        await queues.create("a:1")
    assert store.backend.topic(topic_of(1)) is None
    assert [await queues.create("a:2"), await queues.create("b:1")] == [3, 2]


async def test_request_sent_twice_at_the_same_time_makes_one_queue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, PlainNode):
        pytest.skip("a plain pair replicates nothing but messages")
    create, overtaken, tries = Broker.create_topic, asyncio.Event(), 0

    async def overtaken_by_the_second(broker: Broker, *wanted: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await overtaken.wait()
        return await create(broker, *wanted)

    monkeypatch.setattr(Broker, "create_topic", overtaken_by_the_second)
    first = asyncio.ensure_future(queues_of(store, "one").create("a:1"))
    while not tries:
        await asyncio.sleep(0)
    assert await queues_of(store, "other").create("a:1") == 1
    overtaken.set()
    assert await first == 1
    assert queues_of(store, "later").ids() == [1]
    assert await queues_of(store, "later").create("a:2") == 2


async def test_topic_made_by_hand_under_a_number_that_a_request_has_drawn_is_not_taken_for_its_queue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, PlainNode):
        pytest.skip("a plain pair replicates nothing but messages")
    with monkeypatch.context() as patched:

        async def failing(*_: object) -> None:
            raise Unavailable("the node is gone before it made the topic")

        patched.setattr(Broker, "create_topic", failing)
        with pytest.raises(Unavailable):
            await queues_of(store).create("a:1")
    await store.create(topic_of(1))
    assert [await queues_of(store, "later").create("a:1") for _ in range(2)] == [2, 2]


async def test_message_of_a_topic_made_anew_is_not_given_for_one_of_the_topic_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_of(store)
    await queues.create()
    await appended(queues, 1, 3)
    look = ReadAhead.message

    async def made_anew(ahead: ReadAhead, *place: Any) -> StoredMessage:
        await store.backend.delete_topic(topic_of(1))
        await store.create(topic_of(1))
        await appended(queues, 1, 3)
        return await look(ahead, *place)

    with monkeypatch.context() as patched:
        patched.setattr(ReadAhead, "message", made_anew)
        with pytest.raises(TopicNotFound):
            await queues.reads.read(1, "c", None)
    assert seen([await queues.reads.read(1, "c", None)]) == [b"0"]


async def test_message_that_is_not_there_any_more_fails_its_own_reader_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_of(store)
    await queues.create()
    await appended(queues, 1, 3)
    read = Broker.read

    async def without_the_first(broker: Broker, topic: TopicName, number: int, offset: Offset, *more: Any) -> Any:
        return await read(broker, topic, number, Offset(max(offset, 1)), *more)

    monkeypatch.setattr(Broker, "read", without_the_first)
    found = await asyncio.gather(*(queues.reads.read(1, "c", f"{n}:1") for n in range(3)), return_exceptions=True)
    assert isinstance(found[0], OffsetOutOfRange)
    assert [each.value for each in found[1:] if isinstance(each, StoredMessage)] == [b"1", b"2"]


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
    # That there was nothing is an answer like any other: asked again, a request gets no more than it was told.
    assert seen([await queues.reads.read(1, "ü", request) for request in ("b:2", "b:3")]) == [None, b"0"]


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
        queues.append(1, b"x" * (MESSAGE_BYTES_MAX + 1), None)
    assert store.backend.topic(topic_of(2)) is None
    if store.partitions_max > 1:
        await store.create("queue-9", partitions=2)
        with pytest.raises(NotAQueue):
            await queues.append(9, b"1", None)
        with pytest.raises(NotAQueue):
            await queues.reads.read(9, "c", None)
    assert await appended(queues, 1, 1) == [0]
    assert store.cursor("queue-1", "c") is None
