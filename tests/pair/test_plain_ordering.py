"""Replicas of a foreign primary are put in order for delivery, wherever that ends."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from testkit.text_client import SUBACK
from testkit.wait import wait_until

from holdfast.backends.plain.journal import ForeignNumber, Journal
from holdfast.backends.plain.ordering import Numbering, put_in_order
from holdfast.model.errors import DiskFull
from holdfast.model.ids import TimestampMs, TopicName
from tests.pair.partners import Partner, plain, status


def opened(directory: Path) -> Journal:
    def failed(error: Exception) -> None:
        raise error

    return Journal(directory, is_synced=False, on_synced=lambda: None, on_failure=failed)


def append(journal: Journal, numbers: list[int], numbering: Numbering) -> None:
    for number in numbers:
        journal.append([(TopicName("t"), f"m{number}", b"%d" % number)], 0, TimestampMs(7), numbering.next(number))


def values(journal: Journal, first: int) -> list[int]:
    return [int(entry.value) for entry in journal.read(first, 1 << 30)]


@given(st.permutations(range(1, 30)), st.sets(st.integers(0, 28)), st.integers(1, 8))
def test_any_order_becomes_that_of_the_numbers(numbers: list[int], delivered: set[int], sorted_max: int) -> None:
    async def run(directory: Path) -> None:
        journal = opened(directory)
        append(journal, numbers, Numbering())
        first = await put_in_order(journal, 0, lambda position: position in delivered, sorted_max=sorted_max)
        left = [number for position, number in enumerate(numbers) if position not in delivered]
        if first is None:
            assert left == sorted(left) and journal.end == len(numbers)
        else:
            assert values(journal, first) == sorted(left)
            assert all(entry.number and entry.number.is_copy for entry in journal.read(first, 1 << 30))
        await journal.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_a_full_disk_leaves_the_order_in_which_they_came(tmp_path: Path) -> None:
    class Full(Journal):
        room = 7

        def append(self, *arguments: Any, **more: Any) -> int:
            if self.end >= self.room:
                raise DiskFull("there is no room")
            return super().append(*arguments, **more)

    journal = Full(tmp_path, is_synced=False, on_synced=lambda: None, on_failure=lambda error: None)
    append(journal, [3, 1, 5, 2, 4], Numbering())
    assert await put_in_order(journal, 0, lambda position: False) is None
    assert values(journal, 0) == [3, 1, 5, 2, 4]
    await journal.stop()


def test_copies_that_a_crash_left_are_not_delivered_as_well(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker:
        wait_until(lambda: bool(status(broker)["partner_is_up"]), "the primary answers")
        with broker.connect() as client:
            client.say(*(b"REPLICATE|m%d|%d|t|%d" % (n, n, n) for n in (2, 1, 3)))
            while client.line() != b"REPLICATED|3":
                pass
        broker.kill()

        async def leave_copies() -> None:
            journal = opened(broker.data)
            for number in (1, 2):
                copy = ForeignNumber(0, number, is_copy=True)
                journal.append([(TopicName("t"), f"m{number}", b"%d" % number)], 0, TimestampMs(0), copy)
            await journal.stop()

        asyncio.run(leave_copies())
        broker.restart()
        with broker.connect() as subscriber:
            subscriber.say(b"SUBSCRIBE|t")
            subscriber.expect(SUBACK)
            primary.close()
            subscriber.expect(*(b"MESSAGE|t|%d" % number for number in (1, 2, 3)))
        wait_until(lambda: status(broker)["role"] == "primary", "it takes over")
        assert broker.stored_values("t") == [b"1", b"2", b"3"]
