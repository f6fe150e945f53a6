"""Clients that send rubbish, come all at once, or flood a broker whose disk is slow."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from testkit.serving import CONNACK, DEADLINE_S, PUBACK, SUBACK, Serving, Talk, code_of, serving, values_of
from testkit.sizes import dice, scaled
from testkit.wait import until, until_quiet

MIB = 1 << 20


async def test_rubbish_never_hurts_anybody_but_its_sender(tmp_path: Path) -> None:
    rolled = dice("rubbish")
    words = [*b"PUBLISH PUBLISH_ID SUBSCRIBE UNSUBSCRIBE PING HEARTBEAT t u | || ../..".split(), b""]
    words += [b"\n", b"\r\n", b"\n\n", b"\r", b"\0", b"\xff\xfe", b"\xc3", b"x" * 3000, b"GET / HTTP/1.1\r\n\r\n"]

    def rubbish() -> bytes:
        if rolled.random() < 0.3:
            return rolled.randbytes(rolled.randrange(2000))
        return b"|".join(rolled.choices(words, k=rolled.randrange(40)))

    async with serving(tmp_path, message_bytes_max=2000) as broker:
        async with await broker.subscribe(b"sane") as subscriber, await broker.connect() as sane:
            for turn in range(scaled(40, 1000)):
                talk = await broker.connect()
                for _ in range(rolled.randrange(1, 8)):
                    if talk.writer.is_closing():
                        break  # it was closed for a line that was too long
                    talk.writer.write(rubbish() + rolled.choice([b"", b"\n"]))
                    await asyncio.sleep(0)
                if rolled.random() < 0.5:
                    talk.abort()
                await talk.close()
                assert await sane.ask(b"PUBLISH|sane|%d" % turn) == PUBACK
            expected = [b"%d" % turn for turn in range(scaled(40, 1000))]
            assert values_of(await subscriber.lines(len(expected)), b"sane") == expected
        # Where a piece has no line break at its end, its last word and the first of the next one are a word.
        whole = "|".join(word.decode() for word in words[:6])
        possible = re.compile(rf"sane|(t|u|\.\./\.\.|GET / HTTP/1\.1|{whole})+")
        strange = [topic.topic for topic in broker.node.broker.topics() if not possible.fullmatch(topic.topic)]
        assert strange == [], "rubbish became a topic"
        await broker.publish(b"wake", [b"up"])


async def test_one_of_many_bytes_at_a_time_is_answered_like_any_other(broker: Serving) -> None:
    rolled = dice("random lines")
    data = rolled.randbytes(20_000).replace(b"PUB", b"")
    async with await broker.connect() as talk:
        talk.writer.write(data + b"\n")
        lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
        for line in filter(None, lines):
            assert code_of(await talk.line()) == "bad_command", line
        assert await talk.is_usable()


async def test_connections_that_come_all_at_once_do_not_get_past_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_max=5) as broker:
        talks = await asyncio.gather(*[broker.raw() for _ in range(60)])
        first = [await talk.line() for talk in talks]
        assert first.count(CONNACK) == 5
        assert {code_of(line) for line in first if line != CONNACK} == {"too_many_connections"}
        for talk, line in zip(talks, first, strict=True):
            if line == CONNACK:
                assert await talk.is_usable()
            else:
                assert await talk.closed_after() == b""
            await talk.close()
        assert broker.node.broker.stats.errors["too_many_connections"] == 55
        await until(lambda: broker.node.text.connections == 0, "the places are given back")
        async with await broker.connect() as talk:
            assert await talk.ask(b"PUBLISH|t|x") == PUBACK


async def test_thousand_connections_that_publish_once_are_all_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        talks = [await broker.connect() for _ in range(1000)]
        for i, talk in enumerate(talks):
            talk.send(b"PUBLISH|t|%d" % i)
        for talk in talks:
            assert await talk.line() == PUBACK
        assert sorted(map(int, await broker.stored("t"))) == list(range(1000))
        for talk in talks:
            await talk.close()
        await until(lambda: broker.node.text.connections == 0, "the connections are let go")


async def test_line_that_is_ended_in_time_by_and_by_is_taken_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, half_line_timeout_ms=1500) as broker,
        await broker.connect() as slow,
        await broker.connect() as never,
        await broker.connect() as other,
    ):
        for piece in (b"PUBL", b"ISH|t|s", b"low\n"):
            slow.writer.write(piece)
            await asyncio.sleep(0.05)
        assert await slow.line() == PUBACK
        started = asyncio.get_running_loop().time()
        code = b""
        while not code and asyncio.get_running_loop().time() - started < DEADLINE_S:
            never.writer.write(b"x")  # a byte now and then does not make it a line
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    code = await never.line()
        assert code_of(code) == "half_line_timeout"
        assert await never.closed_after() == b""
        assert await other.is_usable() and await slow.is_usable()


async def test_steady_publisher_is_not_taken_for_a_silent_one(tmp_path: Path) -> None:
    """What it sends ends in the middle of a line every time, and yet no line is ever late."""
    async with serving(tmp_path, half_line_timeout_ms=1000) as broker, await broker.connect() as talk:
        began_s, sent = asyncio.get_running_loop().time(), 0
        talk.writer.write(b"PUBLISH|t|0")
        # Longer than the timeout and two looks for half lines.
        while asyncio.get_running_loop().time() - began_s < 3:
            sent += 1
            talk.writer.write(b"\nPUBLISH|t|%d" % sent)
            assert await talk.line() == PUBACK
            await asyncio.sleep(0.02)
        assert await talk.ask(b"") == PUBACK
        assert await broker.stored("t") == [b"%d" % number for number in range(sent + 1)]


async def test_subscriber_closed_for_a_half_line_loses_nothing(tmp_path: Path) -> None:
    """The broker closes the connection while messages still wait for a slow reader."""
    # No more than the broker's machine takes for it: from a client that takes nothing no half line is expected.
    values = [b"%d %b" % (number, b"x" * 290) for number in range(5_000)]
    async with serving(tmp_path, half_line_timeout_ms=200) as broker:
        async with await broker.stalled(b"t", b"name") as slow:
            slow.writer.write(b"PING\nhalf a li")
            await broker.publish(b"t", values)
            await until(lambda: broker.node.broker.stats.errors["half_line_timeout"] == 1, "it is closed")
            slow.resume()
            rest = (await slow.closed_after()).split(b"\n")
        seen = values_of([line for line in rest[:-1] if line.startswith(b"MESSAGE|")], b"t")
        assert seen == values[: len(seen)]
        await broker.publish(b"t", [b"last"])
        async with await broker.subscribe(b"t", b"name") as again:
            first = [*values, b"last"].index(values_of([await again.line()], b"t")[0])
            assert first <= len(seen), f"messages {len(seen)} to {first - 1} were never delivered"
            expected = [*values, b"last"][first + 1 :]
            assert values_of(await again.lines(len(expected)), b"t") == expected


async def test_connections_that_come_and_go_leave_nothing_behind(broker: Serving) -> None:
    """Nobody publishes meanwhile: a client that closed is gone though nothing was sent to it."""
    for number in range(scaled(150, 3000)):
        talk = await broker.connect()
        talk.send(b"SUBSCRIBE|t" if number % 2 else b"SUBSCRIBE|t|name")
        if number % 3 == 0:
            assert await talk.line() == SUBACK
        if number % 5 == 0:
            talk.send(b"UNSUBSCRIBE|t")
        if number % 4 == 0:
            talk.abort()
        await talk.close()
    await until(lambda: broker.node.text.connections == 0, "the connections are let go")
    await until(lambda: broker.node.broker.stats.subscriptions == 0, "the subscriptions are let go")


async def test_publisher_whose_connection_breaks_leaves_whole_messages_only(broker: Serving) -> None:
    for number in range(20):
        talk = await broker.connect()
        talk.send(*[b"PUBLISH|t|%d/%d" % (number, i) for i in range(50)])
        talk.writer.write(b"PUBLISH|t|half")
        await asyncio.sleep(0.002 * (number % 3))
        talk.abort()
        await talk.close()
    await broker.publish(b"t", [b"last"])
    await until(lambda: broker.node.text.connections == 0, "the connections are let go")
    stored = await broker.stored("t")
    assert b"last" in stored and b"half" not in stored
    for number in range(20):
        of_this = [value for value in stored if value.startswith(b"%d/" % number)]
        assert of_this == [b"%d/%d" % (number, i) for i in range(len(of_this))], "messages are out of order"


async def test_client_that_sends_on_reads_why_it_is_hung_up_on(tmp_path: Path) -> None:
    """It sends far more than the broker's machine takes without being read, and only then looks for an answer."""
    async with serving(tmp_path, message_bytes_max=10_000) as broker, await broker.connect() as talk:
        talk.writer.write(b"PUBLISH|t|" + b"x" * (16 * MIB))
        await talk.writer.drain()
        assert code_of(await talk.line()) == "line_too_long"
        assert await talk.closed_after() == b""
        assert broker.node.broker.topics() == []


async def test_over_long_line_behind_a_slow_disk_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, message_bytes_max=1000) as broker, await broker.connect() as talk:
        waiting: list[asyncio.Future[int]] = []

        def hold(*_: object) -> asyncio.Future[int]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        await broker.publish(b"t", [b"before"])
        monkeypatch.setattr(broker.node.backend, "append", hold)
        talk.send(b"PUBLISH|t|1", b"PING", b"PUBLISH_ID|i|t|2")
        talk.writer.write(b"PUBLISH|t|" + b"x" * 5000)
        await until(lambda: len(waiting) == 2, "both lines are waiting for the disk")
        for future in waiting:
            future.set_result(1)
        answers = (await talk.closed_after()).split(b"\n")
        assert answers[:3] == [PUBACK, b"PONG", PUBACK]
        assert code_of(answers[3]) == "line_too_long"
        assert answers[4:] == [b""]


FLOODS = {
    "publishes": b"".join(b"PUBLISH|t|%d\n" % i for i in range(500)),
    "with ids": b"".join(b"PUBLISH_ID|%d|t|\n" % i for i in range(500)),
    "pings": b"PING\n" * 1000,
    "errors": b"X\n" * 1000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_flood_to_a_disk_that_stalls_is_stopped_and_nobody_else_suffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    async with serving(tmp_path, drain_ms=50) as broker, await broker.connect() as other:
        await broker.publish(b"t", [b"before"])
        talk = await broker.connect()
        monkeypatch.setattr(broker.node.backend, "append", lambda *_: asyncio.get_running_loop().create_future())
        talk.send(b"PUBLISH_ID|first|t|x", b"PUBLISH|t|y")
        sent = await send_until_stopped(talk, flood, 64 * MIB)
        assert sent < 64 * MIB, "a client whose answers wait is read without end"
        await until_quiet(lambda: broker.node.text.waiting_replies)
        assert 0 < broker.node.text.waiting_replies < 100_000, "each of them costs memory, however short its line was"
        assert await other.is_usable()
        talk.abort()
        await talk.close()


async def send_until_stopped(talk: Talk, piece: bytes, bytes_max: int) -> int:
    """Send until nothing is taken for a while; returns how much was."""
    talk.writer.transport.set_write_buffer_limits(high=1 << 16)
    sent = 0
    while sent < bytes_max:
        talk.writer.write(piece)
        sent += len(piece)
        try:
            async with asyncio.timeout(0.7):
                await talk.writer.drain()
        except TimeoutError:
            break
    return sent


async def test_half_a_line_is_not_held_against_a_client_that_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stopped reading, because the disk was slow: the client could not end its line."""
    async with serving(tmp_path, half_line_timeout_ms=200) as broker, await broker.connect() as talk:
        await broker.publish(b"t", [b"before"])
        held: list[asyncio.Future[int]] = []

        def hold(*_: object) -> asyncio.Future[int]:
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        with monkeypatch.context() as slow:
            slow.setattr(broker.node.backend, "append", hold)
            # More than may wait for the disk, in lines of an odd length, so that it is cut anywhere.
            talk.send(*[b"PUBLISH|t|%b" % (b"x" * 99_991)] * 400)
            await until_quiet(lambda: len(held), quiet_s=2.5)  # longer than two looks for half lines take
        for future in held:
            future.set_result(1)
        assert await talk.lines(400) == [PUBACK] * 400
        assert await talk.is_usable()


async def test_slow_subscriber_that_fell_far_behind_gets_every_message_once_in_order(tmp_path: Path) -> None:
    count = 15_000
    async with serving(tmp_path, sync="none") as broker:
        slow = await broker.stalled(b"t")
        async with await broker.subscribe(b"t") as quick:
            values = [b"%d %b" % (i, b"x" * 990) for i in range(count)]
            publishing = asyncio.create_task(broker.publish(b"t", values))
            assert values_of(await quick.lines(count), b"t") == values
            await publishing
        slow.resume()
        assert values_of(await slow.lines(count), b"t") == values
        assert await slow.is_usable(), "something came twice"
        await slow.close()
