"""Numbered queues through three nodes: numbers, pointers and leaders are the cluster's, not a node's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from testkit.inprocess import Clock, OneNode, running
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.broker.broker import Broker
from holdfast.broker.queues import Queues
from holdfast.frontends.http.queue_brokers import broker_ids, info_of
from holdfast.model.errors import RequestOutdated
from holdfast.model.topics import TopicConfig


async def test_queues_and_pointers_are_the_same_through_every_node(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        queues = {name: Queues(broker, f"session-{name}") for name, broker in nodes.brokers.items()}
        made = await asyncio.gather(*(each.create() for each in queues.values() for _ in range(3)))
        assert sorted(made) == list(range(1, 10))
        # Whoever did not create a queue knows it all the same, and appends are one row.
        first, second, third = queues.values()
        appended = [
            published.offset
            for number in range(30)
            for published in [await (first, second, third)[number % 3].append(9, b"%d" % number, f"id-{number}")]
        ]
        assert appended == list(range(30))
        assert [(await each.append(9, b"7", "id-7")).offset for each in queues.values()] == [7, 7, 7]
        # Readers of one client, through all nodes at once, and each of them with a request that comes twice.
        reads = [
            each.reads.read(9, "c", f"{name}:{number}" if number % 2 else None)
            for name, each in queues.items()
            for number in range(10)
        ]
        found = await asyncio.gather(*reads)
        values = [int(message.value) for message in found if message is not None]
        assert sorted(values) == list(range(30))
        for name, each in queues.items():
            again = await each.reads.read(9, "c", f"{name}:9")
            other = await queues[nodes.another_than(name)].reads.read(9, "c", f"{name}:9")
            assert again is not None and other is not None and again.offset == other.offset
        assert [await each.reads.read(9, "c", None) for each in queues.values()] == [None, None, None]


async def test_request_sent_to_two_nodes_at_the_same_time_makes_one_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Broker.create_topic
    async with running(tmp_path) as nodes:
        slow, fast, _ = nodes.brokers.values()
        has_drawn, overtaken = asyncio.Event(), asyncio.Event()

        async def overtaken_by_the_other_node(broker: Broker, *wanted: Any) -> Any:
            if broker is slow:
                has_drawn.set()
                await overtaken.wait()
            return await create(broker, *wanted)

        monkeypatch.setattr(Broker, "create_topic", overtaken_by_the_other_node)
        first = asyncio.ensure_future(Queues(slow, "slow").create("a:1"))
        await has_drawn.wait()
        assert await Queues(fast, "fast").create("a:1") == 1
        overtaken.set()
        assert await first == 1
        queues = Queues(fast, "later")
        assert [queues.ids(), await queues.create("a:1"), await queues.create("a:2")] == [[1], 1, 2]


async def test_read_that_was_told_that_there_is_nothing_takes_nothing_when_it_arrives_late_elsewhere(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as nodes:
        first, late, third = (Queues(broker, f"session-{name}") for name, broker in nodes.brokers.items())
        number = await first.create()
        assert await first.reads.read(number, "c", "w:1") is None
        assert await third.reads.read(number, "c", "v:7") is None
        assert await third.reads.read(number, "c", "v:8") is None
        await first.append(number, b"1", None)
        assert await late.reads.read(number, "c", "w:1") is None
        with pytest.raises(RequestOutdated):
            await late.reads.read(number, "c", "v:7")
        found = await first.reads.read(number, "c", "w:2")
        assert found is not None and found.offset == 0


async def test_queue_that_was_made_anew_within_the_same_moment_has_its_own_messages(tmp_path: Path) -> None:
    node = OneNode(tmp_path / "n1", Clock(1_700_000_000_000))
    await node.open()
    broker = node.broker
    queues = Queues(broker, "session")
    await queues.create()
    for value in (b"old", b"new"):
        await queues.append(1, value, None)
        found = await queues.reads.read(1, "c", None)
        assert found is not None and found.value == value
        await broker.delete_topic("queue-1")
        await broker.create_topic("queue-1", TopicConfig(partitions=1))
    await node.stop()


async def test_exactly_one_node_says_that_it_leads(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:

        async def leaders() -> list[object]:
            told = [info_of(await broker.cluster()) for broker in nodes.brokers.values()]
            assert sorted(str(info.broker_id) for info in told) == ["1", "2", "3"]
            assert len({info.leader_id for info in told}) == 1
            return [info.broker_id for info in told if info.is_leader]

        [before] = await leaders()
        assert before is not None
        await nodes.stop(f"n{before}")
        await until(lambda: any(each.control.replica.leads for each in nodes.backends.values()))
        told = [info_of(await broker.cluster()) for broker in nodes.brokers.values()]
        assert [info.is_leader for info in told].count(True) == 1


def test_brokers_have_numbers_only_where_no_two_can_be_mistaken() -> None:
    assert broker_ids(["n1", "n2", "node10"]) == {"n1": 1, "n2": 2, "node10": 10}
    assert broker_ids(["n1", "m1"]) == {"n1": "n1", "m1": "m1"}
    assert broker_ids(["n1", "main"]) == {"n1": "n1", "main": "main"}


async def test_node_that_was_restarted_gives_and_forgets_the_same_as_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        queues = {name: Queues(broker, f"session-{name}") for name, broker in nodes.brokers.items()}
        number = await queues["n1"].create("setup:1")
        for value in range(12):
            await queues["n1"].append(number, b"%d" % value, None)
        read = {reader: await queues["n1"].reads.read(number, "c", f"{reader}:1") for reader in ("a", "b", "d")}
        await nodes.stop("n2")
        read["a"] = await queues["n1"].reads.read(number, "c", "a:2")
        await nodes.start("n2")
        queues["n2"] = Queues(nodes.brokers["n2"], "session-later")
        for name in nodes.brokers:
            assert await queues[name].create("setup:1") == number
            again = {
                reader: await queues[name].reads.read(number, "c", f"{reader}:{2 if reader == 'a' else 1}")
                for reader in read
            }
            assert again == read
            with pytest.raises(RequestOutdated):
                await queues[name].reads.read(number, "c", "a:1")
        # New draws through each of them, decided by whoever leads: none may see another row than the others.
        for place, name in enumerate(nodes.brokers):
            found = await queues[name].reads.read(number, "c", f"later-{name}:1")
            assert found is not None and found.offset == 4 + place
        await asyncio.gather(*(backend.catch_up_cursors() for backend in nodes.backends.values()))
        tables = [_cursors_and_draws(backend) for backend in nodes.backends.values()]
        assert tables[0] and all(table == tables[0] for table in tables)


def _cursors_and_draws(backend: ClusterBackend) -> dict[object, object]:
    found: dict[object, object] = {}
    for key, cursor in backend.state.cursors._cursors.items():
        # The order of the rows is who is forgotten next.
        draws = {place: list(table._last.items()) for place, table in cursor.draws.items()}
        found[key] = (cursor.decided, draws)
    return found
