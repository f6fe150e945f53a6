"""The database dies in every way it can: no push hangs, none is lost, doubled or overtaken."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from testkit.postgres import Server
from testkit.wait import PATIENCE_S, until

from holdfast.backends.spill import files
from holdfast.model.errors import TooManyTopics, TopicNotFound, Unavailable
from holdfast.model.ids import TopicName
from holdfast.model.messages import NewMessage
from tests.postgres.stores import query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling

PUSHERS = 8
DEADLINE_MS = 400
Death = Callable[[Server], contextlib.AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def killed(server: Server) -> AsyncIterator[None]:
    await asyncio.to_thread(server.kill)
    yield
    await server.start()


@contextlib.asynccontextmanager
async def paused(server: Server) -> AsyncIterator[None]:
    await asyncio.to_thread(server.kill, signal.SIGSTOP)
    yield
    await asyncio.to_thread(server.kill, signal.SIGCONT)


@contextlib.asynccontextmanager
async def read_only(server: Server) -> AsyncIterator[None]:
    await query(server.url, "ALTER SYSTEM SET default_transaction_read_only = on")
    await query(server.url, "SELECT pg_reload_conf()")
    yield
    connection = await asyncpg.connect(server.url, server_settings={"default_transaction_read_only": "off"})
    await connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


@contextlib.asynccontextmanager
async def out_of_connections(server: Server) -> AsyncIterator[None]:
    """All are taken, and the broker's own are cut."""
    taken = [await asyncpg.connect(server.url)]

    async def take_all() -> None:
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            while True:
                taken.append(await asyncpg.connect(server.url))

    # Also those that are only just coming, and have not said yet who they are.
    while await taken[0].fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> ALL ($1::integer[])",
        [each.get_server_pid() for each in taken],
    ):
        await take_all()
    yield
    for connection in taken:
        await connection.close()


@contextlib.asynccontextmanager
async def extremely_slow(server: Server) -> AsyncIterator[None]:
    """Somebody holds what every transaction needs."""
    connection = await asyncpg.connect(server.url)
    await connection.execute("BEGIN")
    await connection.execute("LOCK TABLE holdfast.messages IN ACCESS EXCLUSIVE MODE")
    yield
    await connection.close()


@contextlib.asynccontextmanager
async def restarted_at_once(server: Server) -> AsyncIterator[None]:
    await asyncio.to_thread(server.kill)
    await server.start()
    yield


@pytest.mark.parametrize("death", [killed, paused, read_only, out_of_connections, extremely_slow, restarted_at_once])
async def test_no_push_hangs_is_lost_doubled_or_overtaken(death: Death, opened: Open, server: Server) -> None:
    """Pushers publish all the time, each to its own partition, one message after the other, without ids."""
    # Nothing but its deadline ends a push while the database is silent.
    store = await opened(server.url, deadline_ms_min=100, deadline_ms_max=DEADLINE_MS, timeout_s=10 * PATIENCE_S)
    await store.create_in_store(partitions=PUSHERS)
    sent = [0] * PUSHERS
    is_over = False

    async def push_on(number: int) -> None:
        while not is_over:
            await store.push(b"%d" % sent[number], partition=number)
            sent[number] += 1

    async def all_get_on() -> None:
        """The pushes that are under way end, and the ones after them."""
        wanted = [count + 2 for count in sent]
        await until(lambda: all(count >= least for count, least in zip(sent, wanted, strict=True)), "pushes end")

    pushers = [asyncio.create_task(push_on(number)) for number in range(PUSHERS)]
    await all_get_on()
    async with death(server):
        await all_get_on()
    await all_get_on()
    is_over = True
    await asyncio.gather(*pushers)
    assert store.spill.stats.spilled_events > 0 or death is restarted_at_once
    await store.drained()
    for number in range(PUSHERS):
        assert await store.values(partition=number) == [b"%d" % each for each in range(sent[number])]


async def test_database_without_room_is_taken_for_one_that_is_away(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.backends.postgres import replaying, writing

    async def full(*_: object) -> None:
        raise asyncpg.DiskFullError("No space left on device")

    store = await opened()
    await store.create()
    with monkeypatch.context() as patched:
        patched.setattr(writing, "prepare", full)
        patched.setattr(replaying, "prepare", full)
        assert (await store.push(b"1"))[0].buffered
        await asyncio.sleep(0.1)
        assert (await store.push(b"2"))[0].buffered
    await store.drained()
    assert await store.values() == [b"1", b"2"]


async def test_broker_starts_without_its_database_and_goes_on_when_it_comes(opened: Open, server: Server) -> None:
    server.kill()
    store = await opened(server.url)
    assert store.spill.problem() is None, "it takes messages"
    assert all(each.buffered for each in await store.push(b"1", b"2", topic="new"))
    assert store.broker.describe_topic("new").topic == "new"
    with pytest.raises(Unavailable):
        await store.create("asked.for")
    await server.start()
    await store.drained()
    assert await store.values("new") == [b"1", b"2"]
    assert not (await store.push(b"3", topic="new"))[0].buffered


async def test_keyed_messages_to_a_topic_nobody_knows_find_their_partitions(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    before = await opened(server.url)
    await before.create("t", partitions=4)
    keyed = [NewMessage(value=b"%d" % number, key=b"key %d" % (number % 7)) for number in range(50)]
    places = [each.partition for each in await before.broker.publish("t", keyed)]
    server.kill()
    unaware = await opened(server.url, directory=tmp_path / "other")
    assert all(each.buffered for each in await unaware.broker.publish("t", keyed))
    await server.start()
    await unaware.drained()
    for number in range(4):
        expected = [each.value for each, place in zip(keyed, places, strict=True) if place == number]
        assert await unaware.values(partition=number) == expected * 2


async def test_looking_at_topics_that_nobody_knows_makes_none(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.spill.new_topics.TOPICS_MAX", 3)
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"0")
    for number in range(10):
        assert store.spill.topic(TopicName(f"looked.at.{number}")) is not None
    for topic in ("new", "newer", "new"):
        assert (await store.push(b"1", topic=topic))[0].buffered
    with pytest.raises(TooManyTopics, match="2 new topics wait for the store"):
        await store.push(b"1", topic="newest")
    await server.start()
    await store.drained()
    assert {topic.name for topic in store.database.topics()} == {"t", "new", "newer"}


async def test_topic_of_an_acknowledged_message_is_made_though_there_are_too_many_by_now(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    for number in range(5):
        await store.push(b"%d" % number, topic="new")
        await store.push(b"%d" % number)
    monkeypatch.setattr("holdfast.broker.making_topics.TOPICS_MAX", 1)
    await server.start()
    await store.drained()
    assert await store.values("new") == await store.values() == [b"%d" % number for number in range(5)]
    assert not store.spill.stats.failed_events
    with pytest.raises(TooManyTopics):
        await store.push(b"1", topic="newer")


async def test_topic_that_the_store_has_no_room_for_is_refused_while_it_is_away(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    store.database._topics._partitions_max = 2
    server.kill()
    await store.push(b"0")
    assert (await store.push(b"1", topic="new"))[0].buffered
    with pytest.raises(TooManyTopics, match="room for 1"):
        await store.push(b"1", topic="newer")
    await server.start()
    await store.drained()
    assert {topic.name for topic in store.database.topics()} == {"t", "new"}


async def test_what_may_be_lost_keeps_nobody_waiting_for_room_for_its_topic(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"0")
    losable = await store.broker.publish("new", [NewMessage(value=b"1")], may_be_lost=True)
    assert losable[0].buffered
    await until(lambda: store.spill._losable_appender.active_events == 1)
    store.database._topics._partitions_max = 1
    await server.start()
    await until(lambda: store.spill.stats.failed_events == 1)
    await store.drained()
    assert store.spill.stats.outages == 1
    assert not (await store.push(b"2"))[0].buffered
    assert await store.values() == [b"0", b"2"]


async def test_messages_wait_in_order_where_the_store_has_no_room_for_their_topic(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    await store.create("old")
    server.kill()
    for number in range(5):
        await store.push(b"%d" % number, topic="new")
    store.database._topics._partitions_max = 2
    await server.start()
    await until(lambda: "at most 2 may be" in store.spill.health.reason)
    assert (await store.push(b"5", topic="new"))[0].buffered
    assert not files.failed_files(store.directory)
    await store.broker.delete_topic("old")
    await store.drained()
    assert await store.values("new") == [b"%d" % number for number in range(6)]
    assert not (await store.push(b"6", topic="new"))[0].buffered


async def test_unknown_topic_is_refused_where_topics_are_not_made_by_use(opened: Open, server: Server) -> None:
    store = await opened(server.url, auto_create=False)
    store.broker.publisher.topics._auto_create = False
    await store.create("known")
    server.kill()
    assert (await store.push(b"1", topic="known"))[0].buffered
    with pytest.raises(TopicNotFound):
        await store.push(b"1", topic="unknown")
    await server.start()


async def test_push_to_a_new_topic_is_kept_when_the_database_falls_silent(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url, deadline_ms_max=1000)
    await store.push(b"0", topic="old")
    missed = 0

    def count() -> None:
        nonlocal missed
        missed += 1

    monkeypatch.setattr(store.spill.deadline, "missed", count)
    server.kill(signal.SIGSTOP)
    assert (await store.push(b"1", topic="new"))[0].buffered
    assert missed == 1, "one deadline, not one for the topic and one for the push"
    server.kill(signal.SIGCONT)
    await store.drained()
    assert await store.values("new") == [b"1"]
    assert store.database.topic(TopicName("new")) is not None


async def test_live_push_queues_behind_what_was_spilled(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Spilling = await opened(server.url)
    await store.create(partitions=2)
    server.kill()
    await store.push(*(b"%d" % number for number in range(5000)), partition=0)
    monkeypatch.setattr(store.spill.replayer, "_step_max", 1000)
    stored, is_asked = store.database.replaying.store, asyncio.Event()

    async def one_first(*given: Any) -> int:
        if store.spill.stats.replayed_events:
            await is_asked.wait()
        return await stored(*given)

    monkeypatch.setattr(store.database.replaying, "store", one_first)
    await server.start()
    await until(lambda: store.spill.is_healthy)
    pushed = [(await store.push(b"live %d" % number, partition=0))[0] for number in range(20)]
    assert pushed[0].buffered, "it is behind the others"
    assert not (await store.push(b"other", partition=1))[0].buffered, "nothing is before it"
    is_asked.set()
    await store.drained()
    await store.push(b"last", partition=0)
    expected = [b"%d" % number for number in range(5000)] + [b"live %d" % number for number in range(20)] + [b"last"]
    assert await store.values(partition=0) == expected


async def test_ids_are_recognised_across_the_spill(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    await store.push(b"a", ids=["a"])
    server.kill()
    await store.push(b"a", b"b", ids=["a", "b"])
    await store.push(b"b", ids=["b"])
    await server.start()
    await store.drained()
    assert await store.values() == [b"a", b"b"]


async def test_broker_that_knew_the_topics_divides_them_as_before_without_its_database(
    opened: Open, server: Server
) -> None:
    store = await opened(server.url)
    await store.create("t", partitions=4)
    assert (store.directory / "topics.json").exists(), "a broker killed now knows it when it starts"
    await store.stop()
    server.kill()
    again = await opened(server.url)
    [published] = await again.push(b"1", partition=3)
    assert published.buffered and published.partition == 3
    assert len(again.broker.describe_topic("t").partitions) == 4
    await server.start()
    await again.drained()
    assert await again.values(partition=3) == [b"1"]
