"""What a reader gets when the broker has lost something, and when the reader has lost the broker."""

from __future__ import annotations

import pytest

from holdfast.client import ConnectionLost, RemoteError
from tests.client.client_servers import Answer, Call, LogScript, batch_at, error, scripted
from tests.client.reading import take


async def read_values(script: LogScript, count: int, start: int) -> list[bytes]:
    async with scripted(script) as (_, broker), broker.subscribe("orders", start=start) as messages:
        return [message.value for message in await take(messages, count)]


async def test_messages_before_the_position_are_not_delivered_again() -> None:
    script = LogScript({3: (200, batch_at(1, b"1", b"2", b"3", b"4") + batch_at(5, b"5"))})
    assert await read_values(script, 3, start=3) == [b"3", b"4", b"5"]


async def test_expired_messages_are_reported_and_reading_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    script = LogScript({2: (416, error("offset_out_of_range")), 7: (200, batch_at(7, b"7"))}, earliest=7)
    assert await read_values(script, 1, start=2) == [b"7"]
    assert "orders/0: 5 messages, from offset 2 on, expired before they were read" in caplog.text


async def test_damaged_messages_are_reported_and_reading_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    script = LogScript({0: (500, error("damaged_data", next_offset=4)), 4: (200, batch_at(4, b"4"))})
    assert await read_values(script, 1, start=0) == [b"4"]
    assert "4 messages, from offset 0 on, are damaged" in caplog.text


async def test_a_log_that_is_shorter_than_the_position_is_an_error_and_not_a_fresh_start() -> None:
    script = LogScript({9: (416, error("offset_out_of_range"))}, earliest=0)
    with pytest.raises(RemoteError) as caught:
        await read_values(script, 1, start=9)
    assert caught.value.code == "offset_out_of_range"


async def test_bytes_that_were_bent_on_the_way_are_asked_for_again() -> None:
    good = batch_at(0, b"payload")
    bent = good[:-3] + b"X" + good[-2:]
    script = LogScript({0: (200, bent)})

    async def heal(call: Call) -> Answer:
        answer = await script(call)
        if 0 in script.asked:
            script.reads[0] = (200, good)
        return answer

    async with scripted(heal) as (_, broker), broker.subscribe("orders", start=0) as messages:
        assert (await take(messages, 1))[0].value == b"payload"
    assert script.asked.count(0) == 2


async def test_a_subscription_that_lost_the_broker_says_so_and_goes_on_when_asked_again() -> None:
    script = LogScript({0: (200, batch_at(0, b"0"))})
    async with scripted(script, timeout_s=0.3) as (server, broker), broker.subscribe("orders", start=0) as messages:
        assert (await take(messages, 1))[0].offset == 0
        script.down.set()
        script.reads[1] = (200, batch_at(1, b"1"))
        with pytest.raises(ConnectionLost, match=server.address):
            await messages.get(timeout_s=60)
        script.down.clear()
        assert (await take(messages, 1))[0].offset == 1


async def test_reader_goes_on_behind_answers_that_no_broker_gave() -> None:
    script = LogScript({0: (200, batch_at(0, b"a", b"b"))})
    strange = [(404, b"<h1>not here</h1>"), (500, b"upstream trouble")]

    async def with_a_proxy(call: Call) -> Answer:
        return strange.pop() if strange and "/messages" in call.target else await script(call)

    async with scripted(with_a_proxy) as (_, broker), broker.subscribe("orders", start=0) as messages:
        assert [message.value for message in await take(messages, 2)] == [b"a", b"b"]
    assert strange == []
