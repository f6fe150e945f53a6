"""The writer of a spill's files, by itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.batches import values_batch

from holdfast.backends.spill import appending, events, files
from holdfast.backends.spill.appending import Appender, CompletedFile, Room
from holdfast.backends.spill.files import SpillDirectory
from holdfast.model.errors import DiskFull, ShuttingDown
from holdfast.model.ids import PartitionId, TopicName


@pytest.fixture
def done() -> list[CompletedFile]:
    return []


@pytest_asyncio.fixture
async def appender(tmp_path: Path, done: list[CompletedFile]) -> AsyncIterator[Appender]:
    directory = SpillDirectory.open(tmp_path / "spill")
    room = Room(directory, 0)
    made = Appender(
        directory, files.FAILOVER, events_per_file=10_000, room=room, is_synced=True, on_completed=done.append
    )
    made.start()
    yield made
    await made.stop()
    directory.close()


def line(value: bytes = b"1") -> bytes:
    return events.lines_of(PartitionId(TopicName("t"), 0), values_batch(value), 1)[0]


async def test_file_is_completed_on_a_full_disk_while_publishers_try_on(
    appender: Appender, done: list[CompletedFile]
) -> None:
    """The store is back: what is in the file is stored and makes room, if only it is completed."""
    await appender.append(line(), 1)
    appender._room.free_bytes_min = 1 << 62
    refused = 0

    async def push_on() -> None:
        nonlocal refused
        while True:
            with contextlib.suppress(DiskFull):
                await appender.append(line(), 1)
            refused += 1

    pushers = [asyncio.create_task(push_on()) for _ in range(20)]
    await asyncio.sleep(0.1)
    for _ in range(5):
        await asyncio.wait_for(appender.seal(), 5)
    for pusher in pushers:
        pusher.cancel()
    await asyncio.gather(*pushers, return_exceptions=True)
    assert refused > 20
    assert [each.events for each in done] == [1]


async def test_file_of_large_messages_is_completed_by_its_size(
    appender: Appender, done: list[CompletedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start reads what a crash left at once."""
    monkeypatch.setattr(appending, "FILE_BYTES_MAX", 100_000)
    for _ in range(25):
        await appender.append(line(b"x" * 20_000), 1)
    await appender.seal()
    assert [each.events for each in done] == [5] * 5


async def test_file_that_cannot_be_completed_is_not_taken_for_one_that_is(
    appender: Appender, done: list[CompletedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it was acknowledged: whatever comes next must not overtake it."""
    await appender.append(line(), 1)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        await appender.seal()
    assert appender.failure is not None and not done
    assert not appender.is_idle


async def test_push_that_comes_after_the_end_is_refused_and_does_not_hang(appender: Appender) -> None:
    await appender.append(line(), 1)
    await appender.stop()
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(appender.append(line(), 1), 5)


@pytest.mark.parametrize("taken_bytes", [1, 7, 100, 10_000])
async def test_lines_are_written_whole_where_the_kernel_takes_a_part_at_a_time(
    taken_bytes: int, appender: Appender, done: list[CompletedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(fd: int, pieces: list[bytes], position: int) -> int:
        return os.pwrite(fd, b"".join(pieces)[:taken_bytes], position)

    monkeypatch.setattr(os, "pwritev", some)
    lines = [line(b"%d" % place) for place in range(9)]
    await asyncio.gather(*(appender.append(each, 1) for each in lines))
    await appender.append(line(b"last"), 1)
    await appender.seal()
    assert done[0].file.path.read_bytes() == b"".join(lines) + line(b"last")
    assert done[0].events == 10 and done[0].size_bytes == done[0].file.path.stat().st_size


async def test_more_lines_than_the_kernel_takes_in_a_call_are_written(
    appender: Appender, done: list[CompletedFile]
) -> None:
    lines = [line(b"%d" % place) for place in range(2500)]
    await asyncio.gather(*(appender.append(each, 1) for each in lines))
    await appender.seal()
    assert done[0].file.path.read_bytes() == b"".join(lines)
