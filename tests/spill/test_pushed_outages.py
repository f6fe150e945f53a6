"""Pushes while the store is away: kept as the columns they are, and stored as such, once and in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import inspecting
from holdfast.backends.spill.appending import Room
from holdfast.broker import admit
from holdfast.model.errors import DiskFull
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.push_ids import push_ids
from holdfast.wire.push_batch import Pushed
from tests.postgres.stores import query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling

NAMES = [f"customer-{place}" for place in range(7)]


def push_of(numbers: Sequence[int], names: Sequence[str] = NAMES) -> Pushed:
    """A push whose messages say in their values who they are."""
    of_each = [names[number % len(names)] for number in numbers]
    transactions = [f"t{number}" for number in numbers]
    values = [b'{"number":%d}' % number for number in numbers]
    return Pushed(of_each, values, push_ids(of_each, transactions), transactions, [None] * len(values))


async def stored(url: str, queue: str) -> dict[int, list[int]]:
    """By partition, the numbers that stand there; checks that they are rows of pushes."""
    rows = await query(
        url,
        "SELECT partition, (payload::jsonb ->> 'number')::integer, transaction_id FROM holdfast.queue_messages "
        f"WHERE queue = '{queue}' ORDER BY partition, \"offset\"",
    )
    found: dict[int, list[int]] = {}
    for partition, number, transaction_id in rows:
        assert transaction_id == f"t{number}"
        found.setdefault(partition, []).append(number)
    others = await query(url, "SELECT count(*) FROM holdfast.messages WHERE headers IS NOT NULL OR id_uuid IS NULL")
    assert others[0][0] == 0, "each of them is a pushed message, with its columns"
    return found


def expected(store: Spilling, queue: str, numbers: Sequence[int]) -> dict[int, list[int]]:
    topic = store.spill.topic(TopicName(queue))
    assert topic is not None
    of_name = admit.numbers_of(topic, NAMES)
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(of_name[NAMES[number % len(NAMES)]], []).append(number)
    return dict(sorted(found.items()))


async def test_namespace_and_task_of_a_push_survive_an_outage(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create("t")
    server.kill()
    pushed = push_of(range(3))._replace(labels=[("sales", "process"), ("", ""), ("", "daily")])
    [(places, fate)] = await store.broker.publish_pushed("t", pushed)
    assert len(places) == 3 and not isinstance(fate, BaseException) and fate.buffered
    told = [json.loads(line) for line in inspecting.exported(store.directory, "t")]
    assert [(each["namespace"], each["task"]) for each in told] == [("sales", "process"), ("", ""), ("", "daily")]
    await server.start()
    await store.drained()
    messages, _ = await store.broker.read("t", 0, Offset(0), 10, 1 << 20)
    assert [{name: text for name, text in each.headers if name in ("namespace", "task")} for each in messages] == [
        {"namespace": b"sales", "task": b"process"},
        {},
        {"task": b"daily"},
    ]


async def test_pushes_are_stored_once_and_in_order_wherever_storing_them_is_cut_off(
    opened: Open, server: Server
) -> None:
    store = await opened(server.url, events_per_file=3000)
    await store.create("t", partitions=3)
    server.kill()
    for first in range(0, 12_000, 1000):
        parts = await store.broker.publish_pushed("t", push_of(range(first, first + 1000)))
        assert all(not isinstance(fate, BaseException) and fate.buffered for _, fate in parts)
        assert sorted(place for places, _ in parts for place in places) == list(range(1000))
        await store.broker.publish_pushed("new", push_of(range(first, first + 10)))
    # Somebody who did not hear the answer sends it again.
    await store.broker.publish_pushed("t", push_of(range(2000, 4000)))
    assert store.spill.pending == 12_000 + 120 + 2000
    for _ in range(3):
        replayed = store.spill.stats.replayed_events
        await server.start()
        await until(lambda before=replayed: store.spill.stats.replayed_events > before)  # type: ignore[misc]
        server.kill()
    await server.start()
    await store.drained()
    assert await stored(server.url, "t") == expected(store, "t", range(12_000))
    assert await stored(server.url, "new") == {
        0: [number for first in range(0, 12_000, 1000) for number in range(first, first + 10)]
    }


async def test_push_to_partitions_of_which_one_waits_goes_its_two_ways(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    store = await opened()
    await store.create("t", partitions=3)
    await store.drained()
    topic = store.spill.topic(TopicName("t"))
    assert topic is not None
    of_name = admit.numbers_of(topic, NAMES)
    monkeypatch.setattr(store.spill.replayer, "run_once", never)
    waits = of_name[NAMES[0]]
    alone = push_of([0], NAMES[:1])
    store.spill.health.is_well = False
    [(_, fate)] = await store.broker.publish_pushed("t", alone)
    assert not isinstance(fate, BaseException) and fate.buffered
    store.spill.health.is_well = True
    parts = await store.broker.publish_pushed("t", push_of(range(70)))
    assert len(parts) == len(set(of_name.values())) > 1
    for places, fate in parts:
        assert not isinstance(fate, BaseException)
        assert fate.buffered == (of_name[NAMES[places[0] % len(NAMES)]] == waits)
    assert store.spill.waiting.is_waiting(PartitionId(TopicName("t"), waits))


async def test_push_that_finds_no_room_is_refused_and_waited_for_by_nobody(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room")

    store = await opened()
    await store.create("t", partitions=3)
    await store.drained()
    store.spill._give_up("a test")
    with monkeypatch.context() as patched:
        patched.setattr(Room, "check", full)
        with pytest.raises(DiskFull):
            await store.broker.publish_pushed("t", push_of(range(20)))
    assert store.spill.stats.refused_pushes == 1
    await store.drained()
    assert not store.spill.waiting.total
    [*parts] = await store.broker.publish_pushed("t", push_of(range(20)))
    assert not any(isinstance(fate, BaseException) or fate.buffered or fate.duplicates for _, fate in parts)
