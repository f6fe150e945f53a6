"""Publisher and subscriber against a real pair whose brokers are killed in turn: 0 lost, 0 twice, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from testkit.wait import until

from holdfast.cli.demo.pair_process import PairProcesses
from holdfast.client import ConnectionChange, PairPublisher, PairSubscriber


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[PairProcesses]:
    made = PairProcesses(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


async def together(pair: PairProcesses) -> None:
    await until(lambda: asyncio.to_thread(pair.are_together), "they are together")


async def test_brokers_killed_in_turn_lose_nothing_and_repeat_nothing(pair: PairProcesses) -> None:
    addresses = list(pair.addresses.values())
    received: list[int] = []
    publishing: list[asyncio.Future[object]] = []
    is_connected = dict.fromkeys(addresses, True)

    def changed(change: ConnectionChange) -> None:
        is_connected[change.broker] = change.is_connected

    def is_as(broker: str, connected: bool) -> bool:
        return is_connected[broker] == connected

    async def more_come() -> None:
        before = len(received)
        await until(lambda: len(received) > before + 20, "messages come")

    async def read(subscriber: PairSubscriber) -> None:
        async for message in subscriber:
            received.append(int(message.value))

    async def publish(publisher: PairPublisher) -> None:
        while True:
            value = b"%d" % len(publishing)
            publishing.append(asyncio.ensure_future(publisher.publish("t", value)))
            await asyncio.sleep(0.005)

    async with (
        PairSubscriber("t", *addresses, on_change=changed) as subscriber,
        PairPublisher(*addresses, on_change=lambda change: None) as publisher,
    ):
        tasks = [asyncio.ensure_future(read(subscriber)), asyncio.ensure_future(publish(publisher))]
        for serving, other in (("primary", "backup"), ("backup", "primary"), ("primary", "backup")):
            address = pair.addresses[serving]
            await more_come()
            pair.kill(serving)
            await more_come()
            assert publisher.broker == pair.addresses[other], "the other one has taken over"
            await until(partial(is_as, address, False), "the subscriber has noticed")
            pair.spawn(serving)
            await until(partial(is_as, address, True), "the old one is back")
            # Before that the one that is left is on its own: nobody could carry on for it.
            await together(pair)
        tasks[1].cancel()
        await asyncio.gather(*publishing)
        await until(lambda: len(received) >= len(publishing), "everything has come")
        tasks[0].cancel()
    assert received == list(range(len(publishing)))
    # On a busy machine the first answer may take too long, and the publisher begins at the backup: that is one less.
    assert publisher.counts.switches >= 2
