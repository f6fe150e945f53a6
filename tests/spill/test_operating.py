"""What people run into who operate a spill: lines that are refused, files that are taken away, disks that fail."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import appending, files, inspecting
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from holdfast.backends.spill.last_lap import LastLap
from holdfast.model.errors import StorageFailed, TopicNotFound
from holdfast.model.ids import TopicName
from holdfast.wire.push_batch import Pushed
from tests.postgres.stores import open_store, query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling


async def test_refused_lines_are_set_aside_together_and_hold_up_nobody(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is asked a few times for each topic, and not for each message."""
    store = await opened(server.url, retry_interval_s=60.0)
    for name in ("t", "gone", "gone-too"):
        await store.create(name)
    asked: list[TopicName] = []

    async def refuse(name: TopicName) -> None:
        asked.append(name)
        raise TopicNotFound(f"there is no topic {name}")

    store.spill.create_with(refuse)
    server.kill()
    for number in range(60):
        await store.push(b"%d" % number, topic=("t", "gone", "gone-too")[number % 3])
    probe = store.database.replaying.probe
    is_deleted = asyncio.Event()

    async def later() -> None:
        await is_deleted.wait()
        await probe()

    monkeypatch.setattr(store.database.replaying, "probe", later)
    await server.start()
    await query(
        server.url,
        """WITH gone AS (DELETE FROM holdfast.topics WHERE name LIKE 'gone%' RETURNING topic_id)
        SELECT pg_notify('holdfast', 'gone ' || topic_id) FROM gone""",
    )
    await until(lambda: {topic.name for topic in store.database.topics()} == {"t"})
    is_deleted.set()
    await store.drained()
    assert sorted(asked) == ["gone"] * 3 + ["gone-too"] * 3
    assert await store.values() == [b"%d" % number for number in range(0, 60, 3)]
    assert store.spill.stats.failed_events == 40
    [failed] = files.failed_files(store.directory)
    noted = files.failed_lines(failed)
    assert [each.line for each in noted] == [number + 1 for number in range(60) if number % 3]
    assert "there is no topic gone [topic_not_found]" in {each.reason for each in noted}


async def test_repeated_ids_count_as_there_already_and_not_as_stored(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    await store.push(b"a", ids=["a"])
    await store.drained()
    before = store.spill.stats.replayed_events
    server.kill()
    await store.push(b"a", b"b", b"c", ids=["a", "b", "c"])
    await store.push(b"b", ids=["b"])
    await server.start()
    await store.drained()
    assert (store.spill.stats.replayed_events - before, store.spill.stats.already_stored_events) == (2, 2)
    assert store.spill.file_buffer().flushed - before == 4


async def test_steady_pushes_end_in_the_database_again_and_not_in_one_small_file_after_the_other(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    await store.push(b"first")
    server.kill()
    kept = 0
    for _ in range(20):
        await store.push(*(b"%d" % number for number in range(kept, kept + 100)))
        kept += 100
    began: list[str] = []
    new_file = store.spill.directory.new_file

    def counted(kind: str) -> files.SpillFile:
        began.append(kind)
        return new_file(kind)

    monkeypatch.setattr(store.spill.directory, "new_file", counted)
    answers: list[bool] = []

    async def push_on() -> None:
        while True:
            number = kept + len(answers)
            answers.append((await store.push(b"%d" % number))[0].buffered)

    with structlog.testing.capture_logs() as logs:
        pushing = asyncio.create_task(push_on())
        await server.start()
        await until(lambda: len(answers) > 50 and not any(answers[-50:]))
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
        await store.drained()
    values = await store.values()
    assert values[0] == b"first" and values[1:] == [b"%d" % number for number in range(len(values) - 1)], "in order"
    assert len(values) > kept + len(answers), "each that was acknowledged"
    assert len(began) < 10, "files"
    told = [line["event"] for line in logs if line["event"].startswith("spill_") and line["log_level"] != "debug"]
    assert told.count("spill_replaying") == told.count("spill_replay_complete") == 1


async def kept_for_the_last_lap(store: Spilling, server: Server) -> list[bytes]:
    """A server that dies may answer a little longer, and a file be completed for it: the last one is still written."""
    server.kill()
    kept: list[bytes] = []
    while not store.spill._appender.active_events:
        kept.append(b"kept %d" % len(kept))
        await store.push(kept[-1])
    return kept


def push_another(store: Spilling, expected: list[bytes], others: list[asyncio.Task[Any]]) -> None:
    """The file may have been completed by a round that got no further; with another push there is a last lap."""
    if not others:
        expected.append(b"another")
        others.append(asyncio.create_task(store.push(b"another")))


async def test_last_lap_that_takes_too_long_goes_into_the_spill_in_order(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough that a busy machine comes to storing within it.
    monkeypatch.setattr(LastLap, "seconds", 3.0)
    store = await opened(server.url)
    await store.create()
    expected = await kept_for_the_last_lap(store, server)
    stored = store.database.replaying.store
    held: list[asyncio.Task[Any]] = []
    others: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    async def slow(*given: Any) -> int:
        if store.spill._last_lap.is_on:
            held.extend(asyncio.create_task(store.push(b"%d" % number)) for number in range(5) if not gate.is_set())
            await gate.wait()
        elif not held:
            push_another(store, expected, others)
        return await stored(*given)

    monkeypatch.setattr(store.database.replaying, "store", slow)
    await server.start()
    await until(lambda: bool(held))
    answers = await asyncio.gather(*held)
    await asyncio.gather(*others)
    assert all(each.buffered for [each] in answers), "nobody waits for longer than a push may take"
    gate.set()
    await store.drained()
    assert await store.values() == [*expected, *(b"%d" % number for number in range(5))]


@pytest.mark.parametrize("as_columns", [False, True])
async def test_push_does_not_overtake_those_that_waited_for_the_last_lap(
    as_columns: bool, opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the moment in which everything is stored, and those who waited do not know it yet."""
    # As long as it takes on a busy machine.
    monkeypatch.setattr(LastLap, "seconds", 60.0)
    store = await opened(server.url)
    await store.create()
    expected = await kept_for_the_last_lap(store, server)
    stored, remove = store.database.replaying.store, store.spill.waiting.remove
    early: list[asyncio.Task[Any]] = []
    late: list[asyncio.Task[Any]] = []
    others: list[asyncio.Task[Any]] = []

    async def slow(*given: Any) -> int:
        if not store.spill._last_lap.is_on and not early:
            push_another(store, expected, others)
        elif not early:
            early.extend(asyncio.create_task(store.push(b"%d" % number)) for number in (1, 2))
            await asyncio.sleep(0)
            # Of the way that keeps columns, too: what is not stored yet would be waited for there.
            given_id = str(uuid4())
            columns = Pushed(["Default"], [b"3"], [given_id], [given_id], [None], True)
            early.append(asyncio.ensure_future(store.broker.publish_pushed("t", columns)))
            await asyncio.sleep(0)
        return await stored(*given)

    async def push_late() -> None:
        if as_columns:
            given = str(uuid4())
            await store.broker.publish_pushed("t", Pushed(["Default"], [b"4"], [given], [given], [None], True))
        else:
            await store.push(b"4")

    def removed(*given: Any) -> None:
        remove(*given)
        if early and not late:
            late.append(asyncio.create_task(push_late()))

    monkeypatch.setattr(store.database.replaying, "store", slow)
    monkeypatch.setattr(store.spill.waiting, "remove", removed)
    await server.start()
    await until(lambda: bool(late))
    await asyncio.gather(*others, *early, *late)
    await store.drained()
    assert await store.values() == [*expected, *(b"%d" % number for number in range(1, 5))]


async def test_file_that_somebody_removed_is_told_once_and_the_others_are_stored(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url, events_per_file=2)
    await store.create()
    server.kill()
    for number in range(8):
        await store.push(b"%d" % number)
    monkeypatch.setattr("holdfast.backends.spill.health._GROWTH_S", 0.05)
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any(line["event"] == "spill_grows" and line["pending"] == 8 for line in logs))
    removed = store.spilled_files()[1].path
    lost = [json.loads(line)["payload"] for line in removed.read_bytes().splitlines()]
    removed.unlink()
    with structlog.testing.capture_logs() as logs:
        await server.start()
        await until(lambda: not store.spill.pending and not store.spilled_files())
        await store.push(b"8")
    [told] = [line for line in logs if line["event"] == "spill_file_gone"]
    assert told["log_level"] == "critical" and told["messages"] == len(lost) > 0 and "put it back" in told["hint"]
    assert await store.values() == [b"%d" % number for number in range(9) if number not in lost]


async def test_directory_that_is_gone_is_waited_for_and_by_others_for_a_while_only(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for files that somebody removed: its disk may come back."""
    monkeypatch.setattr("holdfast.backends.spill.stuck._PATIENCE_S", 0.2)
    store = await opened(server.url, events_per_file=2)
    await store.create()
    server.kill()
    for number in range(4):
        await store.push(b"%d" % number)
    elsewhere = store.directory.with_name("elsewhere")
    store.directory.rename(elsewhere)
    await server.start()
    await until(lambda: store.spill.replayer.is_stuck)
    assert store.spill.replayer.pending_files and store.database.holding.spilled_since is None
    elsewhere.rename(store.directory)
    await store.drained()
    await until(lambda: not store.spill.replayer.is_stuck)
    assert await store.values() == [b"%d" % number for number in range(4)]


def failing(fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_broker_whose_spill_disk_failed_keeps_no_other_waiting(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = await opened(server.url, directory=tmp_path / "a", node="a")
    well = await opened(server.url, directory=tmp_path / "b", node="b")
    await broken.create()
    await until(lambda: well.database.topic(TopicName("t")) is not None)
    await until(lambda: well.database.holding.beat_s is not None and broken.database.holding.beat_s is not None)
    server.kill()
    await broken.push(b"on a disk that fails")
    with monkeypatch.context() as patched:
        patched.setattr(appending, "sync_data", failing)
        with pytest.raises(StorageFailed):
            await broken.push(b"refused")
    await well.push(b"newer")
    await server.start()
    await well.drained()
    assert await well.values() == [b"newer"]
    assert broken.spill._appender.active_events == 1, "it is stored at the next start"


async def test_waiting_for_another_broker_says_for_which_and_what_to_do(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.spill.telling._PATIENCE_S", 0.2)
    monkeypatch.setattr("holdfast.backends.spill.telling._REMINDER_S", 0.2)
    other = (await open_store(server.url, "other")).backend
    store = await opened(server.url)
    await store.create()
    await until(lambda: other.holding.beat_s is not None and store.database.holding.beat_s is not None)
    server.kill()
    await store.push(b"1")
    other.holding.spilled_since = 1
    with structlog.testing.capture_logs() as logs:
        await server.start()
        # Before the other one is back nobody can say what it keeps.
        await until(lambda: any(line.get("by", "").startswith("other ") for line in logs))
        await other.stop()
        await store.drained()
    told = [line for line in logs if line["event"] == "spill_held_up"]
    assert told and all("holdfast spill replay" in line["hint"] for line in told)


def test_looking_whether_a_broker_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "spill"
    SpillDirectory.open(path).close()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            inspecting.owner(path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(40):
            directory = SpillDirectory.open(path)
            assert inspecting.owner(path) == os.getpid()
            directory.close()
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()


def test_number_of_an_earlier_process_is_not_taken_for_that_of_the_broker(tmp_path: Path) -> None:
    directory = SpillDirectory.open(tmp_path / "spill")
    (tmp_path / "spill" / "spill.lock").write_text("999999999\n")
    assert inspecting.owner(tmp_path / "spill") == 0, "somebody has it, and has not said yet who"
    directory.close()


async def test_messages_that_wait_are_counted_from_the_first_moment_of_a_start(opened: Open, server: Server) -> None:
    """A restart over a full spill does not look as if nothing waited."""
    store = await opened(server.url, events_per_file=2)
    await store.create()
    server.kill()
    for number in range(7):
        await store.push(b"%d" % number)
    await store.stop()
    [first, *_] = store.spilled_files()
    SpillDirectory(store.directory, None).note_failed(first, [BadLine(9, b"x", "refused")])
    waiting = len(store.spilled_files())
    await server.start()
    again = await opened(server.url)
    kept = again.spill.file_buffer()
    assert (kept.pending, kept.failed, again.spill.replayer.file_count) == (7, 1, waiting)
    await again.drained()
    assert await again.values() == [b"%d" % number for number in range(7)]
