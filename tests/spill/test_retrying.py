"""Messages in `failed` are acknowledged: they are stored as soon as what was in their way is gone, without a person."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import files, requeueing
from holdfast.backends.spill.events import BadLine
from holdfast.model.errors import CallerError, TooManyTopics, TopicNotFound, Unavailable
from holdfast.model.ids import TopicName
from holdfast.storage import durable
from tests.postgres.stores import query
from tests.spill.conftest import Open
from tests.spill.stores import FAST, Spilling

ODD_ONES_ARE_REFUSED = "ALTER TABLE holdfast.messages ADD CONSTRAINT even CHECK (get_byte(value, 0) % 2 = 0) NOT VALID"


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


def refuse(error: CallerError) -> Callable[[TopicName], Awaitable[object]]:
    async def refused(name: TopicName) -> None:
        raise error

    return refused


async def refused_by_the_database(opened: Open, server: Server) -> Spilling:
    """0 to 9 were kept; the database took the even ones."""
    store = await opened(server.url)
    await store.create()
    server.kill()
    for number in range(10):
        await store.push(b"%d" % number)
    await server.start()
    await execute(server.url, ODD_ONES_ARE_REFUSED)
    await until(lambda: store.spill.stats.failed_events == 5)
    await store.drained()
    assert await store.values() == [b"%d" % number for number in range(0, 10, 2)]
    return store


async def test_refused_messages_are_stored_when_the_database_takes_them(opened: Open, server: Server) -> None:
    store = await refused_by_the_database(opened, server)
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await until(lambda: not store.spill.stats.failed_events)
    await store.drained()
    assert sorted((await store.values())[5:]) == [b"%d" % number for number in range(1, 10, 2)]
    assert not files.failed_files(store.directory)
    assert store.spill.file_buffer().failed == 0
    assert not (await store.push(b"after"))[0].buffered


async def test_messages_of_a_refused_topic_are_stored_in_order_when_it_can_be_made(
    opened: Open, server: Server
) -> None:
    store = await opened(server.url)
    await store.create()
    is_allowed = False

    async def ensure(name: TopicName) -> None:
        if not is_allowed:
            raise TopicNotFound(f"there is no topic {name}")
        await store.create(name)

    store.spill.create_with(ensure)
    server.kill()
    for number in range(30):
        await store.push(b"%d" % number, topic=("t", "new")[number % 2])
    await server.start()
    await until(lambda: store.spill.stats.failed_events == 15)
    is_allowed = True
    await until(lambda: not store.spill.stats.failed_events)
    await store.drained()
    stored = await store.values("new")
    assert sorted(stored, key=int) == [b"%d" % number for number in range(1, 30, 2)]
    # The one that was tried comes first; the others have their order.
    assert stored[1:] == sorted(stored[1:], key=int)


async def test_message_that_was_stored_by_a_try_that_was_cut_off_is_not_stored_again(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await refused_by_the_database(opened, server)
    tries, mark = 0, requeueing.mark_for_requeue

    def cut_off(*given: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(errno.EIO, "the disk is away for a moment")
        return mark(*given, **more)

    monkeypatch.setattr(requeueing, "mark_for_requeue", cut_off)
    # Only one is left, so that the same one is tried again.
    [path] = files.failed_files(store.directory)
    await store.stop()
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    again = await opened(server.url)
    await until(lambda: tries > 1 and not again.spill.stats.failed_events)
    await again.drained()
    stored = await query(server.url, "SELECT payload FROM holdfast.queue_messages")
    assert len(stored) == 6


async def test_message_that_was_stored_is_recognised_when_another_of_its_group_is_tried_next(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await refused_by_the_database(opened, server)
    tries, mark = 0, requeueing.mark_for_requeue

    def cut_off(*given: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise OSError(errno.EIO, "the disk is away for a moment")
        return mark(*given, **more)

    monkeypatch.setattr(requeueing, "mark_for_requeue", cut_off)
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await until(lambda: tries > 3 and not store.spill.stats.failed_events)
    await store.drained()
    stored = await query(server.url, "SELECT payload FROM holdfast.queue_messages")
    assert len(stored) == 10


async def test_nothing_is_tried_of_a_file_that_a_recovery_in_bulk_has(opened: Open, server: Server) -> None:
    store = await refused_by_the_database(opened, server)
    [path] = files.failed_files(store.directory)
    taken_over = store.directory / files.RECOVERING / path.name
    taken_over.parent.mkdir(exist_ok=True)
    taken_over.touch()
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    retrying = store.spill._retrying
    begun = retrying._round
    await until(lambda: retrying._round > begun + 3)
    assert len(await store.values()) == 5
    taken_over.unlink()
    await until(lambda: not store.spill.stats.failed_events)
    await store.drained()
    assert len(await store.values()) == 10


async def test_lines_that_were_never_acknowledged_are_not_stored_by_themselves(opened: Open, server: Server) -> None:
    store = await refused_by_the_database(opened, server)
    [path] = files.failed_files(store.directory)
    [refused, *_] = files.failed_lines(path)
    assert refused.event is not None
    reason = "it is behind the last good line of a file that a crash left: it was not acknowledged"
    other = store.spill.directory.new_file(files.FAILOVER)
    store.spill.directory.note_failed(other, [BadLine(0, refused.event.encode(), reason)])
    store.spill.stats.failed_events += 1
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await until(lambda: store.spill.stats.failed_events == 1)
    await store.drained()
    assert len(await store.values()) == 10
    assert [each.name for each in files.failed_files(store.directory)] == [files.completed(other).path.name]


class Writing:
    """Holds the next file that lines of `failed` become, once its content is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = durable.write_file
        self._is_written, self._may_end = threading.Event(), threading.Event()
        monkeypatch.setattr(requeueing, "write_file", self._write_and_wait)

    def _write_and_wait(self, *given: Any) -> None:
        self._write(*given)
        self._is_written.set()
        assert self._may_end.wait(60)

    async def begins(self) -> None:
        await until(self._is_written.is_set)

    def end(self) -> None:
        self._may_end.set()


async def test_retried_messages_are_stored_though_newer_ones_were_kept_meanwhile(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await refused_by_the_database(opened, server)
    monkeypatch.setattr(store.spill._appender, "_events_per_file", 2)
    writing = Writing(monkeypatch)
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await writing.begins()
    server.kill()
    for number in range(10, 14):
        await store.push(b"%d" % number)
    writing.end()
    await server.start()
    await store.drained()
    await until(lambda: not store.spill.stats.failed_events)
    await store.drained()
    assert sorted(await store.values(), key=int) == [b"%d" % number for number in range(14)]


async def test_retried_messages_are_stored_though_the_database_goes_away_before_it_forgets_the_first(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several brokers, that takes a query."""
    store = await refused_by_the_database(opened, server)
    forget, failures = store.database.replaying.forget, 0

    async def fails_once(*given: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise Unavailable("it went away")
        await forget(*given)

    monkeypatch.setattr(store.database.replaying, "forget", fails_once)
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await until(lambda: failures > 0 and not store.spill.stats.failed_events)
    await store.drained()
    assert sorted(await store.values(), key=int) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("call", range(5))
async def test_retried_messages_are_stored_once_though_the_disk_failed_in_between(
    call: int, opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await refused_by_the_database(opened, server)
    calls = 0

    def failing(work: Callable[..., None]) -> Callable[..., None]:
        def fail_once(*given: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == call + 1:
                raise OSError(errno.EIO, "the disk is away for a moment")
            work(*given)

        return fail_once

    for name in ("write_file", "replace_file", "sync_directory"):
        monkeypatch.setattr(requeueing, name, failing(getattr(requeueing, name)))
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    await until(lambda: calls > call and not store.spill.stats.failed_events)
    await store.drained()
    assert sorted(await store.values(), key=int) == [b"%d" % number for number in range(10)]
    assert not files.failed_files(store.directory)


async def test_message_set_aside_before_the_store_was_lost_is_stored_once_when_its_topic_can_be_made(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    is_allowed = False

    async def ensure(name: TopicName) -> None:
        if not is_allowed:
            raise TopicNotFound(f"there is no topic {name}")
        await store.create(name)

    store.spill.create_with(ensure)
    server.kill()
    for number in range(10):
        await store.push(b"%d" % number, topic=("t", "new")[number % 2])
    real, lost_until_s = store.database.replaying.store, 0.0

    async def lost(*given: Any) -> int:
        nonlocal is_allowed, lost_until_s
        if store.spill.stats.failed_events and not is_allowed:
            is_allowed = True
            # Longer than a refusal is remembered.
            lost_until_s = time.monotonic() + 4 * FAST["retry_interval_s"]
        if time.monotonic() < lost_until_s:
            raise Unavailable("it went away before the lines counted as done")
        return await real(*given)

    monkeypatch.setattr(store.database.replaying, "store", lost)
    await server.start()
    await until(lambda: is_allowed and not store.spill.stats.failed_events)
    await store.drained()
    assert sorted(await store.values("new")) == [b"%d" % number for number in range(1, 10, 2)]


async def test_message_set_aside_before_a_kill_is_stored_once_when_the_database_takes_it(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    for number in range(10):
        await store.push(b"%d" % number)
    real = store.database.replaying.store

    async def lost(*given: Any) -> int:
        if store.spill.stats.failed_events:
            raise Unavailable("it went away before the line counted as done")
        return await real(*given)

    monkeypatch.setattr(store.database.replaying, "store", lost)
    await server.start()
    await execute(server.url, ODD_ONES_ARE_REFUSED)
    await until(lambda: store.spill.stats.failed_events == 1)
    await store.stop()
    await execute(server.url, "ALTER TABLE holdfast.messages DROP CONSTRAINT even")
    again = await opened(server.url)
    await until(lambda: again.spill.waiting.is_known and not again.spill.stats.failed_events)
    await again.drained()
    assert sorted(await again.values(), key=int) == [b"%d" % number for number in range(10)]


async def test_topic_for_which_there_is_no_room_does_not_make_a_store_that_works_an_outage(
    opened: Open, server: Server
) -> None:
    store = await opened(server.url)
    await store.create()
    store.spill.create_with(refuse(TopicNotFound("there is no topic new")))
    server.kill()
    for number in range(4):
        await store.push(b"%d" % number, topic=("t", "new")[number % 2])
    await server.start()
    await until(lambda: store.spill.stats.failed_events == 2)
    await store.drained()
    full = TooManyTopics("there is no room for another topic")
    store.spill.create_with(refuse(full))
    outages, retrying = store.spill.stats.outages, store.spill._retrying
    begun = retrying._round
    async with asyncio.timeout(20):
        while retrying._round < begun + 5:
            assert not (await store.push(b"x"))[0].buffered
    assert store.spill.stats.outages == outages
    store.spill.create_with(store.create)
    await until(lambda: not store.spill.stats.failed_events)
    await store.drained()
    assert sorted(await store.values("new")) == [b"1", b"3"]
