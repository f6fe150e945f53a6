"""`SUBSCRIBE_ID`: deliveries say which message they are."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from testkit.serving import PUBACK, SUBACK, UNSUBACK, Serving, serving


async def test_messages_come_with_the_ids_that_http_shows(broker: Serving) -> None:
    given = [{"value": "a"}, {"value": "b", "id": "order-17"}, {"value": "c", "id": "50%|x"}, {"value": "d\ne"}]
    async with await broker.connect() as talk:
        assert await talk.ask(b"SUBSCRIBE_ID|t") == SUBACK
        await broker.http("POST", "/v1/topics/t/messages", {"messages": given})
        lines = await talk.lines(4)
        assert lines == [
            b"MESSAGE_ID|0-0|t|a",
            b"MESSAGE_ID|order-17|t|b",
            b"MESSAGE_ID|50%25%7Cx|t|c",
            b"MESSAGE_ID_BASE64|0-3|t|" + base64.b64encode(b"d\ne"),
        ]
        read = await broker.http("GET", "/v1/topics/t/partitions/0/messages")
        assert [message["id"] for message in read["messages"]] == ["0-0", "order-17", "50%|x", "0-3"]


async def test_ids_of_a_batch_read_from_its_middle_are_right(broker: Serving) -> None:
    """A reader under a name goes on within a batch; ids are counted from the batch's beginning."""
    async with await broker.connect() as talk:
        assert await talk.ask(b"SUBSCRIBE_ID|t|name") == SUBACK
        assert await talk.ask(b"UNSUBSCRIBE|t") == UNSUBACK
        await broker.publish(b"t", [b"%d" % number for number in range(10)])
        await broker.http("PUT", "/v1/topics/t/cursors/name", {"to": 7})
        assert await talk.ask(b"SUBSCRIBE_ID|t|name") == SUBACK
        assert await talk.lines(3) == [b"MESSAGE_ID|0-%d|t|%d" % (number, number) for number in (7, 8, 9)]


async def test_subscribers_with_and_without_ids_get_each_their_form_of_the_same_messages(broker: Serving) -> None:
    async with await broker.subscribe(b"t") as plain, await broker.connect() as with_ids:
        assert await with_ids.ask(b"subscribe_id|t|") == SUBACK
        for number in range(20):
            await broker.publish(b"t", [b"%d" % number])
            assert await plain.line() == b"MESSAGE|t|%d" % number
            assert await with_ids.line() == b"MESSAGE_ID|0-%d|t|%d" % (number, number)


@pytest.mark.parametrize("name", [b"", b"|reader"])
async def test_subscribing_again_changes_the_form_and_misses_nothing(broker: Serving, name: bytes) -> None:
    async with await broker.connect() as talk:
        assert await talk.ask(b"SUBSCRIBE|t" + name) == SUBACK
        await broker.publish(b"t", [b"1"])
        assert await talk.line() == b"MESSAGE|t|1"
        assert await talk.ask(b"SUBSCRIBE_ID|t" + name) == SUBACK
        await broker.publish(b"t", [b"2"])
        assert await talk.line() == b"MESSAGE_ID|0-1|t|2"
        assert await talk.ask(b"SUBSCRIBE|t" + name) == SUBACK
        await broker.publish(b"t", [b"3"])
        assert await talk.line() == b"MESSAGE|t|3"
        assert await talk.is_usable(), "something came twice"


async def test_messages_published_by_id_over_the_text_protocol_keep_it(broker: Serving) -> None:
    async with await broker.connect() as talk:
        assert await talk.ask(b"SUBSCRIBE_ID|t") == SUBACK
        talk.send(b"PUBLISH_ID|mine|t|x", b"PUBLISH_ID|mine|t|x", b"PUBLISH|t|y")
        got = await talk.lines(5)
        assert sorted(got) == sorted([PUBACK] * 3 + [b"MESSAGE_ID|mine|t|x", b"MESSAGE_ID|0-1|t|y"])


async def test_ack_dialect_says_nothing_to_the_subscribe_and_delivers_ids(tmp_path: Path) -> None:
    async with serving(tmp_path, text_dialect="ack") as broker, await broker.raw() as talk:
        assert await talk.ask(b"SUBSCRIBE_ID|t", b"PING") == b"PONG"
        talk.send(b"PUBLISH|t|x")
        assert sorted(await talk.lines(2)) == [b"ACK", b"MESSAGE_ID|0-0|t|x"]


async def test_ids_name_the_partition(broker: Serving) -> None:
    await broker.http("POST", "/v1/topics", {"topic": "wide", "partitions": 3}, expect=201)
    async with await broker.connect() as talk:
        assert await talk.ask(b"SUBSCRIBE_ID|wide") == SUBACK
        for number in range(3):
            body = {"messages": [{"value": str(number), "partition": number}]}
            await broker.http("POST", "/v1/topics/wide/messages", body)
        got = await talk.lines(3)
        assert sorted(got) == [b"MESSAGE_ID|%d-0|wide|%d" % (number, number) for number in range(3)]


async def test_many_subscribers_at_the_tail_get_the_same(broker: Serving) -> None:
    talks = [await broker.connect() for _ in range(10)]
    for talk in talks:
        assert await talk.ask(b"SUBSCRIBE_ID|t") == SUBACK
    values = [b"%d" % number for number in range(2000)]
    await broker.publish(b"t", values)
    expected = [b"MESSAGE_ID|0-%d|t|%b" % (number, value) for number, value in enumerate(values)]
    for lines in await asyncio.gather(*(talk.lines(2000) for talk in talks)):
        assert lines == expected
    for talk in talks:
        await talk.close()
