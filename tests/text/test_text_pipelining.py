"""Many lines without waiting: each gets its own answer, in order, and exactly what was acknowledged is stored."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from testkit.serving import PUBACK, SUBACK, Serving, code_of, serving, values_of
from testkit.sizes import dice


@pytest.mark.parametrize("sync", ["group", "none"])
async def test_each_of_20000_pipelined_lines_is_acknowledged_once_and_stored_in_order(
    tmp_path: Path, sync: str
) -> None:
    count = 20_000
    async with serving(tmp_path, sync=sync) as broker:
        async with await broker.subscribe(b"t") as subscriber, await broker.connect() as talk:
            talk.send(*[b"PUBLISH|t|%d" % i for i in range(count)], b"PING")
            assert await talk.lines(count) == [PUBACK] * count
            assert await talk.line() == b"PONG", "there were more acknowledgements than lines"
            expected = [b"%d" % i for i in range(count)]
            assert await broker.stored("t") == expected
            assert values_of(await subscriber.lines(count), b"t") == expected
        assert broker.node.broker.stats.published_messages == count


@pytest.mark.parametrize("sync", ["group", "none"])
async def test_answers_of_all_kinds_come_in_the_order_of_their_lines(tmp_path: Path, sync: str) -> None:
    rolled = dice("kinds of lines")
    kinds = [
        (b"PUBLISH|%b|%d", PUBACK),
        (b"PUBLISH_ID|id-%b-%d|ids|x", PUBACK),
        (b"PING||", b"PONG"),
        (b"HEARTBEAT", b"HEARTBEAT_ACK"),
        (b"PUBLISH|no,path|x", "bad_topic"),
        (b"PUBLISH_ID||ids|x", "bad_id"),
        (b"UNSUBSCRIBE|nothing", "not_subscribed"),
        (b"PUBLISH|t", "bad_command"),
        (b"DANCE", "bad_command"),
    ]
    lines, expected = [], []
    for i in range(5000):
        line, answer = rolled.choices(kinds, weights=[20, 5, 1, 1, 1, 1, 1, 1, 1])[0]
        lines.append(line % (rolled.choice([b"a", b"b", b"c"]), i) if b"%" in line else line)
        expected.append(answer)
    async with serving(tmp_path, sync=sync) as broker, await broker.connect() as talk:
        talk.send(*lines)
        got = await talk.lines(len(lines))
        told = [line if isinstance(wish, bytes) else code_of(line) for line, wish in zip(got, expected, strict=True)]
        assert told == expected
        assert await talk.is_usable()
        for topic in ("a", "b", "c"):
            sent = [line.split(b"|")[2] for line in lines if line.startswith(b"PUBLISH|%b|" % topic.encode())]
            assert await broker.stored(topic) == sent


async def test_bad_topic_among_good_ones_in_one_piece_costs_only_its_own_lines(broker: Serving) -> None:
    for i in range(20):  # also while the topics do not exist yet, and once they do
        lines = [
            b"PUBLISH|%b|%d" % (topic, i) for topic in (b"a", b"no,path", b"b", b"a", b"..", b"", b"b", b"new-%d" % i)
        ]
        async with await broker.connect() as talk:
            talk.send(*lines)
            got = await talk.lines(len(lines))
            assert [line if line == PUBACK else code_of(line) for line in got] == [
                PUBACK, "bad_topic", PUBACK, PUBACK, "bad_topic", "bad_topic", PUBACK, PUBACK,
            ]  # fmt: skip
            assert b"no,path" in got[1] and b"'..'" in got[4], "an answer is about another line"
            assert await talk.is_usable()
    assert await broker.stored("a") == await broker.stored("b") == [b"%d" % i for i in range(20) for _ in range(2)]
    assert await broker.stored("new-7") == [b"7"]


async def test_message_that_is_too_large_costs_no_message_that_came_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path, message_bytes_max=1000) as broker, await broker.connect() as talk:
        for number, (before, large, after) in enumerate((b"ttt", b"utv", b"ttu")):
            topics = [b"%c%d" % (each, number) for each in (before, large, after)]
            lines = [b"PUBLISH|" + topic for topic in topics]
            talk.send(lines[0] + b"|before", lines[1] + b"|" + b"x" * 1001, lines[2] + b"|after", b"PING")
            got = await talk.lines(4)
            assert [got[0], code_of(got[1]), *got[2:]] == [PUBACK, "too_large", PUBACK, b"PONG"]
            assert await talk.error_of(b"PUBLISH_ID|i|%b|" % topics[1] + b"x" * 1001) == "too_large"
            assert await talk.ask(lines[1] + b"|" + b"x" * 1000) == PUBACK
            stored = [value for topic in set(topics) for value in await broker.stored(topic.decode())]
            assert sorted(stored) == [b"after", b"before", b"x" * 1000]


async def test_thousand_ids_sent_twice_in_one_pipeline_are_stored_once(broker: Serving) -> None:
    rolled = dice("ids sent twice")
    ids = list(range(1000)) * 2
    rolled.shuffle(ids)
    async with await broker.subscribe(b"t") as subscriber, await broker.connect() as talk:
        talk.send(*[b"PUBLISH_ID|order-%d|t|%d" % (number, number) for number in ids], b"PING")
        assert await talk.lines(2000) == [PUBACK] * 2000
        assert await talk.line() == b"PONG"
        first_of_each = [b"%d" % number for number in dict.fromkeys(ids)]
        assert await broker.stored("t") == first_of_each
        assert values_of(await subscriber.lines(1000), b"t") == first_of_each
        assert await subscriber.is_usable(), "a resend was delivered"
    assert broker.node.broker.stats.duplicates == 1000


async def test_ids_that_are_not_text_are_refused_and_never_taken_for_each_other(broker: Serving) -> None:
    async with await broker.connect() as talk:
        assert await talk.error_of(b"PUBLISH_ID|\xff|t|one") == "bad_id"
        assert await talk.error_of(b"PUBLISH_ID|\xfe|t|two") == "bad_id"
        assert await talk.ask("PUBLISH_ID|für-1|t|three".encode()) == PUBACK
        assert await talk.ask("PUBLISH_ID|für-2|t|four".encode()) == PUBACK
    assert await broker.stored("t") == [b"three", b"four"]


async def test_lines_cut_into_pieces_anywhere_are_whole_again(broker: Serving) -> None:
    rolled = dice("cut lines")
    values = [rolled.randbytes(rolled.randrange(40)).replace(b"\n", b"").replace(b"\r", b"") for _ in range(400)]
    data = b"".join(b"PUBLISH|t|%b\r\n" % value for value in values)
    async with await broker.connect() as talk:
        while data:
            size = rolled.choice([1, 2, 7, 30, 200])
            talk.writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        assert await talk.lines(len(values)) == [PUBACK] * len(values)
    assert await broker.stored("t") == values


async def test_order_of_one_connection_holds_while_many_publish(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:

        async def publisher(number: int) -> None:
            rolled = random.Random(number)
            async with await broker.connect() as talk:
                left = [b"PUBLISH|t|%d-%d" % (number, i) for i in range(300)]
                while left:
                    count = rolled.randrange(1, 60)
                    part, left = left[:count], left[count:]
                    talk.send(*part)
                    assert await talk.lines(len(part)) == [PUBACK] * len(part)

        await asyncio.gather(*[publisher(number) for number in range(10)])
        stored = await broker.stored("t")
        assert len(stored) == 3000
        for number in range(10):
            mine = [value for value in stored if value.startswith(b"%d-" % number)]
            assert mine == [b"%d-%d" % (number, i) for i in range(300)]


async def test_subscribe_between_publishes_starts_where_it_stands(tmp_path: Path) -> None:
    async with serving(tmp_path, sync="none") as broker, await broker.connect() as talk:
        assert await talk.ask(b"PUBLISH|t|0") == PUBACK
        talk.send(
            b"PUBLISH|t|1", b"SUBSCRIBE|t", b"PUBLISH|t|2", b"UNSUBSCRIBE|t", b"PUBLISH|t|3", b"SUBSCRIBE|t", b"PING"
        )
        got = await talk.lines(7)
        assert got.count(PUBACK) == 3 and got.count(SUBACK) == 2 and b"PONG" in got
        assert await talk.ask(b"PUBLISH|t|4") in (PUBACK, b"MESSAGE|t|4")
        assert await talk.line() in (PUBACK, b"MESSAGE|t|4")
        assert await talk.is_usable(), "a message from before the subscription came"


async def test_lines_that_look_alike_reach_their_own_topics(broker: Serving) -> None:
    """All lines have one length, and now and then one goes to another topic of a name of the same length."""
    rolled = dice("lines that look alike")
    stored: dict[str, list[bytes]] = {}
    async with await broker.connect() as talk:
        for start in range(0, 20_000, 1_000):
            lines = []
            for i in range(start, start + 1_000):
                topic = "b" if rolled.random() < 0.01 or i in (64, 8_192) else "a"
                stored.setdefault(topic, []).append(b"%07d" % i)
                lines.append(b"PUBLISH|%b|%07d" % (topic.encode(), i))
            talk.send(*lines)
            assert await talk.lines(1_000) == [PUBACK] * 1_000
    for topic, values in stored.items():
        assert await broker.stored(topic) == values, "an acknowledged message is in another topic"
