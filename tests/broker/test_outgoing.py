"""One bound over what all readers hold, and turns on the event loop."""

from __future__ import annotations

import asyncio
import time

from holdfast.broker.outgoing import Outgoing, piece_bytes
from holdfast.broker.turns import Turns
from holdfast.model.limits import SUBSCRIBER_PIECES_BYTES


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_readers_of_large_things_wait_for_room_in_their_order_and_never_hold_more() -> None:
    outgoing = Outgoing(bytes_max=100)
    made: list[int] = []

    async def read(number: int, size: int) -> None:
        await outgoing.room(size)
        made.append(number)

    # The fourth one is larger than what is left; nobody overtakes it.
    tasks = [asyncio.create_task(read(number, size)) for number, size in enumerate((40, 50, 50, 70, 10, 10))]
    await turns()
    assert made == [0, 1] and outgoing.bytes_held == 90 and outgoing.is_short
    tasks[2].cancel()
    await turns()
    outgoing.hold(-40)
    await turns()
    assert made == [0, 1] and outgoing.bytes_held == 50
    outgoing.hold(-50)
    await turns()
    assert made == [0, 1, 3, 4, 5] and outgoing.bytes_held == 90
    outgoing.hold(-90)
    assert not outgoing.is_short
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_reader_that_gives_up_as_its_turn_comes_leaves_it_to_the_next_one() -> None:
    outgoing = Outgoing(bytes_max=10)
    outgoing.hold(10)
    first, second = asyncio.create_task(outgoing.room(10)), asyncio.create_task(outgoing.room(10))
    await turns()
    outgoing.hold(-10)
    first.cancel()
    async with asyncio.timeout(60):
        await second
    assert outgoing.bytes_held == 10


async def test_reader_that_gave_up_before_its_turn_gives_back_nothing() -> None:
    outgoing = Outgoing(bytes_max=10)
    outgoing.hold(10)
    waiting = asyncio.create_task(outgoing.room(10))
    await turns()
    waiting.cancel()
    outgoing.hold(-10)
    await asyncio.gather(waiting, return_exceptions=True)
    assert outgoing.bytes_held == 0


async def test_nobody_who_comes_later_takes_the_room_that_the_first_one_waits_for() -> None:
    outgoing = Outgoing(bytes_max=10)
    outgoing.hold(8)
    waiting = asyncio.create_task(outgoing.room(5))
    await turns()
    assert not outgoing.has_room(1)
    outgoing.hold(-8)
    await waiting
    assert outgoing.bytes_held == 5 and outgoing.has_room(1)


async def test_room_is_short_when_half_of_it_is_used() -> None:
    outgoing = Outgoing(bytes_max=100)
    assert outgoing.has_ample_room(50) and not outgoing.has_ample_room(51)
    outgoing.hold(51)
    assert outgoing.is_short and outgoing.has_room(49) and not outgoing.has_ample_room(1)


async def test_network_is_looked_at_between_the_turns_of_many_readers() -> None:
    shared = Turns()
    rounds = 0

    async def read() -> None:
        await shared.take()
        busy_until = time.thread_time() + 0.004
        while time.thread_time() < busy_until:
            pass

    readers = [asyncio.create_task(read()) for _ in range(100)]
    while not all(task.done() for task in readers):
        await asyncio.sleep(0)
        rounds += 1
    # Half a second of work in pieces of a hundredth, and not in one.
    assert rounds > 20


async def test_large_requests_go_on_however_many_readers_take_turns() -> None:
    shared, rounds, is_done = Turns(), 0, False

    async def read() -> None:
        while not is_done:
            await shared.take()
            busy_until = time.thread_time() + 0.002
            while time.thread_time() < busy_until:
                pass

    readers = [asyncio.create_task(read()) for _ in range(100)]
    await turns()
    taking = asyncio.create_task(shared.take_for_request())
    while not taking.done():
        await asyncio.sleep(0)
        rounds += 1
    is_done = True
    await asyncio.gather(*readers)
    # Behind the readers it would be more than ten.
    assert rounds <= 5


def test_pieces_of_all_connections_stay_within_their_bound() -> None:
    for connections in (1, 500, 1_000, 10_000):
        assert connections * piece_bytes(connections) <= SUBSCRIBER_PIECES_BYTES
    assert piece_bytes(0) == piece_bytes(1)
