"""What a receiver is told of its subscriptions comes in the order in which that was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from testkit.wait import until

from holdfast.broker.callback_addresses import CallbackAddress, CallbackPolicy
from holdfast.frontends.callbacks.announcing import Announcer
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.model.callbacks import Callback
from holdfast.model.errors import ConnectionLost
from holdfast.model.ids import CursorName, TimestampMs, TopicName
from tests.callbacks.receivers import DumbReceiver

P = TypeVar("P", bound=asyncio.Protocol)


class SlowAtFirst(Dialer):
    """Its first connection is made when that is allowed, as one whose first packet was lost; others at once."""

    def __init__(self) -> None:
        super().__init__(CallbackPolicy(["127.0.0.0/8"], port_min=1024, is_local=False), 10)
        self.allowed = asyncio.Event()
        self.asked = 0
        self.is_dead = False

    async def connect(self, address: CallbackAddress, make: Callable[[], P]) -> P:
        self.asked += 1
        if self.asked == 1:
            await self.allowed.wait()
        if self.is_dead:
            raise ConnectionLost(f"{address} does not answer")
        return await super().connect(address, make)


def callback(address: str) -> Callback:
    return Callback(
        topic=TopicName("orders"),
        name=CursorName("billing"),
        address=address,
        format="plain",
        created_ms=TimestampMs(0),
    )


async def test_receiver_that_unsubscribes_at_once_is_told_so_last() -> None:
    """Told the other way round, it waits for messages that never come."""
    told: list[str] = []
    async with DumbReceiver() as receiver, DumbReceiver() as other:
        dialer = SlowAtFirst()
        announcer = Announcer(dialer, lambda callback, why: told.append(why))
        announcer.subscribed(callback(receiver.address))
        announcer.removed(callback(receiver.address))
        announcer.subscribed(callback(other.address))
        # A receiver that is slow keeps none of the others waiting.
        assert await other.got(1) == [b"SUBACK|orders"]
        dialer.allowed.set()
        assert await receiver.got(2) == [b"SUBACK|orders", b"UNSUBACK|orders"]
        announcer.subscribed(callback(receiver.address))
        assert (await receiver.got(3))[2] == b"SUBACK|orders"
        await announcer.stop()
    assert not told


async def test_receiver_that_is_away_is_tried_once_for_all_that_waits() -> None:
    told: list[str] = []
    dialer = SlowAtFirst()
    announcer = Announcer(dialer, lambda callback, why: told.append(why))
    dialer.is_dead = True
    for _ in range(3):
        announcer.subscribed(callback("127.0.0.1:20000"))
    dialer.allowed.set()
    await until(lambda: len(told) == 3, "all are told of")
    assert dialer.asked == 1
    await announcer.stop()
