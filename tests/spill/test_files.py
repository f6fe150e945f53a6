"""What a crash, a full disk or a stranger leaves in the directory of a spill."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.batches import values_batch
from testkit.mounts import small_disk
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import appending, events, files
from holdfast.model.errors import DataDirectoryError, DiskFull, StorageFailed
from holdfast.model.ids import PartitionId, TopicName
from tests.spill.conftest import Open
from tests.spill.stores import Spilling

T = PartitionId(TopicName("t"), 0)
NOWHERE = "postgresql://nobody@127.0.0.1:9/nothing"


def lines(*values: bytes) -> bytes:
    return events.lines_of(T, values_batch(*values), 1)[0]


@pytest_asyncio.fixture
async def kept(server: Server, opened: Open) -> AsyncIterator[Spilling]:
    """A broker that knows topic t and whose database is away."""
    store = await opened(server.url)
    await store.create()
    await until(lambda: store.spill.waiting.is_known)
    server.kill()
    await store.push(b"1", b"2")
    yield store


async def left_behind(store: Spilling, server: Server, opened: Open) -> Spilling:
    """Start again, over what is in the directory, with the database."""
    await server.start()
    again = await opened(server.url, directory=store.directory)
    await again.drained()
    return again


@pytest.mark.parametrize(
    "torn",
    [lines(b"3")[:-20], lines(b"3", b"4")[: -len(lines(b"4")) - 5], bytes(100)],
    ids=["half a line", "half a request", "pages that never came"],
)
async def test_torn_end_of_a_crashed_broker_is_cut_and_the_rest_stored(
    torn: bytes, kept: Spilling, server: Server, opened: Open
) -> None:
    await kept.stop()
    [file] = kept.spilled_files()
    file.path.write_bytes(file.path.read_bytes() + torn)
    file.path.rename(f"{file.path}.tmp")
    again = await left_behind(kept, server, opened)
    assert await again.values() == [b"1", b"2"]
    assert again.spill.stats.failed_events == 0


async def test_damaged_line_costs_that_line_and_lets_nothing_overtake(
    kept: Spilling, server: Server, opened: Open
) -> None:
    await kept.push(b"3", b"4")
    await kept.stop()
    [file] = kept.spilled_files()
    whole = file.path.read_bytes().splitlines(keepends=True)
    whole[1] = whole[1].replace(b'"payload":2', b'"payload":7')
    file.path.write_bytes(b"".join(whole))
    again = await left_behind(kept, server, opened)
    assert await again.values() == [b"1", b"3", b"4"]
    [failed] = files.failed_lines(again.directory / "failed" / file.path.name)
    assert failed.line == 2 and "sum" in failed.reason and '"payload":7' in (failed.event or "")
    assert again.spill.file_buffer().failed == 1


async def test_files_of_strangers_are_left_alone(kept: Spilling, server: Server, opened: Open) -> None:
    strange = ["notes.txt", "failover_x.buf", "failover_019a0c11-7fe8.buf.tmp", "other_01.buf"]
    for name in strange:
        (kept.directory / name).write_text("not ours\n")
    (kept.directory / f"failover_{'0' * 8}-0000-7000-8000-{'0' * 12}.buf").mkdir()
    await kept.stop()
    again = await left_behind(kept, server, opened)
    assert await again.values() == [b"1", b"2"]
    assert all((kept.directory / name).read_text() == "not ours\n" for name in strange)


async def test_second_broker_over_one_directory_is_refused(kept: Spilling, opened: Open) -> None:
    with pytest.raises(DataDirectoryError, match=r"in use by another broker.*--spill-dir"):
        await opened(NOWHERE, directory=kept.directory)


async def test_full_disk_refuses_clearly_and_goes_on_when_there_is_room(
    tmp_path: Path, server: Server, opened: Open
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        store = await opened(server.url, directory=disk / "spill")
        await store.create()
        server.kill()
        acknowledged = []
        for number in range(100):
            value = b"%03d" % number + b"x" * 50_000
            try:
                await store.push(value)
            except DiskFull as full:
                assert "spill" in full.message and full.code == "disk_full"
                break
            acknowledged.append(value)
        assert 5 < len(acknowledged) < 25
        await store.push(b"small")
        assert (await asyncio.gather(store.push(b"x" * 900_000), return_exceptions=True))[0].__class__ is DiskFull
        await server.start()
        await store.drained()
        assert await store.values() == [*acknowledged, b"small"]
        await store.stop()


async def test_scarce_room_is_said_early_and_the_reserve_is_kept(tmp_path: Path, server: Server, opened: Open) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        store = await opened(server.url, directory=disk / "spill", free_bytes_min=400_000)
        await store.create()
        server.kill()
        assert not store.spill.room.is_scarce
        await store.push(b"x" * 700_000)
        assert store.spill.room.is_scarce
        with pytest.raises(DiskFull, match="stay free"):
            for _ in range(4):
                await store.push(b"x" * 400_000)
        assert store.spill.room.free_bytes >= 400_000
        await server.start()
        await store.drained()
        await store.stop()


async def test_failed_sync_is_final_and_never_acknowledged(
    kept: Spilling, server: Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(appending, "sync_data", failing)
        with pytest.raises(StorageFailed):
            await kept.push(b"lost")
    with pytest.raises(StorageFailed):
        await kept.push(b"lost, too")
    assert kept.spill.problem() is not None
    await kept.stop()
    again = await left_behind(kept, server, opened)
    assert await again.values() == [b"1", b"2"]


async def test_names_rise_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    directory = files.SpillDirectory.open(tmp_path / "spill")
    future = directory.path / "failover_ffffffff-0000-7000-8000-000000000000.buf"
    future.write_bytes(lines(b"1"))
    directory.close()
    directory = files.SpillDirectory.open(tmp_path / "spill")
    made = [directory.new_file(files.FAILOVER) for _ in range(3)]
    assert sorted(made, key=lambda file: file.path.name) == made and made[0].path.name > future.name
    directory.close()


async def test_requests_are_not_torn_apart_and_files_are_as_long_as_they_may_be(tmp_path: Path, opened: Open) -> None:
    store = await opened(NOWHERE, events_per_file=10)
    for count in (4, 4, 4, 25, 1):
        await store.push(*(b"%d" % number for number in range(count)), topic="t")
    counts = [file.path.read_bytes().count(b"\n") for file in store.spilled_files()]
    assert counts == [8, 4, 25, 1]
    assert [file.is_complete for file in store.spilled_files()] == [True, True, True, False]


def test_line_that_failed_is_kept_whole_behind_half_a_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up takes a part, and says so by the number of bytes alone."""
    directory = files.SpillDirectory.open(tmp_path / "spill")
    file = files.completed(directory.new_file(files.FAILOVER))
    noted = directory.path / "failed" / file.path.name
    noted.write_bytes(b'{"line":1,"rea')
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    assert (
        directory.note_failed(file, [events.BadLine(0, b"first", "it is bad"), events.BadLine(4, b"x", "so is it")])
        == 2
    )
    assert [(each.line, each.event) for each in files.failed_lines(noted)] == [(1, "first"), (5, "x")]
    directory.close()
