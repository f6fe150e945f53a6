"""Durable subscriptions where two things happen at once, and topics that are deleted and made again."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.serving import PUBACK, SUBACK, UNSUBACK, Serving, Talk, code_of, serving, values_of
from testkit.sizes import dice
from testkit.wait import until

from holdfast.broker.follower import Delivery
from holdfast.frontends.text.line_cache import LineCache, Place
from holdfast.model.ids import Offset, TopicName
from holdfast.wire.text import STANDARD


def lag(broker: Serving, topic: str, name: str) -> int:
    return broker.node.broker.describe_cursor(topic, name).lag


async def noted(broker: Serving, topic: str, name: str) -> None:
    """Wait until the broker knows that everything was delivered."""
    await until(lambda: lag(broker, topic, name) == 0, "what was delivered is noted")


async def test_subscriber_that_leaves_at_once_does_not_get_its_last_messages_again(broker: Serving) -> None:
    for turn in range(10):
        async with await broker.subscribe(b"t", b"name") as talk:
            await broker.publish(b"t", [b"%d" % turn])
            assert await talk.line() == b"MESSAGE|t|%d" % turn
        # It is gone before the broker would have looked how far it came by itself.


async def test_subscription_goes_on_after_a_disconnect_and_after_unsubscribing(broker: Serving) -> None:
    async with await broker.subscribe(b"t", b"name"):
        pass
    async with await broker.connect() as talk:
        for turn in range(5):
            values = [b"%d.%d" % (turn, number) for number in range(20)]
            await broker.publish(b"t", values)
            async with await broker.subscribe(b"t", b"name") as other:
                assert values_of(await other.lines(20), b"t") == values
                await noted(broker, "t", "name")
            await broker.publish(b"t", [b"between"])
            assert await talk.ask(b"SUBSCRIBE|t|name") == SUBACK
            assert await talk.line() == b"MESSAGE|t|between"
            await noted(broker, "t", "name")
            assert await talk.ask(b"UNSUBSCRIBE|t") == UNSUBACK


async def test_newest_connection_takes_the_subscription_over_without_loss(broker: Serving) -> None:
    seen: list[bytes] = []
    talks: list[Talk] = []
    for turn in range(6):
        talks.append(await broker.subscribe(b"t", b"name"))
        if turn:
            old = talks[-2]
            while (line := await old.line()).startswith(b"MESSAGE|"):
                seen += values_of([line], b"t")
            assert code_of(line) == "taken_over"
            assert await old.is_usable(), "the connection stays, only the subscription is gone"
        await broker.publish(b"t", [b"%d.%02d" % (turn, number) for number in range(30)])
        # Read some and leave some for the next one.
        seen += values_of(await talks[-1].lines(10), b"t")
    expected = [b"%d.%02d" % (turn, number) for turn in range(6) for number in range(30)]
    while not set(expected) <= set(seen):
        seen += values_of([await talks[-1].line()], b"t")
    for talk in talks:
        assert await talk.is_usable(), "two connections get the same subscription"
        await talk.close()
    assert sorted(set(seen)) == expected


async def test_one_of_many_that_open_a_name_at_once_has_it_and_the_others_are_told(broker: Serving) -> None:
    talks = [await broker.connect() for _ in range(10)]
    for talk in talks:
        talk.send(b"SUBSCRIBE|t|name")
    for talk in talks:
        assert await talk.line() == SUBACK
    await until(lambda: broker.node.broker.stats.errors["taken_over"] == 9, "nine of ten are told")
    await broker.publish(b"t", [b"1", b"2", b"3"])
    first = [await talk.line() for talk in talks]
    (keeper,) = [talk for talk, line in zip(talks, first, strict=True) if not line.startswith(b"ERROR|taken_over|")]
    assert [first[talks.index(keeper)], *await keeper.lines(2)] == [b"MESSAGE|t|1", b"MESSAGE|t|2", b"MESSAGE|t|3"]
    for talk in talks:
        assert await talk.is_usable(), "somebody got what another one reads"
    for talk in talks:
        await talk.close()


async def test_subscribing_and_unsubscribing_in_one_piece_leaves_nothing_behind(broker: Serving) -> None:
    await broker.publish(b"t", [b"before"])
    rolled = dice("come and go")
    async with await broker.connect() as talk:
        for _ in range(50):
            lines = [
                rolled.choice([b"SUBSCRIBE|t", b"SUBSCRIBE|t|name", b"UNSUBSCRIBE|t"])
                for _ in range(rolled.randrange(9))
            ]
            talk.send(*lines, b"SUBSCRIBE|t", b"UNSUBSCRIBE|t", b"HEARTBEAT")
            while await talk.line() != b"HEARTBEAT_ACK":
                pass
        await until(lambda: broker.node.broker.stats.subscriptions == 0, "no subscription is left")
        assert await talk.ask(b"PUBLISH|t|x") == PUBACK
        assert await talk.is_usable(), "something was delivered to nobody's subscription"
        async with await broker.subscribe(b"t", b"name") as reader:
            assert await reader.ask(b"UNSUBSCRIBE|t") in (UNSUBACK, b"MESSAGE|t|x")
        assert await talk.is_usable(), "it was told to have lost what it had given back"


async def test_seek_sends_a_connected_subscriber_back_once_it_subscribes_again(broker: Serving) -> None:
    async with await broker.subscribe(b"t", b"name") as talk:
        await broker.publish(b"t", [b"%d" % i for i in range(10)])
        assert values_of(await talk.lines(10), b"t") == [b"%d" % i for i in range(10)]
        for place, first in ((4, 4), ("earliest", 0), (10, 10)):
            await broker.http("PUT", "/v1/topics/t/cursors/name", {"to": place})
            assert code_of(await talk.line()) == "taken_over"
            assert await talk.ask(b"SUBSCRIBE|t|name") == SUBACK
            assert values_of(await talk.lines(10 - first), b"t") == [b"%d" % i for i in range(first, 10)]
            assert await talk.is_usable()
            await noted(broker, "t", "name")


async def test_deleted_cursor_ends_its_subscription_and_a_new_one_starts_with_what_comes(broker: Serving) -> None:
    async with await broker.subscribe(b"t", b"name") as talk:
        await broker.publish(b"t", [b"1"])
        assert await talk.line() == b"MESSAGE|t|1"
        await broker.http("DELETE", "/v1/topics/t/cursors/name", expect=204)
        assert code_of(await talk.line()) == "taken_over"
        assert await talk.ask(b"SUBSCRIBE|t|name") == SUBACK
        await broker.publish(b"t", [b"2"])
        assert await talk.line() == b"MESSAGE|t|2"


@pytest.mark.parametrize("sync", ["group", "none"])
async def test_subscribers_of_a_deleted_topic_are_told_and_get_the_new_ones_messages_only(
    tmp_path: Path, sync: str
) -> None:
    async with serving(tmp_path, sync=sync) as broker, await broker.connect() as publisher:
        for turn in range(4):
            async with await broker.subscribe(b"t") as live, await broker.subscribe(b"t", b"name") as named:
                # Of the same number and length each time: whatever was remembered of the last topic would fit.
                for i in range(5):
                    assert await publisher.ask(b"PUBLISH|t|%d.%d" % (turn, i)) == PUBACK
                for talk in (live, named):
                    assert values_of(await talk.lines(5), b"t") == [b"%d.%d" % (turn, i) for i in range(5)]
                await broker.http("DELETE", "/v1/topics/t", expect=204)
                for talk in (live, named):
                    assert code_of(await talk.line()) == "topic_not_found"
                    assert await talk.is_usable()
                    assert code_of(await talk.ask(b"UNSUBSCRIBE|t")) == "not_subscribed"


async def test_id_of_a_deleted_topic_does_not_hide_a_message_of_the_new_one(broker: Serving) -> None:
    async with await broker.connect() as talk:
        for turn in range(3):
            assert await talk.ask(b"PUBLISH_ID|same|t|%d" % turn) == PUBACK
            assert await broker.stored("t") == [b"%d" % turn]
            await broker.http("DELETE", "/v1/topics/t", expect=204)


async def test_subscriber_that_was_stalled_while_its_topic_was_made_anew_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="none") as broker:
        stalled = await broker.stalled(b"t")
        await broker.publish(b"t", [b"%d %b" % (i, b"x" * 9000) for i in range(1500)])
        assert broker.node.broker.stats.delivered_messages < 1500, "it is not behind: the test tests nothing"
        await broker.http("DELETE", "/v1/topics/t", expect=204)
        await broker.publish(b"t", [b"new %d" % i for i in range(3000)])
        stalled.resume()
        seen = 0
        while (line := await stalled.line()).startswith(b"MESSAGE|t|%d " % seen):
            seen += 1
        assert code_of(line) == "topic_not_found", line
        assert await stalled.ask(b"SUBSCRIBE|t") == SUBACK
        await broker.publish(b"t", [b"after"])
        assert await stalled.line() == b"MESSAGE|t|after"
        await stalled.close()


async def test_publishing_while_topics_come_and_go_is_always_answered(broker: Serving) -> None:
    deleted_often = asyncio.Event()

    async def publish(number: int) -> list[bytes]:
        async with await broker.connect() as talk:
            answers = []
            for i in itertools.count():
                talk.send(b"PUBLISH|t|%d-%d" % (number, i), b"PUBLISH_ID|%d-%d|t|x" % (number, i))
                answers += await talk.lines(2)
                if deleted_often.is_set():
                    break
            assert await talk.is_usable()
            return answers

    async def delete() -> None:
        for _ in range(8):
            await until(lambda: broker.node.backend.topic(TopicName("t")) is not None, "the topic is there again")
            await broker.http("DELETE", "/v1/topics/t", expect=204)
        deleted_often.set()

    *answers, _ = await asyncio.gather(publish(1), publish(2), delete())
    told = {line if line == PUBACK else code_of(line) for lines in answers for line in lines}
    assert PUBACK in told and told <= {PUBACK, "topic_not_found"}


def test_lines_kept_for_other_subscribers_are_bounded_whatever_their_length() -> None:
    cache = LineCache(STANDARD)
    batch = memoryview(bytes(values_batch(b"x")))
    for offset in range(60_000):
        delivery = Delivery(0, Offset(offset), [batch], 0, Offset(offset + 1))
        place = Place("t", None, 0, Offset(offset))
        assert cache.make(place, delivery, 1 << 16) == (b"MESSAGE|t|x\n", 1, offset + 1)
    assert len(cache) < 50_000, "each costs more than its twelve bytes"
