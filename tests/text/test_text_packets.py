"""Every packet of the protocol, in both dialects, over a real connection."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest
from testkit.serving import CONNACK, PUBACK, SUBACK, UNSUBACK, Serving, code_of, serving, values_of
from testkit.wait import until


async def test_client_is_greeted_and_gets_each_answer_of_the_protocol(broker: Serving) -> None:
    async with await broker.raw() as talk:
        assert await talk.line() == CONNACK
        assert await talk.ask(b"PUBLISH|t|one") == PUBACK
        assert await talk.ask(b"PUBLISH_ID|id-1|t|two") == PUBACK
        assert await talk.ask(b"PUBLISH_ID|id-1|t|two") == PUBACK
        assert await talk.ask(b"SUBSCRIBE|t") == SUBACK
        assert await talk.ask(b"SUBSCRIBE|t|reader") == SUBACK
        assert await talk.ask(b"UNSUBSCRIBE|t") == UNSUBACK
        assert await talk.ask(b"PING") == b"PONG"
        assert await talk.ask(b"HEARTBEAT") == b"HEARTBEAT_ACK"
        assert await talk.error_of(b"DANCE") == "bad_command"
    assert await broker.stored("t") == [b"one", b"two"]


async def test_ack_dialect_says_nothing_but_what_it_must(tmp_path: Path) -> None:
    async with serving(tmp_path, text_dialect="ack") as broker, await broker.raw() as talk:
        assert await talk.ask(b"PING") == b"PONG", "nothing is said on connect"
        assert await talk.ask(b"PUBLISH|t|one") == b"ACK"
        assert await talk.ask(b"PUBLISH_ID|id-1|t|two") == b"ACK"
        assert await talk.ask(b"PUBLISH_ID|id-1|t|two") == b"ACK"
        assert await talk.ask(b"SUBSCRIBE|t", b"SUBSCRIBE|t|reader", b"UNSUBSCRIBE|t", b"PING") == b"PONG"
        assert await talk.ask(b"SUBSCRIBE|t", b"HEARTBEAT") == b"HEARTBEAT_ACK"
        talk.send(b"PUBLISH|t|bare | payload")
        assert sorted(await talk.lines(2)) == [b"ACK", b"bare | payload"]
        assert await talk.error_of(b"PUBLISH|no,path|x") == "bad_topic"
        await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": "two\nlines"}]})
        assert await talk.line() == b"MESSAGE_BASE64|t|" + base64.b64encode(b"two\nlines")
        assert await talk.is_usable()


async def test_command_in_any_case_with_any_line_ending_is_understood(broker: Serving) -> None:
    conversation = [
        (b"PUBLISH", b"|t|Mixed Case Stays", PUBACK),
        (b"PUBLISH_ID", b"|Id|ids|also here", PUBACK),
        (b"SUBSCRIBE", b"|t", SUBACK),
        (b"UNSUBSCRIBE", b"|t", UNSUBACK),
        (b"PING", b"", b"PONG"),
        (b"HEARTBEAT", b"", b"HEARTBEAT_ACK"),
    ]
    async with await broker.connect() as talk:
        for written, ending in itertools.product((bytes.lower, bytes.title, bytes.upper), (b"\n", b"\r\n")):
            for command, fields, answer in conversation:
                talk.writer.write(written(command) + fields + ending)
                assert await talk.line() == answer, (written(command), ending)
    assert await broker.stored("t") == [b"Mixed Case Stays"] * 6
    assert await broker.stored("ids") == [b"also here"]


async def test_surplus_empty_fields_and_empty_lines_are_tolerated(broker: Serving) -> None:
    async with await broker.connect() as talk:
        assert await talk.ask(b"PING||||") == b"PONG"
        assert await talk.ask(b"HEARTBEAT|") == b"HEARTBEAT_ACK"
        assert await talk.ask(b"SUBSCRIBE|t||") == SUBACK
        assert await talk.ask(b"UNSUBSCRIBE|t||||") == UNSUBACK
        assert await talk.ask(b"SUBSCRIBE|t|reader|||") == SUBACK
        assert await talk.ask(b"", b"\r", b"", b"PING") == b"PONG"


PAYLOADS = {
    "bars": b"a|b||c|",
    "only a bar": b"|",
    "empty": b"",
    "spaces": b"  x  ",
    "not UTF-8": bytes(set(range(256)) - {0x0A, 0x0D}),
    "zeros": b"\0\0\0",
    "carriage return inside": b"a\rb",
    "looks like a command": b"PUBLISH|t|x",
    "long": b"x" * 300_000,
}


async def test_payload_arrives_as_it_was_sent(broker: Serving) -> None:
    async with await broker.subscribe(b"t") as subscriber, await broker.connect() as talk:
        for number, (name, payload) in enumerate(PAYLOADS.items()):
            assert await talk.ask(b"PUBLISH|t|" + payload) == PUBACK
            assert await talk.ask(b"PUBLISH_ID|id %d|t|%b" % (number, payload)) == PUBACK
            talk.send(b"PUBLISH|t|" + payload, b"PUBLISH|t|" + payload)
            assert await talk.lines(2) == [PUBACK, PUBACK]
            assert values_of(await subscriber.lines(4), b"t") == [payload] * 4, name
    assert await broker.stored("t") == [payload for payload in PAYLOADS.values() for _ in range(4)]


async def test_payload_with_a_line_break_arrives_whole_and_breaks_nothing_around_it(broker: Serving) -> None:
    values = [b"before", b"two\nlines", b"\n", b"ends with one\n", b"\xff\n\x00", b"after"]
    async with await broker.subscribe(b"t") as subscriber:
        encoded = [base64.b64encode(value) for value in values]
        body = {"messages": [{"base64": each.decode()} for each in encoded]}
        await broker.http("POST", "/v1/topics/t/messages", body)
        assert await subscriber.lines(len(values)) == [
            b"MESSAGE_BASE64|t|" + each if b"\n" in value else b"MESSAGE|t|" + value
            for value, each in zip(values, encoded, strict=True)
        ]
        assert await subscriber.is_usable()


async def test_messages_with_keys_that_have_no_letters_are_delivered(broker: Serving) -> None:
    """A batch of such keys has many bytes above 127 before its values."""
    async with await broker.subscribe(b"t") as subscriber:
        messages = [{"value": f"{i}", "key": "\u07ff" * 6} for i in range(8)]
        await broker.http("POST", "/v1/topics/t/messages", {"messages": messages})
        assert values_of(await subscriber.lines(8), b"t") == [b"%d" % i for i in range(8)]


async def test_subscriber_sees_only_its_topics_and_only_until_it_unsubscribes(broker: Serving) -> None:
    async with await broker.subscribe(b"a") as subscriber, await broker.connect() as talk:
        assert await subscriber.ask(b"SUBSCRIBE|b") == SUBACK
        for topic in (b"a", b"b", b"c"):
            assert await talk.ask(b"PUBLISH|%b|1" % topic) == PUBACK
        assert sorted(await subscriber.lines(2)) == [b"MESSAGE|a|1", b"MESSAGE|b|1"]
        assert await subscriber.ask(b"UNSUBSCRIBE|a") == UNSUBACK
        for topic in (b"a", b"b", b"c"):
            assert await talk.ask(b"PUBLISH|%b|2" % topic) == PUBACK
        assert await subscriber.line() == b"MESSAGE|b|2"
        assert await subscriber.is_usable()


async def test_unsubscribing_twice_is_refused_and_ends_nothing_else(broker: Serving) -> None:
    async with await broker.subscribe(b"a") as talk:
        assert await talk.error_of(b"UNSUBSCRIBE|b") == "not_subscribed"
        assert await talk.ask(b"UNSUBSCRIBE|a") == UNSUBACK
        assert await talk.error_of(b"UNSUBSCRIBE|a") == "not_subscribed"
        assert await talk.is_usable()
    await until(lambda: broker.node.broker.stats.subscriptions == 0, "the subscription is gone")


async def test_subscribing_twice_does_not_deliver_twice(broker: Serving) -> None:
    async with await broker.subscribe(b"t") as subscriber:
        assert await subscriber.ask(b"SUBSCRIBE|t") == SUBACK
        subscriber.send(b"SUBSCRIBE|t", b"SUBSCRIBE|t")
        assert await subscriber.lines(2) == [SUBACK, SUBACK]
        await broker.publish(b"t", [b"1", b"2"])
        assert await subscriber.lines(2) == [b"MESSAGE|t|1", b"MESSAGE|t|2"]
        assert await subscriber.is_usable(), "something came twice"
        assert await subscriber.ask(b"UNSUBSCRIBE|t") == UNSUBACK
        assert await subscriber.error_of(b"UNSUBSCRIBE|t") == "not_subscribed"


@pytest.mark.parametrize("sync", ["group", "none"])
async def test_message_published_right_behind_a_subscribe_is_delivered(tmp_path: Path, sync: str) -> None:
    async with serving(tmp_path, sync=sync) as broker:
        for number, (exists, reader) in enumerate(itertools.product((True, False), (b"", b"|reader"))):
            topic = b"t%d" % number
            if exists:
                await broker.publish(topic, [b"before"])
            async with await broker.connect() as talk:
                talk.send(b"SUBSCRIBE|" + topic + reader, b"PUBLISH|%b|1" % topic, b"PUBLISH_ID|1|%b|2" % topic)
                got = await talk.lines(5)
                deliveries = [b"MESSAGE|%b|1" % topic, b"MESSAGE|%b|2" % topic]
                assert sorted(got) == sorted([SUBACK, PUBACK, PUBACK, *deliveries])
                assert got.index(deliveries[0]) < got.index(deliveries[1])
                assert await talk.is_usable(), "more came than was published"


async def test_subscriber_of_a_topic_that_does_not_exist_yet_misses_nothing(broker: Serving) -> None:
    async with await broker.subscribe(b"later") as subscriber:
        values = [b"%d" % i for i in range(100)]
        await broker.publish(b"later", values)
        assert values_of(await subscriber.lines(100), b"later") == values


async def test_every_partition_of_a_topic_is_delivered_in_its_order(broker: Serving) -> None:
    await broker.http("POST", "/v1/topics", {"topic": "wide", "partitions": 4}, expect=201)
    sent: list[bytes] = []
    async with await broker.subscribe(b"wide") as subscriber, await broker.subscribe(b"wide", b"named") as named:
        async with await broker.connect() as talk:
            for i in range(200):
                value = b"%d" % i
                sent.append(value)
                assert await talk.ask(b"PUBLISH_ID|%d|wide|%d" % (i, i) if i % 3 else b"PUBLISH|wide|%d" % i) == PUBACK
        for reader in (subscriber, named):
            got = values_of(await reader.lines(200), b"wide")
            assert sorted(got) == sorted(sent)
            for number in range(4):
                stored = await broker.stored("wide", number)
                assert stored, "a partition got nothing of 200 messages"
                assert [value for value in got if value in set(stored)] == stored


async def test_answers_reach_a_client_that_closed_its_sending_half(broker: Serving) -> None:
    async with await broker.connect() as talk:
        talk.send(*[b"PUBLISH|t|%d" % i for i in range(500)], b"PUBLISH|no,path|x", b"PUBLISH_ID|i|t|last", b"PING")
        talk.writer.write_eof()
        answers = (await talk.closed_after()).split(b"\n")
        assert answers[:500] == [PUBACK] * 500
        assert code_of(answers[500]) == "bad_topic"
        assert answers[501:] == [PUBACK, b"PONG", b""]
    assert await broker.stored("t") == [*(b"%d" % i for i in range(500)), b"last"]
