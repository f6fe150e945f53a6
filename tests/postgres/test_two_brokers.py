"""Two brokers on one database: what one stores the other one knows, and nothing is there twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import asyncpg
import pytest
import structlog
from testkit.batches import values_batch
from testkit.wait import until

from holdfast.backends.postgres.planning import Write
from holdfast.backends.postgres.queries import sql
from holdfast.model.errors import TopicExists, TopicNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from tests.postgres.conftest import Open
from tests.postgres.stores import Opened, query

T = PartitionId(TopicName("t"), 0)


async def both(opened: Open, **settings: object) -> tuple[Opened, Opened]:
    return await opened("n1", **settings), await opened("n2", **settings)


async def test_message_sent_through_both_brokers_is_stored_once_and_offsets_have_no_gaps(opened: Open) -> None:
    one, two = await both(opened)
    await one.create(partitions=3)
    await two.backend.catch_up_cursors()
    rolled = random.Random(3)

    async def publish(through: Opened, ids: list[str]) -> dict[str, tuple[int, int]]:
        told: dict[str, tuple[int, int]] = {}
        while ids:
            some = [ids.pop() for _ in range(min(len(ids), rolled.randrange(1, 40)))]
            messages = [NewMessage(value=each.encode(), id=each) for each in some]
            for each, published in zip(some, await through.broker.publish("t", messages), strict=True):
                told[each] = (published.partition, published.offset)
        return told

    ids = [f"id-{number}" for number in range(1500)]
    shuffled = [rolled.sample(ids, len(ids)) for _ in range(4)]
    told = await asyncio.gather(
        *(publish(through, order) for through, order in zip((one, two, one, two), shuffled, strict=True))
    )
    assert all(each == told[0] for each in told), "a message has two places"
    for reader in (one, two):
        found = {
            message.id: (number, message.offset) for number in range(3) for message in await reader.read("t", number)
        }
        assert found == told[0]
    for number in range(3):
        offsets = sorted(offset for partition, offset in told[0].values() if partition == number)
        assert offsets == list(range(len(offsets)))


async def test_order_of_one_publisher_is_kept_while_others_write(opened: Open) -> None:
    one, two = await both(opened)
    await one.create()
    await two.backend.catch_up_cursors()

    async def publish(through: Opened, name: str) -> None:
        stored = [through.broker.publish_values("t", [f"{name} {number}".encode()]) for number in range(300)]
        offsets = await asyncio.gather(*(each.offset for each in stored))
        assert offsets == sorted(offsets)

    await asyncio.gather(publish(one, "a"), publish(two, "b"), publish(one, "c"))
    values = [message.value for message in await two.read()]
    assert len(values) == 900
    for name in (b"a", b"b", b"c"):
        own = [int(value.split()[1]) for value in values if value.startswith(name)]
        assert own == list(range(300))


async def test_subscriber_of_the_other_broker_gets_what_is_published_here(opened: Open) -> None:
    one, two = await both(opened)
    await one.create(partitions=2)
    await two.backend.catch_up_cursors()
    follower = two.broker.follow("t", {0: Offset(0), 1: Offset(0)})
    for number in range(20):
        await one.publish(b"%d" % number)
        async with asyncio.timeout(5):
            delivery = await follower.next(1 << 20)
        assert sum(map(len, delivery.batches)) > 0
    follower.close()


async def test_notice_that_makes_no_sense_does_not_make_a_broker_deaf(opened: Open, url: str) -> None:
    one, two = await both(opened)
    await one.create()
    for notice in ("", "end", "end x", "end 1 0", "heard", "cursor 1 c", "start 1", "gone", "topic x", "later 1"):
        await query(url, "SELECT pg_notify('holdfast', $1)", notice)
    await one.publish(b"a")
    await two.backend.catch_up_cursors()
    assert two.backend.end_offset(T) == 1


async def test_topics_are_known_and_gone_on_both(opened: Open) -> None:
    one, two = await both(opened)
    heard: list[str] = []
    two.backend.watch_topics(lambda topic: heard.append(topic.name))
    created = await one.backend.create_topic(TopicName("t"), TopicConfig(partitions=2, retention_ms=1000))
    await two.backend.catch_up_cursors()
    assert two.backend.topic(T.topic) == created
    assert heard == ["t"]
    woken = asyncio.Event()
    two.backend.watch(T, woken.set)
    outcomes = await asyncio.gather(
        *(each.backend.create_topic(TopicName("u"), TopicConfig()) for each in (one, two)), return_exceptions=True
    )
    assert sum(isinstance(outcome, TopicExists) for outcome in outcomes) == 1
    assert one.backend.topic(TopicName("u")) is not None and two.backend.topic(TopicName("u")) is not None
    await one.backend.delete_topic(T.topic)
    await two.backend.catch_up_cursors()
    assert two.backend.topic(T.topic) is None
    await asyncio.wait_for(woken.wait(), 5)
    try:
        await two.backend.append(T, bytearray(b""))
    except TopicNotFound:
        return
    raise AssertionError("a deleted topic takes messages")


async def test_topic_that_is_deleted_while_it_is_looked_up_is_not_known_for_ever(opened: Open) -> None:
    one, two = await both(opened)
    database = two.backend.database
    fetch, change = database.fetch, database.change

    async def change_late(statement: str, *values: object) -> list[Any]:
        if statement == sql("create_topic"):
            database.change = change  # type: ignore[method-assign]
            await one.create()
            await asyncio.wait_for(two.backend.catch_up_cursors(), 5)
            two.backend.known.forget(one.backend.known.by_name[T.topic].id)  # as if it had not been heard of yet
            database.fetch = fetch_late  # type: ignore[method-assign]
        return await change(statement, *values)

    async def fetch_late(statement: str, *values: object) -> list[Any]:
        found = await fetch(statement, *values)
        if statement == sql("partitions_of"):
            await one.backend.delete_topic(T.topic)
            database.fetch = fetch  # type: ignore[method-assign]
            await asyncio.wait_for(two.backend.catch_up_cursors(), 5)
        return found

    database.change = change_late  # type: ignore[method-assign]
    try:
        await two.create()
    except TopicExists:
        assert two.backend.topics() == []
        await two.create()
        await two.publish(b"a")
        return
    raise AssertionError("it was there already")


async def test_nothing_of_a_deleted_topic_is_read_from_one_of_the_same_name(opened: Open) -> None:
    one, two = await both(opened)
    await one.create()
    await one.publish(*[b"old"] * 5)
    await two.backend.catch_up_cursors()
    await two.backend.catch_up(T)
    fetch = two.backend.database.fetch
    is_read, is_made_again = asyncio.Event(), asyncio.Event()

    async def fetch_slowly(statement: str, *values: object) -> list[Any]:
        found = await fetch(statement, *values)
        if statement == sql("read"):
            is_read.set()
            await is_made_again.wait()
        return found

    two.backend.database.fetch = fetch_slowly  # type: ignore[method-assign]
    reading = asyncio.create_task(two.backend.read(T, Offset(0), 1000))
    await is_read.wait()
    # Of a write, too, it may be known late what became of it.
    late = Write(two.backend.known.found(T), values_batch(b"late"), asyncio.get_running_loop().create_future())
    await one.backend.delete_topic(T.topic)
    await one.create()
    await one.publish(b"new")
    await two.backend.catch_up_cursors()
    is_made_again.set()
    await reading
    two.backend._on_stored(late, 0, 1)
    await two.backend.catch_up(T)
    assert [message.value for message in await two.read()] == [b"new"]


async def test_reader_goes_on_at_the_other_broker_and_never_back(opened: Open) -> None:
    one, two = await both(opened)
    await one.create()
    await one.publish(*[b"%d" % number for number in range(100)])
    name = CursorName("reader")
    await two.backend.catch_up_cursors()
    for through, offset in ((one, 10), (two, 30), (one, 20), (two, 25)):
        await through.backend.set_cursor(T.topic, name, {0: Offset(offset)}, only_forward=True)
    for each in (one, two):
        await each.backend.catch_up_cursors()
        assert each.backend.cursor(T.topic, name) == {0: 30}, "a reader was moved back"
    await one.backend.set_cursor(T.topic, name, {0: Offset(5)})
    await two.backend.catch_up_cursors()
    assert two.backend.cursor(T.topic, name) == {0: 5}, "a seek goes anywhere"
    await two.backend.delete_cursor(T.topic, name)
    await one.backend.catch_up_cursors()
    assert one.backend.cursor(T.topic, name) is None


async def test_only_one_broker_processes_a_partition_and_the_other_takes_over(opened: Open, url: str) -> None:
    one, two = await both(opened)
    await one.create(partitions=4)
    await two.backend.catch_up_cursors()
    partitions = [PartitionId(T.topic, number) for number in range(4)]
    for each in (one, two):
        each.backend.watch_reigns(lambda partition: None)

    def held(by: Opened) -> dict[PartitionId, int]:
        found = {each: by.backend.reign(each) for each in partitions}
        return {each: reign for each, reign in found.items() if reign is not None}

    await until(lambda: len(held(one)) == len(held(two)) == 2, "each has its share")
    assert not held(one).keys() & held(two).keys()
    before = held(one)
    await one.backend.holding.leave(one.backend.writer.id)
    assert held(one) == {}
    await until(lambda: len(held(two)) == 4, "the other one has all of it")
    assert all(held(two)[partition] > reign for partition, reign in before.items()), "a reign's number rises"
    assert len((await two.broker.cluster()).nodes) == 1
    assert await query(url, "SELECT count(*) FROM holdfast.brokers") == [(1,)]


async def test_broker_stops_before_it_lets_others_begin(opened: Open) -> None:
    one, two = await both(opened)
    await one.create(partitions=4)
    partitions = [PartitionId(T.topic, number) for number in range(4)]
    one.backend.watch_reigns(lambda partition: None)
    await until(lambda: all(map(one.backend.reign, partitions)), "one has all")
    await one.backend.holding.stop()
    two.backend.watch_reigns(lambda partition: None)
    await until(lambda: two.backend.holding._until_s > 0, "two wants its share")
    still_held: list[list[int]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        async def execute(self, statement: str, *values: object) -> None:
            if statement == sql("release_reigns"):
                still_held.append([each.number for each in partitions if one.backend.reign(each) is not None])
            await connection.execute(statement, *values)

    async with one.backend.database.connection() as connection:
        await one.backend.holding._take_shares(cast("asyncpg.Connection", Watched()))
    assert still_held == [[0, 1]]


async def test_new_topic_is_processed_by_nobody_because_of_the_one_before_it(opened: Open) -> None:
    one, two = await both(opened)
    await one.create()
    changes: list[int | None] = []
    one.backend.watch_reigns(lambda partition: changes.append(one.backend.reign(partition)))
    await until(lambda: one.backend.reign(T) == 1, "it is held")
    await two.backend.catch_up_cursors()
    await one.backend.holding.stop()
    await two.backend.delete_topic(T.topic)
    await two.create()
    await one.backend.catch_up_cursors()
    assert one.backend.topic(T.topic) == two.backend.topic(T.topic)
    assert one.backend.reign(T) is None
    assert changes == [1, None]


async def test_id_is_new_again_after_its_time(opened: Open, url: str) -> None:
    one, two = await both(opened, dedupe_age_ms=60_000)
    await one.create()
    await two.backend.catch_up_cursors()
    await one.publish(b"a", ids=["x"])
    assert (await two.publish(b"a", ids=["x"]))[0].duplicate
    await query(url, "UPDATE holdfast.id_keys SET inserted_at = now() - interval '2 minutes'")
    assert not (await two.publish(b"b", ids=["x"]))[0].duplicate
    assert (await one.publish(b"b", ids=["x"]))[0].offset == 1
    await query(url, "UPDATE holdfast.id_keys SET inserted_at = now() - interval '2 minutes'")
    await one.backend.retention.prune_ids()
    assert await query(url, "SELECT count(*) FROM holdfast.id_keys") == [(0,)]


class _SnapshotThenPause:
    """A connection that lets something else happen between its first answer and what is made of it."""

    def __init__(self, connection: asyncpg.Connection, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    def transaction(self, **options: Any) -> Any:
        return self._connection.transaction(**options)

    async def fetch(self, query: str) -> list[Any]:
        rows: list[Any] = await self._connection.fetch(query)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return rows


async def test_topic_that_is_made_or_deleted_while_all_are_read_is_known_rightly(opened: Open, url: str) -> None:
    store = await opened()
    await store.backend.create_topic(TopicName("old"), TopicConfig())
    deleted: list[str] = []
    store.backend.watch_deletions(deleted.append)

    async def meanwhile() -> None:
        await store.backend.create_topic(TopicName("new"), TopicConfig())
        await store.backend.delete_topic(TopicName("old"))

    connection = await asyncpg.connect(url)
    try:
        await store.backend.notices.read_all(_SnapshotThenPause(connection, meanwhile))
    finally:
        await connection.close()
    assert deleted == ["old"]
    assert store.backend.topic(TopicName("new")) is not None
    assert store.backend.topic(TopicName("old")) is None


async def test_ends_of_thousands_of_partitions_are_told_in_one_transaction(opened: Open) -> None:
    """They do not fit into one notice; nobody has to read the whole store because of that."""
    one, two = await both(opened)
    for name in ("a", "b"):
        await one.create(name, partitions=1000)
    await two.backend.catch_up_cursors()
    partitions = [PartitionId(TopicName(name), number) for name in ("a", "b") for number in range(1000)]
    transactions = one.backend.writer.transactions
    read_all = 0
    read = two.backend.notices.read_all

    async def counted(connection: Any) -> None:
        nonlocal read_all
        read_all += 1
        await read(connection)

    two.backend.notices.read_all = counted  # type: ignore[method-assign]
    await asyncio.gather(*(one.backend.append(each, values_batch(b"x")) for each in partitions))
    assert one.backend.writer.transactions - transactions <= 2
    await two.backend.catch_up_cursors()
    assert [two.backend.end_offset(each) for each in partitions] == [1] * 2000
    assert read_all == 0


async def test_two_brokers_of_one_name_are_told_and_a_restarted_one_is_not(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.postgres.holding.BEAT_S", 0.05)
    killed = await opened("n1")
    await until(lambda: killed.backend.holding.beat_s is not None, "it was there")
    await killed.backend.holding.stop()
    with structlog.testing.capture_logs() as logs:
        one, other = await opened("n1"), await opened("n2")
        beats = one.backend.holding._beats + 12
        await until(lambda: min(each.backend.holding._beats for each in (one, other)) > beats, "they looked")
        assert not [line for line in logs if line["event"] == "broker_name_taken"], "nobody is there twice"
        twin = await opened("n1")
        await until(lambda: len(told(logs)) == 2, "both say so")
        beats = twin.backend.holding._beats + 12
        await until(lambda: twin.backend.holding._beats > beats, "they looked again")
    assert [line["name"] for line in told(logs)] == ["n1", "n1"], "once each"
    assert "--node" in told(logs)[0]["hint"]


def told(logs: Any) -> list[Any]:
    return [line for line in logs if line["event"] == "broker_name_taken"]


async def test_place_of_a_callback_whose_topic_has_blanks_in_its_name_is_heard_of(opened: Open) -> None:
    one, two = await both(opened)
    await one.create()
    await one.broker.publish_values("t", [b"0", b"1", b"2"]).offset
    place = "callback:a  topic with blanks:name"
    await one.broker.seek_cursor("t", place, 2)
    await two.backend.catch_up_cursors()
    assert two.broker.describe_cursor("t", place).partitions == one.broker.describe_cursor("t", place).partitions
