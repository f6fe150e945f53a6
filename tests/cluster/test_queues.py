"""Numbered queues through three nodes: numbers, pointers and leaders are the cluster's, not a node's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.broker.queues import Queues
from holdfast.frontends.http.queue_brokers import broker_ids, info_of
from tests.cluster.nodes import running, until


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
