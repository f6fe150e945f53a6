"""Several brokers over one database keep messages that alternate in time: all are stored soon, in one order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill.events import Event
from holdfast.backends.spill.merging import Head, Run, before, merge
from holdfast.model.errors import TopicNotFound, Unavailable
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.spill import Chunk
from tests.postgres.stores import now_ms, query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling

POISON = """
CREATE FUNCTION no_poison() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.value = 'poison' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '22023'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER no_poison BEFORE INSERT ON holdfast.messages FOR EACH ROW EXECUTE FUNCTION no_poison()
"""


class Clock:
    """One clock for all brokers of a test, which moves when the test says so."""

    def __init__(self) -> None:
        self.ms = int(now_ms())

    def __call__(self) -> TimestampMs:
        return TimestampMs(self.ms)


async def brokers(opened: Open, server: Server, tmp_path: Path, clock: Clock, count: int) -> list[Spilling]:
    """They know the topic and each other, and then the database is gone."""
    made = [await opened(server.url, directory=tmp_path / name, node=name, clock=clock) for name in "abcde"[:count]]
    await made[0].create()
    await until(lambda: all(each.database.topic(TopicName("t")) is not None for each in made))
    await until(lambda: all(each.database.holding.beat_s is not None for each in made))
    server.kill()
    await until(lambda: not any(each.database.database.is_up for each in made))
    return made


def count_stores(made: list[Spilling], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each transaction had that stored kept ones."""
    counts: list[int] = []

    def counted(store: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(*given: Any) -> Any:
            found = await store(*given)
            counts.append(len(given[2]))
            return found

        return noted

    for each in made:
        monkeypatch.setattr(each.database.replaying, "store", counted(each.database.replaying.store))
    return counts


async def test_messages_that_alternate_between_brokers_are_stored_by_time_and_not_one_by_one(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, count = Clock(), 5
    made = await brokers(opened, server, tmp_path, clock, count)
    for number in range(600):
        clock.ms += 1
        await made[number % count].push(b"%d" % number)
    transactions = count_stores(made, monkeypatch)
    await server.start()
    await asyncio.gather(*(each.drained() for each in made))
    assert await made[0].values() == [b"%d" % number for number in range(600)]
    assert len(transactions) < 100, "one transaction for each message would take minutes"
    assert sum(each.spill.file_buffer().flushed for each in made) == 600


async def test_messages_of_one_millisecond_are_stored_broker_by_broker_in_the_order_of_names(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    clock = Clock()
    made = await brokers(opened, server, tmp_path, clock, 2)
    for number in range(40):
        await made[1 - number % 2].push(b"%d" % number)
    await server.start()
    await asyncio.gather(*(each.drained() for each in made))
    expected = [*range(1, 40, 2), *range(0, 40, 2)]
    assert await made[0].values() == [b"%d" % number for number in expected]


async def test_messages_of_topics_that_other_brokers_do_not_know_are_not_left_behind(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    made = await brokers(opened, server, tmp_path, clock, 2)
    for number in range(300):
        clock.ms += 1
        await made[number % 2].push(b"%d" % number, topic=("of-a", "of-b")[number % 2] if number % 3 else "t")
    transactions = count_stores(made, monkeypatch)
    await server.start()
    await asyncio.gather(*(each.drained() for each in made))
    assert len(transactions) < 50
    assert await made[1].values() == [b"%d" % number for number in range(0, 300, 3)]
    await until(lambda: made[1].database.topic(TopicName("of-a")) is not None)
    assert await made[1].values("of-a") == [b"%d" % number for number in range(0, 300, 2) if number % 3]
    assert await made[1].values("of-b") == [b"%d" % number for number in range(1, 300, 2) if number % 3]


async def test_line_that_the_database_never_takes_costs_that_line_and_no_other_broker_anything(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    clock = Clock()
    made = await brokers(opened, server, tmp_path, clock, 2)
    for number in range(60):
        clock.ms += 1
        await made[number % 2].push(b"poison" if number == 31 else b"%d" % number)
    await server.start()
    connection = await asyncpg.connect(server.url)
    await connection.execute(POISON)
    await connection.close()
    await asyncio.gather(*(each.drained() for each in made))
    assert await made[0].values() == [b"%d" % number for number in range(60) if number != 31]
    assert [each.spill.stats.failed_events for each in made] == [0, 1]


async def test_broker_that_dies_after_it_offered_its_messages_stores_them_once_when_it_is_back(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    clock = Clock()
    made = await brokers(opened, server, tmp_path, clock, 2)
    for number in range(100):
        clock.ms += 1
        await made[number % 2].push(b"%d" % number)
    await server.start()
    await until(lambda: made[1].spill.pending < 50)
    await made[1].stop()
    again = await opened(server.url, directory=tmp_path / "b", node="b", clock=clock)
    await asyncio.gather(made[0].drained(), again.drained())
    assert await made[0].values() == [b"%d" % number for number in range(100)]


async def test_message_set_aside_by_a_broker_that_dies_before_its_offer_is_merged_is_stored_once(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker noted while it offered its lines holds when it is back, whatever can be stored by then."""
    clock = Clock()
    made = await brokers(opened, server, tmp_path, clock, 2)

    async def refuse(name: TopicName) -> None:
        raise TopicNotFound(f"there is no topic {name}")

    real = made[0].database.replaying.store

    async def away(*given: Any) -> int:
        raise Unavailable("it stores nothing yet")

    async def alone(*given: Any) -> int:
        return await (away if given[3] else real)(*given)

    made[1].spill.create_with(refuse)
    for number in range(40):
        clock.ms += 1
        await made[number % 2].push(b"%d" % number, topic="new" if number % 4 == 1 else "t")
    with monkeypatch.context() as held:
        held.setattr(made[0].database.replaying, "store", alone)
        held.setattr(made[1].database.replaying, "store", away)
        await server.start()
        await until(lambda: made[1].spill.stats.failed_events == 10)
        await made[1].stop()
    again = await opened(server.url, directory=tmp_path / "b", node="b", clock=clock)
    await until(lambda: again.spill.waiting.is_known and not again.spill.stats.failed_events)
    await asyncio.gather(made[0].drained(), again.drained())
    assert sorted(await again.values("new"), key=int) == [b"%d" % number for number in range(1, 40, 4)]
    assert sorted(await again.values(), key=int) == [b"%d" % number for number in range(40) if number % 4 != 1]


async def test_lines_that_brokers_offer_each_other_do_not_fill_the_database(opened: Open, server: Server) -> None:
    """Autovacuum is off, as if it came too late."""
    store = await opened(server.url)
    await store.create()
    replaying, file = store.database.replaying, uuid4()
    await until(lambda: store.database.holding.beat_s is not None)
    lines = os.urandom(1 << 20)
    for number in range(300):
        await replaying.offer(Chunk(file, number, number + 1, 1), lines, 1, number)
    [[size_bytes]] = await query(server.url, "SELECT pg_total_relation_size('holdfast.spill_chunks')")
    assert size_bytes < 150 << 20
    await replaying.forget([])
    assert await query(server.url, "SELECT FROM holdfast.spill_chunks") == []


# --- the order ------------------------------------------------------------------------------------


def event(at_ms: int) -> Event:
    return Event(queue="t", partition="Default", number=0, time=at_ms, at=at_ms, payload=Raw(b"1"))


lines = st.lists(st.one_of(st.none(), st.integers(1, 12)), max_size=12).map(
    lambda times: [None if each is None else event(each) for each in sorted_but(times)]
)


def sorted_but(times: list[int | None]) -> list[int | None]:
    """Times rise within a file; lines that cannot be read have none."""
    rising = iter(sorted(each for each in times if each is not None))
    return [None if each is None else next(rising) for each in times]


@given(st.lists(lines, min_size=1, max_size=4), st.lists(st.tuples(st.integers(1, 12), st.integers(5, 6))))
def test_batch_is_the_beginning_of_the_one_order_of_all_messages(
    runs_given: list[list[Event | None]], heads_given: list[tuple[int, int]]
) -> None:
    runs = [Run((str(number), ""), events) for number, events in enumerate(runs_given)]
    heads: list[Head] = [(at_ms, (str(number), "")) for at_ms, number in heads_given]
    found = merge(runs, heads, 1_000)
    for run, taken in zip(runs, found.taken, strict=True):
        assert taken <= len(run.events)
    merged = [each for each in found.events if each is not None]
    assert len(found.events) == sum(found.taken)
    assert [each.at for each in merged] == sorted(each.at for each in merged)
    # Nothing that is left, or may come yet, belongs before what is stored.
    if merged:
        last_ms = merged[-1].at
        assert all(last_ms <= at_ms for at_ms, _ in heads)
        for run, taken in zip(runs, found.taken, strict=True):
            assert all(last_ms <= each.at for each in run.events[taken:] if each is not None)
            if run.events and taken == len(run.events):
                ats = [each.at for each in run.events if each is not None]
                assert not ats or last_ms <= max(ats), "what follows on this run may be next"


def test_lines_before_a_head_are_counted() -> None:
    events = [None, event(1), event(2), None, event(2), event(3)]
    assert before(events, ("a", ""), (2, ("b", ""))) == 5, "of one time, the lower rank comes first"
    assert before(events, ("c", ""), (2, ("b", ""))) == 2
    assert before(events, ("a", ""), (9, ("b", ""))) == 6
