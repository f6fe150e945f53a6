"""Group commit: nothing counts as synced before its sync, and nothing ever again after one that failed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.sizes import in_memory
from testkit.wait import until

from holdfast.model.ids import Term
from holdfast.storage import syncer as syncer_module
from holdfast.storage.log import PartitionLog, SyncPoint
from holdfast.storage.syncer import DiskSync, Syncer
from holdfast.storage.votes import VoteJournal


class Watched:
    """A syncer and everything it said."""

    def __init__(self) -> None:
        self.synced: list[tuple[PartitionLog, int]] = []
        self.failures: list[Exception] = []
        self.syncer: Syncer[PartitionLog] = Syncer(
            on_synced=lambda log: self.synced.append((log, log.synced_end)), on_failure=self.failures.append
        )


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    try:
        yield made
    finally:
        await made.syncer.stop()


def logs_in(directory: Path, count: int) -> list[PartitionLog]:
    return [PartitionLog.open(directory / str(number))[0] for number in range(count)]


def append(log: PartitionLog, value: bytes = b"x") -> None:
    log.append(values_batch(value), Term(1))


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk whose syncs are only done once the event is set."""
    allowed = threading.Event()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        assert allowed.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return allowed


async def test_nothing_is_acknowledged_before_the_disk_has_it(tmp_path: Path, slow_disk: threading.Event) -> None:
    (log,) = logs_in(tmp_path, 1)
    async with watched() as seen:
        append(log)
        seen.syncer.request(log)
        await asyncio.sleep(0.05)
        assert seen.synced == [] and log.synced_end == 0
        append(log)
        seen.syncer.request(log)
        slow_disk.set()
        await until(lambda: log.synced_end == 2, "both are synced in the end")
        # What was appended during a round is covered by the next one, not by that one.
        assert [end for _, end in seen.synced] == [1, 2]
    log.close()


async def test_everything_that_waits_is_covered_by_one_round(tmp_path: Path, slow_disk: threading.Event) -> None:
    logs = logs_in(tmp_path, 3)
    async with watched() as seen:
        for log in logs:
            for _ in range(50):
                append(log)
                seen.syncer.request(log)
        slow_disk.set()
        await seen.syncer.flush()
        assert [log.synced_end for log in logs] == [50, 50, 50]
        assert seen.syncer.rounds == 1
    for log in logs:
        log.close()


async def test_failed_sync_is_told_once_and_nothing_is_acknowledged_ever_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync would answer "fine" for bytes that are gone."""
    (log,) = logs_in(tmp_path, 1)
    calls = []

    def fail_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fdatasync", fail_once)
    async with watched() as seen:
        append(log)
        seen.syncer.request(log)
        await until(lambda: bool(seen.failures), "the failure is told")
        for _ in range(5):
            append(log)
            seen.syncer.request(log)
            await seen.syncer.flush()
            await asyncio.sleep(0.005)
        assert [getattr(error, "errno", None) for error in seen.failures] == [errno.EIO]
        assert seen.synced == [] and log.synced_end == 0
        assert len(calls) == 1, "a sync was tried again after one had failed"
    log.close()


@pytest.mark.parametrize("way", ["one by one", "syncfs", "threads"])
@pytest.mark.parametrize("failing", ["files", "directory"])
async def test_failure_is_noticed_whichever_way_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, failing: str
) -> None:
    count = 2 if way == "one by one" else 8
    logs = [PartitionLog.open(tmp_path / str(number), segment_bytes=1)[0] for number in range(count)]

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    if failing == "files":
        monkeypatch.setattr(os, "fdatasync", fail)
        monkeypatch.setattr(syncer_module, "_find_syncfs", lambda: fail if way == "syncfs" else None)
    else:
        monkeypatch.setattr(syncer_module, "sync_directory", fail)
        if way == "threads":
            monkeypatch.setattr(syncer_module, "_find_syncfs", lambda: None)
    async with watched() as seen:
        for log in logs:
            append(log)
            append(log)  # a second segment, so that its directory has to be synced
            seen.syncer.request(log)
        await until(lambda: bool(seen.failures), "the failure is told")
        assert len(seen.failures) == 1 and seen.synced == []
        assert all(log.synced_end == 0 for log in logs)
    for log in logs:
        log.close()


async def test_many_logs_are_synced_with_one_call_and_all_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = syncer_module._find_syncfs()
    if real is None:
        pytest.skip("no syncfs that reports errors here")
    calls = []

    def counted(fd: int) -> None:
        calls.append(fd)
        real(fd)

    monkeypatch.setattr(syncer_module, "_find_syncfs", lambda: counted)
    logs = logs_in(tmp_path, 40)
    async with watched() as seen:
        for log in logs:
            append(log)
            seen.syncer.request(log)
        await seen.syncer.flush()
        assert len(calls) == 1
        assert {id(log) for log, end in seen.synced if end == 1} == {id(log) for log in logs}
    for log in logs:
        log.close()


def test_acknowledgement_needs_a_sync_of_every_file_system_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`syncfs` syncs one file system; a topic may have been moved to another disk."""
    elsewhere = in_memory()
    if elsewhere is None or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system to write to")
    with tempfile.TemporaryDirectory(dir=elsewhere) as other:
        logs = [*logs_in(tmp_path, 5), *logs_in(Path(other), 5)]
        files_synced: set[int] = set()
        whole_systems_synced: set[int] = set()
        monkeypatch.setattr(os, "fdatasync", files_synced.add)
        disk = DiskSync()
        disk._syncfs = lambda fd: whole_systems_synced.add(os.fstat(fd).st_dev)
        for log in logs:
            append(log)
        points = [log.sync_point() for log in logs]
        disk.sync(points)
        for fd in [fd for point in points for fd in point.files]:
            assert fd in files_synced or os.fstat(fd).st_dev in whole_systems_synced
        disk.close()
        for log in logs:
            log.close()


def test_slow_syncfs_is_given_up_for_a_while(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, 6)
    disk = DiskSync()
    slow_calls = []

    def slow(fd: int) -> None:
        slow_calls.append(fd)
        threading.Event().wait(0.05)

    disk._syncfs = slow
    disk._seconds_per_file = 1e-6
    points: list[SyncPoint] = [log.sync_point() for log in logs]
    for _ in range(4):
        disk.sync(points)
    assert len(slow_calls) == 1
    disk.close()
    for log in logs:
        log.close()


async def test_stopping_syncs_what_is_left(tmp_path: Path) -> None:
    (log,) = logs_in(tmp_path, 1)
    async with watched() as seen:
        append(log)
        seen.syncer.request(log)
    assert log.synced_end == 1 and len(seen.synced) == 1
    log.close()


async def test_votes_and_logs_share_a_round(tmp_path: Path, slow_disk: threading.Event) -> None:
    (log,) = logs_in(tmp_path, 1)
    journal, _ = VoteJournal.open(tmp_path / "votes.log")
    told: list[PartitionLog | VoteJournal] = []
    failures: list[Exception] = []
    syncer: Syncer[PartitionLog | VoteJournal] = Syncer(on_synced=told.append, on_failure=failures.append)
    append(log)
    number = journal.put(1, b"a vote")
    syncer.request(log)
    syncer.request(journal)
    await asyncio.sleep(0.02)
    assert told == [] and journal.synced_number < number, "a vote is given before the disk has it"
    slow_disk.set()
    await syncer.flush()
    assert told == [log, journal] and syncer.rounds == 1 and failures == []
    assert journal.synced_number == number and log.synced_index == 1
    await syncer.stop()
    journal.close()
    log.close()


async def test_log_that_is_closed_is_not_synced_behind_its_back(tmp_path: Path, slow_disk: threading.Event) -> None:
    one, other = logs_in(tmp_path, 2)
    async with watched() as seen:
        append(one)
        seen.syncer.request(one)
        await asyncio.sleep(0.01)
        append(other)
        seen.syncer.request(other)
        seen.syncer.forget(other)
        settled = asyncio.ensure_future(seen.syncer.settled())
        await asyncio.sleep(0.01)
        assert not settled.done(), "a log may be closed while a round still uses its file"
        slow_disk.set()
        await settled
        other.close()
        await seen.syncer.flush()
        assert one.synced_end == 1 and seen.failures == []
    one.close()


REAL_FAILURE = """
import asyncio, sys
from pathlib import Path
from holdfast.model.ids import Term
from holdfast.storage.log import PartitionLog
from holdfast.storage.syncer import Syncer
from holdfast.wire.batch_builder import build_values

async def main():
    failures, synced = [], []
    syncer = Syncer(on_synced=synced.append, on_failure=failures.append)
    log, _ = PartitionLog.open(Path(sys.argv[1]))
    for _ in range(6):
        log.append(build_values([b"x"], 0), Term(1))
        syncer.request(log)
        await syncer.flush()
    await syncer.stop()
    print("failures", len(failures), failures and failures[0].errno, "synced", len(synced), log.synced_end)

asyncio.run(main())
"""


def test_real_sync_error_from_the_kernel_stops_acknowledging(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace to make a real fdatasync fail with")
    inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=3"]
    command = [strace, "-f", "-qq", "-o", os.devnull, *inject, sys.executable, "-c", REAL_FAILURE]
    done = subprocess.run([*command, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=False)
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.stdout.split() == ["failures", "1", str(errno.EIO), "synced", "2", "2"], done.stderr
