"""Those who push behind a spill that is emptied are slowed to its pace, so that it becomes empty."""

from __future__ import annotations

import asyncio
import time

from holdfast.backends.spill.pacing import Pacing


async def test_as_many_are_answered_as_half_of_what_is_stored_again_and_in_order() -> None:
    pacing = Pacing(lambda: 60.0)
    answered: list[int] = []
    for number in range(10):
        pacing.answer(100, lambda number=number: answered.append(number))  # type: ignore[misc]
    assert answered == [0], "the first one cannot know that others come"
    pacing.stored(200)
    assert answered == [0, 1]
    pacing.stored(599)
    assert answered == [0, 1, 2, 3]
    pacing.release()
    assert answered == list(range(10))


async def test_nobody_waits_longer_than_a_push_may_take() -> None:
    pacing = Pacing(lambda: 0.05)
    answered = asyncio.Event()
    pacing.answer(1_000_000, lambda: None)
    began_s = time.monotonic()
    pacing.answer(1, answered.set)
    async with asyncio.timeout(30):
        await answered.wait()
    assert time.monotonic() - began_s >= 0.05
    # What was pushed too much is not held against everybody for ever.
    pacing.stored(30_000)
    answered.clear()
    pacing.answer(1, answered.set)
    assert answered.is_set()
