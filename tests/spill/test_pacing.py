"""Those who push behind a spill that is emptied are slowed to its pace, so that it becomes empty; never for long."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import files
from holdfast.backends.spill.pacing import Pacing
from holdfast.model.spill import Others
from tests.postgres.stores import open_store
from tests.spill.conftest import Open

# So long that whoever waits for it waits in vain.
FOR_EVER_MS = 3_600_000


def begun(limit_s: float) -> Pacing:
    """Of a spill that is being emptied."""
    pacing = Pacing(limit_s)
    pacing.stored(0)
    return pacing


async def test_as_many_are_answered_as_half_of_what_is_stored_again_and_in_order() -> None:
    pacing = begun(60.0)
    answered: list[int] = []
    for number in range(10):
        pacing.answer(100, time.monotonic(), lambda number=number: answered.append(number))  # type: ignore[misc]
    assert answered == [0], "the first one cannot know that others come"
    pacing.stored(200)
    assert answered == [0, 1]
    pacing.stored(599)
    assert answered == [0, 1, 2, 3]
    pacing.release()
    assert answered == list(range(10))


async def test_nobody_waits_longer_than_a_push_may_take() -> None:
    pacing = begun(0.05)
    answered = asyncio.Event()
    pacing.answer(1_000_000, time.monotonic(), lambda: None)
    began_s = time.monotonic()
    pacing.answer(1, began_s, answered.set)
    async with asyncio.timeout(30):
        await answered.wait()
    assert time.monotonic() - began_s >= 0.05
    # What was pushed too much is not held against everybody for ever.
    pacing.stored(300_000)
    answered.clear()
    pacing.answer(1, time.monotonic(), answered.set)
    assert answered.is_set()


async def test_who_waited_before_is_answered_that_much_earlier() -> None:
    """Also behind somebody who did not wait: that one is answered with it."""
    pacing = begun(3600.0)
    answered: list[int] = []
    is_answered = asyncio.Event()
    pacing.answer(1_000, time.monotonic(), lambda: answered.append(0))
    pacing.answer(1, time.monotonic(), lambda: answered.append(1))
    pacing.answer(1, time.monotonic() - 3600.0, is_answered.set)
    pacing.answer(1, time.monotonic(), lambda: answered.append(2))
    async with asyncio.timeout(30):
        await is_answered.wait()
    assert answered == [0, 1]
    pacing.release()


async def test_one_publisher_of_large_pushes_does_not_outrun_the_replay() -> None:
    pacing = begun(60.0)
    answered: list[int] = []
    for number in range(3):
        pacing.answer(50_000, time.monotonic(), lambda number=number: answered.append(number))  # type: ignore[misc]
    pacing.stored(20_000)
    assert answered == [0]
    pacing.stored(80_000)
    assert answered == [0, 1]
    pacing.release()


async def test_nobody_waits_for_a_spill_that_is_not_emptied() -> None:
    pacing = Pacing(60.0)
    answered: list[int] = []

    def answer(number: int) -> Callable[[], None]:
        return lambda: answered.append(number)

    for number in range(3):
        pacing.answer(1_000, time.monotonic(), answer(number))
    assert answered == [0, 1, 2]
    pacing.stored(1)
    pacing.answer(1_000, time.monotonic(), answer(3))
    pacing.answer(1_000, time.monotonic(), answer(4))
    assert answered == [0, 1, 2, 3]
    pacing.release()
    pacing.answer(1_000, time.monotonic(), answer(5))
    assert answered == [0, 1, 2, 3, 4, 5]


async def test_behind_messages_that_wait_for_another_broker_nobody_waits_and_nothing_is_read_again_and_again(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (await open_store(server.url, "other")).backend
    store = await opened(server.url, deadline_ms_max=FOR_EVER_MS)
    await store.create()
    await until(lambda: other.holding.beat_s is not None and store.database.holding.beat_s is not None)
    server.kill()
    await until(lambda: not store.database.database.is_up)
    await store.push(b"0")
    other.holding.spilled_since = 1
    asked, others, reads, read = 0, store.database.replaying.others, 0, files.read_piece

    async def counted(file: UUID) -> Others:
        nonlocal asked
        found = await others(file)
        asked += [spill.oldest_ms for spill in found.spills] == [1] and store.spill.replayer.is_held_up
        return found

    def reading(path: Path, position: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(path, position)

    monkeypatch.setattr(store.database.replaying, "others", counted)
    await server.start()
    await until(lambda: asked > 3)
    monkeypatch.setattr(files, "read_piece", reading)
    before = asked
    async with asyncio.timeout(30):
        for number in range(1, 4):
            assert (await store.push(b"%d" % number))[0].buffered
    await until(lambda: asked > before + 3)
    assert reads == 0
    await other.stop()
    await store.drained()
    assert await store.values() == [b"0", b"1", b"2", b"3"]


async def test_wait_for_the_last_lap_is_part_of_what_a_push_may_take(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"0")
    since: list[float] = []
    answer = store.spill._pacing.answer

    def noted(count: int, since_s: float, *more: Any) -> None:
        since.append(since_s)
        answer(count, since_s, *more)

    monkeypatch.setattr(store.spill._pacing, "answer", noted)
    store.spill._last_lap.begin()
    pushing = asyncio.create_task(store.push(b"1"))
    await until(lambda: bool(store.spill._last_lap._held))
    held_s = time.monotonic()
    store.spill._last_lap.end()
    assert (await pushing)[0].buffered
    assert since and since[-1] <= held_s
    await server.start()
    await store.drained()


async def test_pushes_under_way_at_a_stop_are_answered_once_they_are_kept(opened: Open, server: Server) -> None:
    store = await opened(server.url, deadline_ms_min=FOR_EVER_MS, deadline_ms_max=FOR_EVER_MS, timeout_s=1.0)
    await store.create()
    await store.push(b"0")
    await asyncio.to_thread(server.kill, signal.SIGSTOP)
    pushes = [asyncio.create_task(store.push(b"%d" % number)) for number in range(1, 6)]
    await until(lambda: len(store.spill._attempts._under_way) == 5)
    await store.spill.stop()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*pushes)
    assert all(each.buffered for [each] in answers)
    await asyncio.to_thread(server.kill, signal.SIGCONT)
