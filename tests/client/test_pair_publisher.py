"""`PairPublisher` against brokers that die, fall silent and refuse: nothing is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import time

import pytest
from testkit.wait import until

from holdfast.client import (
    ClientClosed,
    ConnectionChange,
    ConnectionLost,
    HoldfastError,
    PairPublisher,
    RemoteError,
    WrongPort,
)
from holdfast.client.failover import UNACKNOWLEDGED_MAX
from holdfast.testing.ports import free_port
from tests.client.pair_brokers import FakeBroker, fake_pair, http_server


def publisher_for(*brokers: FakeBroker, **options: object) -> PairPublisher:
    """One that takes no broker for silent because the machine is busy, unless the test is about that."""
    return PairPublisher(*(broker.address for broker in brokers), **{"ack_timeout_s": 30.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", ["standard", "ack"])
async def test_publishes_are_stored_in_the_order_of_the_calls(dialect: str) -> None:
    async with fake_pair(dialect=dialect) as (primary, backup), publisher_for(primary, backup) as publisher:
        published = await asyncio.gather(*(publisher.publish("t", b"%d" % number) for number in range(1000)))
        published += await publisher.publish_many("t", [b"a", "text", {"json": 1}])
        assert publisher.counts.sent == publisher.counts.acknowledged == 1003
        assert publisher.counts.resent == publisher.counts.switches == 0
        assert list(primary.store) == [one.id for one in published] and len(set(primary.store)) == 1003
        assert {one.broker for one in published} == {primary.address}
        assert list(primary.store.values())[-3:] == [b"a", b"text", b'{"json":1}']
    assert backup.published == [] and primary.connections == 1


async def test_killed_primary_loses_nothing_and_repeats_nothing() -> None:
    changes: list[ConnectionChange] = []
    async with fake_pair() as (primary, backup), publisher_for(primary, backup, on_change=changes.append) as publisher:
        ids = [(await publisher.publish("t", b"%d" % number)).id for number in range(10)]
        primary.answers = "silent"
        under_way = [asyncio.ensure_future(publisher.publish("t", b"%d" % number)) for number in range(10, 20)]
        await until(lambda: len(primary.published) == 20, "they are under way")
        await primary.die()
        ids += [one.id for one in await asyncio.gather(*under_way)]
        assert list(backup.store) == ids
        assert backup.published == ids[5:], "the last five, then what was not acknowledged"
        assert publisher.counts.switches == 1 and publisher.counts.resent == 15
        assert publisher.broker == backup.address
        await publisher.publish("t", b"goes on there")
        assert len(backup.store) == 21
    assert [(change.broker, change.is_connected) for change in changes] == [
        (primary.address, False),
        (backup.address, True),
    ]


async def test_silent_primary_is_left_after_the_acknowledgement_timeout() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup, ack_timeout_s=0.2) as publisher:
        primary.is_mute = True
        started = time.monotonic()
        await publisher.publish("t", b"x")
        assert time.monotonic() - started >= 0.2
        assert backup.published and publisher.broker == backup.address


async def test_message_that_was_stored_without_an_answer_is_stored_once() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        primary.answers = "store and hang up"
        published = await publisher.publish("t", b"x", id="order-17")
        assert published == ("order-17", backup.address) and backup.store == {"order-17": b"x"}
        assert (primary.published, backup.published) == (["order-17"], ["order-17"])


async def test_it_switches_back_and_forth_as_often_as_needed() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        ids = []
        for turn in range(20):
            serving, other = (primary, backup) if turn % 2 == 0 else (backup, primary)
            ids.append((await publisher.publish("t", b"%d" % turn)).id)
            assert serving.published[-1] == ids[-1]
            await serving.die()
            ids.append((await publisher.publish("t", b"%d" % turn)).id)
            assert other.published[-1] == ids[-1]
            await serving.start()
        assert list(primary.store) == ids and publisher.counts.switches == 20


async def test_broker_that_cannot_just_now_is_left_for_the_other_one() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        primary.answers = "ERROR|unavailable|the backup is gone"
        await publisher.publish("t", b"x")
        assert publisher.broker == backup.address


async def test_pair_that_needs_a_moment_for_its_promotion_gets_it() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        backup.answers = lambda before: "ack" if before >= 4 else "ERROR|not_leader|being promoted"
        await primary.die()
        await publisher.publish("t", b"x")
        assert len(backup.published) == 5 and len(backup.store) == 1


async def test_refused_message_raises_and_the_others_go_on() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        primary.answers = lambda before: "ERROR|too_large|1 MiB at most" if before == 1 else "ack"
        results = await asyncio.gather(
            *(publisher.publish("t", b"%d" % number) for number in range(3)), return_exceptions=True
        )
        assert isinstance(results[1], RemoteError) and results[1].code == "too_large"
        assert [isinstance(result, tuple) for result in results] == [True, False, True]
        assert publisher.counts.acknowledged == 2 and backup.published == []


async def test_patience_ends_when_nobody_acknowledges() -> None:
    async with (
        fake_pair() as (primary, backup),
        publisher_for(primary, backup, ack_timeout_s=0.5, patience_s=0.5) as publisher,
    ):
        primary.answers = "silent"
        await backup.die()
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match="may be stored or not") as raised:
            await publisher.publish("t", b"x")
        assert time.monotonic() - started >= 0.5
        assert raised.value.code == "connection_lost"
        primary.answers = "ack"
        await publisher.publish("t", b"works again")


async def test_patience_also_ends_for_those_who_wait_for_room() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup, patience_s=0.5) as publisher:
        primary.answers = backup.answers = "silent"
        many = asyncio.ensure_future(publisher.publish_many("t", [b"x"] * (UNACKNOWLEDGED_MAX + 500)))
        await until(lambda: publisher.counts.sent == UNACKNOWLEDGED_MAX, "no more are taken")
        with pytest.raises(ConnectionLost):
            await publisher.publish("t", b"one more")
        with pytest.raises(ConnectionLost):
            await many


async def test_those_who_wait_for_room_go_on_in_their_order() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        primary.is_mute = backup.is_mute = True
        many = asyncio.ensure_future(publisher.publish_many("t", [b"x"] * (UNACKNOWLEDGED_MAX + 500)))
        await until(lambda: publisher.counts.sent == UNACKNOWLEDGED_MAX, "no more are taken")
        primary.is_mute = backup.is_mute = False
        primary.reset_connections()
        backup.reset_connections()
        ids = [one.id for one in await many]
        assert list(primary.store) == ids and len(ids) == UNACKNOWLEDGED_MAX + 500


async def test_nobody_there_is_told_with_what_was_tried() -> None:
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(ConnectionLost, match="no broker was reached") as raised:
        async with PairPublisher(first, second, patience_s=0.3, on_change=lambda change: None):
            pass
    assert first in raised.value.message and second in raised.value.message


async def test_port_of_something_else_is_told_at_once() -> None:
    async with http_server() as address, PairPublisher(address, on_change=lambda change: None) as publisher:
        for _ in range(2):
            with pytest.raises(WrongPort, match="not the text port"):
                await publisher.publish("t", b"x")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"topic": "no|field", "value": b"x"}, "bad_topic"),
        ({"topic": "t", "value": b"two\nlines"}, "bad_message"),
        ({"topic": "t", "value": b"a return at the end\r"}, "bad_message"),
        ({"topic": "t", "value": b"x", "id": "a|b"}, "bad_id"),
        ({"topic": "t", "value": b"x", "id": "line\nbreak"}, "bad_id"),
        ({"topic": "t", "value": b"x", "id": ""}, "bad_id"),
    ],
)
async def test_what_cannot_be_a_line_is_refused_before_it_is_sent(arguments: dict[str, object], code: str) -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup) as publisher:
        with pytest.raises(HoldfastError) as raised:
            await publisher.publish(**arguments)  # type: ignore[arg-type]
        assert raised.value.code == code and primary.published == []
        await publisher.publish("t", b"a bar | and a return \r inside")


@pytest.mark.parametrize(
    "addresses",
    [(), ("localhost",), ("localhost:0",), ("localhost:http",), ("a:1", "b:2", "c:3"), ("a:1", "a:1"), (":8080",)],
)
def test_addresses_that_cannot_be_are_refused(addresses: tuple[str, ...]) -> None:
    with pytest.raises(HoldfastError) as raised:
        PairPublisher(*addresses)
    assert raised.value.code == "bad_config"


async def test_closing_waits_for_what_was_begun_and_ends_the_rest() -> None:
    async with fake_pair() as (primary, backup):
        async with publisher_for(primary, backup) as publisher:
            begun = asyncio.ensure_future(publisher.publish("t", b"x"))
            await asyncio.sleep(0)
        assert (await begun).id in primary.store
        with pytest.raises(ClientClosed):
            await publisher.publish("t", b"too late")
        primary.answers = backup.answers = "silent"
        with pytest.raises(KeyError):
            async with publisher_for(primary, backup) as publisher:
                begun = asyncio.ensure_future(publisher.publish("t", b"x"))
                await asyncio.sleep(0)
                raise KeyError
        with pytest.raises(ClientClosed):
            await begun


async def test_cancelled_publish_disturbs_nobody() -> None:
    async with fake_pair() as (primary, backup), publisher_for(primary, backup, ack_timeout_s=0.3) as publisher:
        primary.answers = "silent"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await publisher.publish("t", b"given up by the caller")
        await publisher.publish("t", b"goes on")
        assert list(backup.store.values()) == [b"given up by the caller", b"goes on"]
