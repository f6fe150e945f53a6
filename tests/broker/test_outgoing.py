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


async def test_readers_wait_for_room_in_their_order_and_never_hold_more() -> None:
    outgoing = Outgoing(Turns(), bytes_max=100)
    made: list[int] = []

    async def read(number: int) -> None:
        await outgoing.room()
        made.append(number)
        outgoing.hold(60)

    tasks = [asyncio.create_task(read(number)) for number in range(6)]
    await turns()
    assert made == [0, 1] and outgoing.is_short
    tasks[2].cancel()
    await turns()
    outgoing.hold(-60)
    await turns()
    assert made == [0, 1, 3] and outgoing.bytes_held == 120
    outgoing.hold(-120)
    await turns()
    assert made == [0, 1, 3, 4, 5] and not outgoing.is_short
    outgoing.hold(-outgoing.bytes_held)
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_reader_that_gives_up_as_its_turn_comes_leaves_it_to_the_next_one() -> None:
    outgoing = Outgoing(Turns(), bytes_max=10)
    outgoing.hold(10)
    first, second = asyncio.create_task(outgoing.room()), asyncio.create_task(outgoing.room())
    await turns()
    outgoing.hold(-10)
    first.cancel()
    async with asyncio.timeout(10):
        await second


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


def test_pieces_of_all_connections_stay_within_their_bound() -> None:
    for connections in (1, 500, 1_000, 10_000):
        assert connections * piece_bytes(connections) <= SUBSCRIBER_PIECES_BYTES
    assert piece_bytes(0) == piece_bytes(1)
