"""A coordinator whose node is behind: what it has not heard of yet is not gone, and nothing decided is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.inprocess import running
from testkit.postgres import database_for
from testkit.reading import values_in
from testkit.wait import until

from holdfast.backends.cluster.commands import CreateTopic
from holdfast.broker.broker import Broker
from holdfast.model.errors import CommitPending, NoQuorum, TopicNotFound
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import BatchPublished
from holdfast.model.topics import Topic, TopicConfig
from holdfast.transactions.copying import Copying
from holdfast.transactions.service import Transactions
from holdfast.wire import stamps
from holdfast.wire.transactions import DECISIONS
from tests.postgres.stores import stored
from tests.transactions.desk import Desk, W, stage_values, transacting, writer_of


async def commit_while_behind(
    through: Broker, transactions: Transactions, behind: Any, writer: str, release: Callable[[], None]
) -> None:
    """Make a topic and commit to it, while the node of the writer's coordinator has not heard of the topic."""
    await through.create_topic("late", TopicConfig())
    receipt = await stage_values(transactions, 0, b"row", writer=writer, topic="late")
    assert behind.topic("late") is None
    asked, real = asyncio.Event(), behind.catch_up_cursors

    async def catch_up_cursors() -> None:
        asked.set()
        await real()

    behind.catch_up_cursors = catch_up_cursors
    committing = asyncio.ensure_future(transactions.commit(writer, 0, [receipt]))
    asking = asyncio.ensure_future(asked.wait())
    await asyncio.wait({committing, asking}, return_when=asyncio.FIRST_COMPLETED)
    assert not committing.done(), "it is not known yet whether the topic is gone"
    assert await values_in(through, "late") == []
    release()
    assert not (await committing).duplicate
    assert await values_in(through, "late") == [b"row"]


async def test_topic_that_the_coordinators_node_has_not_heard_of_gets_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as nodes, transacting(nodes.brokers) as made:
        await made["n1"].commit("warm", 0, [])
        await until(lambda: any(each.control.replica.leads for each in nodes.backends.values()))
        control = next(name for name, each in nodes.backends.items() if each.control.replica.leads)
        leaders = [await nodes.leader(DECISIONS, number) for number in range(8)]
        coordinator = next(number for number, leader in enumerate(leaders) if leader != control)
        behind = nodes.backends[leaders[coordinator]]
        released, apply = asyncio.Event(), behind.control._apply

        async def slow(command: Any, number: int) -> Any:
            if isinstance(command, CreateTopic):
                await released.wait()
            return await apply(command, number)

        monkeypatch.setattr(behind.control, "_apply", slow)
        await commit_while_behind(
            nodes.brokers[control], made[control], behind, writer_of(coordinator), lambda: released.set()
        )


async def test_topic_that_the_holding_broker_has_not_heard_of_gets_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database_for(tmp_path)
    async with (
        stored(url, "n1") as one,
        stored(url, "n2") as two,
        transacting({"n1": one.broker, "n2": two.broker}) as made,
    ):
        await made["n1"].commit("warm", 0, [])

        def held() -> list[int]:
            return [number for number in range(8) if two.backend.reign(PartitionId(DECISIONS, number)) is not None]

        await until(lambda: len(held()) == 4)
        released, load = asyncio.Event(), two.backend.notices._topics.load

        async def slow(topic_id: int) -> None:
            await released.wait()
            await load(topic_id)

        monkeypatch.setattr(two.backend.notices._topics, "load", slow)
        await commit_while_behind(one.broker, made["n1"], two.backend, writer_of(held()[0]), lambda: released.set())


async def test_commit_waits_while_nobody_can_tell_whether_its_topic_is_gone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.create()
    await desk.commit(0)
    receipt = await desk.stage(1, b"row")
    await desk.reopen(commit_wait_ms=100)
    backend = desk.broker.backend
    decided = backend.end_offset(PartitionId(DECISIONS, W))
    real_topic, real_catch_up, has_quorum = backend.topic, backend.catch_up_cursors, False

    def is_behind() -> bool:
        return not has_quorum and backend.end_offset(PartitionId(DECISIONS, W)) > decided

    def topic(name: TopicName) -> Topic | None:
        return None if name == "t" and is_behind() else real_topic(name)

    async def catch_up_cursors() -> None:
        if is_behind():
            raise NoQuorum("no majority answers")
        await real_catch_up()

    monkeypatch.setattr(backend, "topic", topic)
    monkeypatch.setattr(backend, "catch_up_cursors", catch_up_cursors)
    with pytest.raises(CommitPending):
        await desk.commit(1, receipt)
    assert desk.transactions.stats.restarts > 0
    has_quorum = True
    await until(lambda: desk.transactions.stats.committed == 1)
    assert await desk.values() == [b"row"]
    assert (await desk.commit(1, receipt)).duplicate


@pytest.mark.parametrize("desk", ["alone-spill", "postgres-spill"], indirect=True)
async def test_topic_that_a_spill_only_takes_to_be_there_costs_no_row(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its store is away a spill takes a topic that it does not know to be there: not the one that is meant."""
    await desk.create()
    receipt = await desk.stage(0, b"row")
    spill: Any = desk.broker.backend
    inner = spill.inner
    real_whole, real_topic, real_catch_up, is_behind = Copying.is_whole, inner.topic, inner.catch_up_cursors, False
    taken: list[Topic | None] = []

    async def is_whole(self: Copying) -> bool:
        nonlocal is_behind
        if not taken:
            is_behind = True
            spill._give_up("it does not answer")
            taken.append(spill.topic(TopicName("t")))
        return await real_whole(self)

    async def catch_up_cursors() -> None:
        nonlocal is_behind
        await real_catch_up()
        is_behind = False

    monkeypatch.setattr(Copying, "is_whole", is_whole)
    monkeypatch.setattr(inner, "topic", lambda name: None if name == "t" and is_behind else real_topic(name))
    monkeypatch.setattr(inner, "catch_up_cursors", catch_up_cursors)
    assert not (await desk.commit(0, receipt)).duplicate
    assert [each.token for each in taken if each is not None] == [""]
    assert await desk.values() == [b"row"]


@pytest.mark.parametrize("is_said_at_once", [True, False])
async def test_node_that_does_not_find_a_topic_that_is_there_costs_no_row(
    desk: Desk, is_said_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.create()
    receipts = [await desk.stage(0, b"%d" % i) for i in range(3)]
    real, refused = desk.broker.publisher.publish_own, 0

    def publish_own(partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        nonlocal refused
        if not stamps.is_stamped(batch) or refused:
            return real(partition, batch)
        refused += 1
        missing = TopicNotFound(f"there is no partition {partition}")
        if is_said_at_once:
            raise missing
        answer: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        answer.set_exception(missing)
        return answer

    monkeypatch.setattr(desk.broker.publisher, "publish_own", publish_own)
    assert not (await desk.commit(0, *receipts)).duplicate
    assert refused == 1
    assert await desk.values() == [b"0", b"1", b"2"]


async def test_every_target_that_is_dropped_is_logged(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.create("t")
    await desk.create("u", partitions=2)
    receipts = [await desk.stage(0, b"kept"), *[await desk.stage(0, b"x", topic="u", partition=i) for i in range(2)]]
    real = Copying.is_whole

    async def is_whole(self: Copying) -> bool:
        await desk.broker.delete_topic("u")
        return await real(self)

    monkeypatch.setattr(Copying, "is_whole", is_whole)
    assert not (await desk.commit(0, *receipts)).duplicate
    assert await desk.values("t") == [b"kept"]
    gone = [fields for event, fields in desk.events if event == "transaction_target_gone"]
    assert gone == [{"writer": "w", "number": 0, "topic": "u", "partition": i} for i in range(2)]
