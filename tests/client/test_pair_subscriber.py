"""`PairSubscriber` against brokers that die, fall silent and deliver twice: each message once, in order."""

from __future__ import annotations

import asyncio

import pytest
from testkit.wait import until

from holdfast.client import (
    ClientClosed,
    ConnectionChange,
    ConnectionLost,
    HoldfastError,
    PairMessage,
    PairSubscriber,
    RemoteError,
    WrongPort,
)
from holdfast.testing.ports import free_port
from tests.client.pair_brokers import FakeBroker, fake_pair, http_server

DEADLINE_S = 60.0


def subscriber_for(*brokers: FakeBroker, **options: object) -> PairSubscriber:
    return PairSubscriber("t", *(broker.address for broker in brokers), **options)  # type: ignore[arg-type]


async def take(subscriber: PairSubscriber, count: int) -> list[PairMessage]:
    found: list[PairMessage] = []
    for _ in range(count):
        message = await subscriber.get(DEADLINE_S)
        assert message is not None, f"only {found} came"
        found.append(message)
    return found


def numbered(first: int, last: int) -> list[tuple[str, bytes]]:
    return [(f"0-{number}", b"%d" % number) for number in range(first, last + 1)]


@pytest.mark.parametrize("dialect", ["standard", "ack"])
async def test_messages_say_where_they_come_from(dialect: str) -> None:
    async with fake_pair(dialect=dialect) as (primary, backup), subscriber_for(primary, backup) as subscriber:
        primary.deliver(("order-17", b"a | b"), ("0-1", b""))
        assert await take(subscriber, 2) == [
            PairMessage(primary.address, "t", "order-17", b"a | b"),
            PairMessage(primary.address, "t", "0-1", b""),
        ]
        primary.say_to_subscribers(b"MESSAGE_ID_BASE64|50%25|t|YQpi\n")
        assert await take(subscriber, 1) == [PairMessage(primary.address, "t", "50%", b"a\nb")]
    assert primary.subscribed == backup.subscribed == [b"t"]


async def test_killed_primary_loses_nothing_and_repeats_nothing() -> None:
    changes: list[ConnectionChange] = []
    async with (
        fake_pair() as (primary, backup),
        subscriber_for(primary, backup, on_change=changes.append) as subscriber,
    ):
        primary.deliver(*numbered(1, 10))
        assert len(await take(subscriber, 10)) == 10
        await primary.die()
        backup.deliver(*numbered(6, 15))
        got = await take(subscriber, 5)
        assert [int(message.value) for message in got] == [11, 12, 13, 14, 15]
        assert {message.broker for message in got} == {backup.address}
        assert subscriber.duplicates == 5
        await primary.start()
        await until(lambda: len(primary.subscribed) == 2, "it is connected to both again")
        await backup.die()
        primary.deliver(*numbered(15, 16))
        assert [message.value for message in await take(subscriber, 1)] == [b"16"]
    assert [(change.broker, change.is_connected) for change in changes] == [
        (primary.address, False),
        (primary.address, True),
        (backup.address, False),
    ]


@pytest.mark.parametrize("name", [None, "billing"])
async def test_subscriber_that_may_have_missed_messages_is_told(name: str | None) -> None:
    """Both were away. With a name nothing is missed."""
    changes: list[ConnectionChange] = []
    async with (
        fake_pair() as (primary, backup),
        subscriber_for(primary, backup, name=name, on_change=changes.append) as subscriber,
    ):
        primary.deliver(*numbered(1, 1))
        await take(subscriber, 1)
        await primary.die()
        await backup.die()
        await until(lambda: len(changes) == 2, "both are lost")
        assert [change.gap_s for change in changes] == [None, None]
        await backup.start()
        await until(lambda: len(changes) == 3, "one is there again")
        if name is None:
            assert changes[2].gap_s is not None and changes[2].gap_s > 0
            assert "messages published meanwhile may be missing here" in str(changes[2])
        else:
            assert changes[2].gap_s is None
            assert str(changes[2]) == f"connected to the broker at {backup.address}"


async def test_subscriber_of_one_broker_is_told_that_it_was_away() -> None:
    changes: list[ConnectionChange] = []
    async with fake_pair() as (alone, _), subscriber_for(alone, on_change=changes.append):
        alone.reset_connections()
        await until(lambda: len(changes) == 2, "it is connected again")
        assert changes[1].gap_s is not None


async def test_subscriber_that_heard_the_other_broker_meanwhile_has_missed_nothing() -> None:
    changes: list[ConnectionChange] = []
    async with (
        fake_pair() as (primary, backup),
        subscriber_for(primary, backup, on_change=changes.append) as subscriber,
    ):
        for is_delivered in (True, False):
            await primary.die()
            await until(lambda: not changes[-1].is_connected if changes else False, "it is lost")
            if is_delivered:
                backup.deliver(*numbered(1, 1))
                await take(subscriber, 1)
            await primary.start()
            await until(lambda: changes[-1].is_connected, "it is there again")
            # Where nothing came of the other one, this one may have delivered it to others.
            assert (changes[-1].gap_s is None) == is_delivered


async def test_backups_messages_do_not_overtake_those_of_a_living_primary() -> None:
    async with fake_pair() as (primary, backup), subscriber_for(primary, backup) as subscriber:
        primary.answers_pings = False
        backup.deliver(*numbered(2, 3))
        assert await subscriber.get(0.01) is None
        primary.deliver(*numbered(1, 1))
        assert [message.value for message in await take(subscriber, 3)] == [b"1", b"2", b"3"]


async def test_silent_primary_holds_the_backup_up_for_a_moment_only() -> None:
    async with fake_pair() as (primary, backup), subscriber_for(primary, backup) as subscriber:
        primary.is_mute = True
        backup.deliver(*numbered(1, 2))
        await take(subscriber, 2)


async def test_name_is_given_to_both_brokers() -> None:
    async with fake_pair() as (primary, backup), subscriber_for(primary, backup, name="billing"):
        assert primary.subscribed == backup.subscribed == [b"t|billing"]


async def test_reader_that_does_not_read_does_not_fill_the_memory() -> None:
    async with fake_pair() as (primary, backup), subscriber_for(primary, backup) as subscriber:
        values = [(f"0-{number}", b"x" * 1_000_000) for number in range(40)]
        primary.deliver(*values)
        await until(lambda: subscriber._sides[0].is_paused, "its connection is not read any more")
        assert subscriber._merge.waiting_bytes(0) < 12_000_000
        got = await take(subscriber, 40)
        assert [message.id for message in got] == [message_id for message_id, _ in values]


async def test_one_of_two_brokers_is_enough_to_begin() -> None:
    async with fake_pair() as (primary, backup):
        await primary.die()
        async with subscriber_for(primary, backup, on_change=lambda change: None) as subscriber:
            backup.deliver(*numbered(1, 1))
            assert (await take(subscriber, 1))[0].broker == backup.address


async def test_nobody_there_is_told_with_what_was_tried() -> None:
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(ConnectionLost, match="no broker was reached") as raised:
        async with PairSubscriber("t", first, second, patience_s=0.3, on_change=lambda change: None):
            pass
    assert first in raised.value.message and second in raised.value.message


async def test_subscription_that_is_refused_raises() -> None:
    async with fake_pair() as (primary, backup):
        primary.refuses_subscribers_with = b"ERROR|too_many_topics|no more topics\n"
        with pytest.raises(RemoteError) as raised:
            async with subscriber_for(primary, backup, on_change=lambda change: None):
                pass
        assert raised.value.code == "too_many_topics"


async def test_name_that_somebody_else_takes_over_ends_the_iteration_with_an_error() -> None:
    async with fake_pair() as (primary, backup), subscriber_for(primary, backup, name="one") as subscriber:
        primary.deliver(*numbered(1, 1))
        primary.say_to_subscribers(b"ERROR|taken_over|somebody else reads under this name\n")
        got = []
        with pytest.raises(RemoteError) as raised:
            async for message in subscriber:
                got.append(message.value)
        assert raised.value.code == "taken_over" and got == [b"1"]


async def test_broker_that_cannot_just_now_is_asked_again() -> None:
    async with fake_pair() as (primary, backup):
        primary.refuses_subscribers_with = b"ERROR|unavailable|not yet\n"
        async with subscriber_for(primary, backup, on_change=lambda change: None) as subscriber:
            primary.refuses_subscribers_with = b""
            await until(lambda: primary.has_subscribers, "it is subscribed at last")
            primary.deliver(*numbered(1, 1))
            assert (await take(subscriber, 1))[0].broker == primary.address


async def test_topic_that_was_deleted_and_made_anew_is_followed_from_its_beginning() -> None:
    async with (
        fake_pair() as (primary, backup),
        subscriber_for(primary, backup, on_change=lambda change: None) as subscriber,
    ):
        primary.deliver(*numbered(1, 2))
        await take(subscriber, 2)
        primary.say_to_subscribers(b"ERROR|topic_not_found|topic t was deleted\n")
        await until(lambda: len(primary.subscribed) == 2, "it has subscribed again")
        primary.deliver(*numbered(1, 1))
        assert (await take(subscriber, 1))[0].value == b"1"


async def test_port_of_something_else_is_told_at_once() -> None:
    async with http_server() as address:
        with pytest.raises(WrongPort, match="not the text port"):
            async with PairSubscriber("t", address, on_change=lambda change: None):
                pass


async def test_closing_ends_the_iteration() -> None:
    async with fake_pair() as (primary, backup):
        async with subscriber_for(primary, backup) as subscriber:
            waiting = asyncio.ensure_future(subscriber.__anext__())
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(ClientClosed):
            await subscriber.get()


@pytest.mark.parametrize(("topic", "name"), [("no|field", None), ("t", "no/path")])
def test_names_that_cannot_be_are_refused(topic: str, name: str | None) -> None:
    with pytest.raises(HoldfastError):
        PairSubscriber(topic, "localhost:8080", name=name)
