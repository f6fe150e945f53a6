"""Stores that are there and yet not well: slow, full, replaced, or changed by others meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import structlog
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill.deadline import AdaptiveDeadline
from holdfast.model.errors import BadMessage, Unavailable
from holdfast.model.ids import TopicName
from holdfast.model.topics import TopicConfig
from tests.postgres.stores import query
from tests.spill.conftest import Open

SLOW_WRITES = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON holdfast.writers FOR EACH ROW EXECUTE FUNCTION slow()
"""
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER no_room BEFORE INSERT ON holdfast.messages FOR EACH STATEMENT EXECUTE FUNCTION no_room()
"""


async def run_script(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statements)
    await connection.close()


async def test_brokers_that_were_there_before_are_waited_for_though_the_store_was_back_for_a_moment(
    opened: Open, url: str
) -> None:
    store = await opened()
    holding, replaying = store.database.replaying._holding, store.database.replaying
    await until(lambda: holding.beat_s is not None)
    await query(
        url,
        "INSERT INTO holdfast.brokers (broker_id, name, addresses, processes, coordinates, seen_at) "
        "SELECT $1, 'other', addresses, false, false, clock_timestamp() - interval '30 seconds' "
        "FROM holdfast.brokers LIMIT 1",
        uuid4(),
    )
    # Lost half a minute ago, there for a moment twenty seconds later, and lost again.
    for ago_s in (30, 10):
        holding.beat_s = time.monotonic() - ago_s
        replaying._on_down()
    await replaying.probe()
    back_s = replaying._back_s
    await until(lambda: (holding.beat_s or 0) >= back_s)
    assert not (await replaying.others(uuid4())).is_known


def test_deadline_rises_where_nobody_is_answered_and_falls_as_pushes_are() -> None:
    deadline = AdaptiveDeadline(0.2, 2.0)
    for _ in range(30):
        deadline.note(0.001)
    assert deadline.seconds == 0.2
    risen = []
    for _ in range(6):
        deadline.missed()
        risen.append(deadline.seconds)
    assert risen == [0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    deadline.note(0.001)
    assert deadline.seconds > 1.0, "one that was fast says little"
    for _ in range(30):
        deadline.note(0.001)
    assert deadline.seconds == 0.2
    deadline.missed()
    for _ in range(30):
        assert deadline.seconds > 0.3, "nobody who takes as long as others do is given up"
        deadline.note(0.3)


async def test_store_that_becomes_slower_than_was_learnt_is_used_again(opened: Open, url: str) -> None:
    """Everything it does takes longer than pushes had so far, and less than they may have."""
    store = await opened(deadline_ms_min=50, deadline_ms_max=20_000)
    await store.create()
    for _ in range(30):
        await store.push(b"fast")
    # As a machine without load would have learnt it.
    store.spill.deadline._mean_s, store.spill.deadline._spread_s = 0.001, 0.0
    await run_script(url, SLOW_WRITES)
    assert (await store.push(b"slow"))[0].buffered
    await until(lambda: store.spill.is_healthy)
    await store.drained()
    assert not (await store.push(b"slow"))[0].buffered
    assert len(await store.values()) == 32


async def test_store_that_refuses_messages_is_said_to_be_back_when_it_takes_them(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers all the time whether it takes writes, and says yes."""
    store = await opened(retry_interval_s=0.02)
    await store.create()
    await store.create("other")
    await run_script(url, NO_ROOM)
    tried, stored = 0, store.database.replaying.store

    async def counted(*given: Any) -> int:
        nonlocal tried
        tried += 1
        return await stored(*given)

    monkeypatch.setattr(store.database.replaying, "store", counted)
    with structlog.testing.capture_logs() as logs:
        assert (await store.push(b"1"))[0].buffered
        await until(lambda: tried > 5)
        assert (await store.push(b"2", topic="other"))[0].buffered
        told = Counter(line["event"] for line in logs)
        assert (told["spill_began"], told["spill_store_recovered"], store.spill.stats.outages) == (1, 0, 1)
        assert not store.spill.is_healthy
        await query(url, "DROP TRIGGER no_room ON holdfast.messages")
        await store.drained()
    told = Counter(line["event"] for line in logs)
    assert (told["spill_began"], told["spill_store_recovered"]) == (1, 1)
    assert (await store.values(), await store.values("other")) == ([b"1"], [b"2"])


async def test_store_that_takes_little_at_once_gets_what_it_takes(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    values = [b"%d" % number for number in range(1000)]
    await store.push(*values)
    stored, reached = store.database.replaying.store, 0

    async def slow(file: UUID, number: int, *more: Any) -> int:
        nonlocal reached
        if number - reached > 100:
            raise Unavailable("it did not answer in time")
        repeated = await stored(file, number, *more)
        reached = number
        return repeated

    monkeypatch.setattr(store.database.replaying, "store", slow)
    await server.start()
    await store.drained()
    assert await store.values() == values


async def test_push_does_not_overtake_what_a_store_lacks_that_took_the_place_of_another(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers with fewer lines of a file than were stored; they wait again, and are waited for."""
    store = await opened(server.url)
    partition = await store.create()
    server.kill()
    values = [b"%d" % number for number in range(1000)]
    await asyncio.gather(*(store.push(value) for value in values))
    monkeypatch.setattr("holdfast.backends.spill.replay._STEP_EVENTS_MAX", 100)
    monkeypatch.setattr("holdfast.backends.spill.replay._STEP_EVENTS_BESIDE_TRAFFIC", 100)
    stored, steps = store.database.replaying.store, 0
    was_waiting: list[bool] = []

    async def replaced(*given: Any) -> int:
        nonlocal steps
        steps += 1
        if steps == 7:
            await run_script(
                server.url,
                "UPDATE holdfast.writers SET number = 0; DELETE FROM holdfast.messages; "
                "UPDATE holdfast.partitions SET next_offset = 0",
            )
            raise Unavailable("another server took its place")
        was_waiting.append(store.spill.waiting.is_waiting(partition))
        return await stored(*given)

    monkeypatch.setattr(store.database.replaying, "store", replaced)
    await server.start()
    await store.drained()
    assert steps > 10 and all(was_waiting)
    assert await store.values() == values


async def test_topic_that_others_deleted_unheard_is_made_anew_for_what_waits(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener is slow to come back, so this broker takes the topic to be there."""
    store = await opened(server.url, retry_interval_s=60.0)
    await store.create()
    server.kill()
    values = [b"%d" % number for number in range(100)]
    await store.push(*values)
    before = store.database.topic(TopicName("t"))
    read_all, may_hear = store.database.notices.read_all, asyncio.Event()

    async def deaf(*given: Any) -> None:
        await may_hear.wait()
        await read_all(*given)

    monkeypatch.setattr(store.database.notices, "read_all", deaf)
    probe, is_deleted = store.database.replaying.probe, asyncio.Event()

    async def later() -> None:
        await is_deleted.wait()
        await probe()

    monkeypatch.setattr(store.database.replaying, "probe", later)
    await server.start()
    await run_script(server.url, "DELETE FROM holdfast.topics WHERE name = 't'")
    assert store.database.topic(TopicName("t")) == before
    is_deleted.set()
    await store.drained()
    may_hear.set()
    assert store.spill.stats.failed_events == 0
    assert await store.values() == values


async def test_store_that_goes_away_while_a_topic_is_made_is_no_bug(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"1")
    await store.push(b"2", topic="new")
    asked = 0

    async def away(name: TopicName, config: TopicConfig, maker: str = "") -> None:
        nonlocal asked
        asked += 1
        raise Unavailable("the database is away")

    with structlog.testing.capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(store.database, "create_topic", away)
            await server.start()
            await until(lambda: asked > 2)
        await store.drained()
    assert "spill_replay_bug" not in {line["event"] for line in logs}
    assert (await store.values(), await store.values("new")) == ([b"1"], [b"2"])


async def test_message_that_the_database_never_takes_is_refused_and_is_no_outage(opened: Open, url: str) -> None:
    # A busy machine is no outage either.
    store = await opened(deadline_ms_min=60_000, deadline_ms_max=60_000)
    await store.create()
    await run_script(url, "ALTER TABLE holdfast.messages ADD CHECK (value <> 'bad'::bytea)")
    bad, good = await asyncio.gather(store.push(b"bad"), store.push(b"good"), return_exceptions=True)
    assert isinstance(bad, BadMessage) and "does not take it" in bad.message
    assert not isinstance(good, BaseException) and not good[0].buffered
    assert store.spill.stats.outages == store.spill.stats.failed_events == 0
    assert await store.values() == [b"good"]
