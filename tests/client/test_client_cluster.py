"""What a client of several brokers that are one does when one of them cannot, or nobody knows."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import connect
from tests.client.client_servers import Answer, Call, Script, ScriptedServer, batches_of, error, scripted


async def test_message_without_an_id_is_sent_again_when_no_leader_took_it() -> None:
    script = Script((503, error("no_quorum")), (503, error("not_leader")))
    removed = Script(*[(503, error("node_removed"))] * 100)
    async with (
        ScriptedServer(script).running() as server,
        ScriptedServer(removed).running() as out,
        connect(f"{out.address},{server.address}") as broker,
    ):
        assert (await broker.publish("orders", b"v", retry_safe=False)).offset == 0
    assert len(batches_of(server)) == 3


async def test_topic_whose_leader_was_lost_is_not_reported_as_somebody_elses() -> None:
    answers = iter([(503, error("leader_changed")), (409, error("topic_exists"))])
    script = Script()

    async def answer(call: Call) -> Answer:
        return next(answers) if call.method == "POST" else await script(call)

    async with scripted(answer) as (_, broker):
        assert (await broker.create_topic("orders")).topic == "orders"


async def test_publish_goes_to_another_broker_when_one_is_cut_off() -> None:
    cut_off = Script(*[(503, error("no_quorum"))] * 100)
    async with (
        ScriptedServer(cut_off).running() as first,
        ScriptedServer(Script()).running() as second,
        connect(f"{first.address},{second.address}") as broker,
    ):
        await broker.publish("orders", b"1")
        await broker.publish("orders", b"2")
    assert batches_of(first) == [[b"1"]]
    assert batches_of(second) == [[b"1"], [b"2"]]


async def test_hanging_broker_holds_up_one_try_and_not_one_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.retry.ATTEMPT_TIMEOUT_S", 1.0)
    script, hangs = Script(partitions=6), asyncio.Event()

    async def answer(call: Call) -> Answer:
        if hangs.is_set():
            await asyncio.sleep(3600)
        return await script(call)

    async with (
        ScriptedServer(answer).running() as first,
        ScriptedServer(Script(partitions=6)).running() as second,
        connect(f"{first.address},{second.address}", timeout_s=60) as broker,
    ):
        await asyncio.gather(*(broker.publish("orders", b"v", partition=number) for number in range(6)))
        hangs.set()
        asked = len(first.calls)
        for number in range(6):
            await broker.publish("orders", b"w", partition=number)
        assert len(first.calls) == asked + 1
    assert batches_of(second) == [[b"w"]] * 6
