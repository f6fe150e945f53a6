"""Whoever waits for a connection gets one in its turn or is told so: nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.client.addresses import Address
from holdfast.proxy.pool import Pool, PoolFull
from holdfast.testing.ports import free_port


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """One connection at most, to somebody who says nothing."""
    ended: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.put_nowait(b"")

    port = free_port()
    server = await asyncio.start_server(listen, "127.0.0.1", port)
    pool = Pool(Address("127.0.0.1", port), 1, 1.0, lambda _: None)
    yield pool
    pool.close()
    await ended.get()
    server.close()


def soon_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_turn_of_whoever_does_not_want_it_any_more_goes_to_the_next(pool: Pool) -> None:
    taken = await pool.take(soon_s(60))
    leaving = asyncio.create_task(pool.take(soon_s(60)))
    staying = asyncio.create_task(pool.take(soon_s(60)))
    await asyncio.sleep(0)
    pool.give_back(taken)
    # Its turn is set, and it has not seen it yet.
    leaving.cancel()
    assert await staying is taken
    with pytest.raises(asyncio.CancelledError):
        await leaving
    pool.give_back(taken)


async def test_waiting_ends_at_the_deadline_and_leaves_nothing_behind(pool: Pool) -> None:
    taken = await pool.take(soon_s(60))
    with pytest.raises(PoolFull):
        await pool.take(soon_s(0.05))
    pool.give_back(taken)
    assert await pool.take(soon_s(0.05)) is taken
    pool.close()
    pool.give_back(taken)
    assert pool.open == 0
