"""Bringing spilled messages back: exactly once whatever was cut off, in order, also beside other brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.postgres.writing import Writer
from holdfast.model.errors import TopicNotFound
from holdfast.model.ids import PartitionId, TopicName
from tests.postgres.stores import query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling

# Shorter than that of users, and longer than a busy machine keeps a broker from its beats.
LEASE_S = 3.0
T = PartitionId(TopicName("t"), 0)


class SilentCommit:
    """A connection whose answer to a commit never comes; whether it was sent is up to the test."""

    def __init__(self, connection: Any, *, is_sent: bool) -> None:
        self._connection = connection
        self._is_sent = is_sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, statement: str, *values: object) -> str:
        if statement != "COMMIT":
            told: str = await self._connection.execute(statement, *values)
            return told
        if self._is_sent:
            await self._connection.execute("COMMIT")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_crashed", [True, False])
async def test_push_whose_fate_was_unknown_is_stored_once(
    is_stored: bool, is_crashed: bool, opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ids, and long after: all that is left of the push is what stands in the spill and in the database."""
    store = await opened(deadline_ms_min=400, deadline_ms_max=400)
    await store.create_in_store()
    await store.push(b"before")
    await store.drained()
    connected = Writer._connected

    async def silent(self: Writer) -> Any:
        return SilentCommit(await connected(self), is_sent=is_stored)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_connected", silent)
        if is_crashed:
            patched.setattr(store.spill.replayer, "run_once", never)
        pushed = await asyncio.gather(store.push(b"1", b"2"), store.push(b"3"))
        assert all(each.buffered for part in pushed for each in part)
        assert store.spill.stats.unknown_fates == 2
    if is_crashed:
        await store.stop()
        await query(url, "DELETE FROM holdfast.id_keys")
        await query(url, "UPDATE holdfast.writers SET written_at = now() - interval '60 days'")
        store = await opened()
        await store.database.retention.sweep()
    await store.drained()
    await store.push(b"after")
    assert await store.values() == [b"before", b"1", b"2", b"3", b"after"]
    assert store.spill.stats.already_stored_events == (3 if is_stored else 0)


async def test_replay_that_is_cut_off_at_any_point_stores_nothing_twice(opened: Open, server: Server) -> None:
    """The database is killed again and again while the spill is emptied."""
    store = await opened(server.url, events_per_file=3000)
    await store.create(partitions=2)
    server.kill()
    for number in range(20):
        await store.push(*(b"%d" % each for each in range(number * 1000, number * 1000 + 1000)), partition=number % 2)
    for _ in range(3):
        replayed = store.spill.stats.replayed_events
        await server.start()
        await until(lambda before=replayed: store.spill.stats.replayed_events > before)  # type: ignore[misc]
        server.kill()
    await server.start()
    await store.drained()
    for partition in range(2):
        thousands = range(partition * 1000, 20_000, 2000)
        expected = [b"%d" % each for first in thousands for each in range(first, first + 1000)]
        assert await store.values(partition=partition) == expected


async def test_message_the_store_never_takes_is_set_aside_and_the_others_stored(opened: Open, server: Server) -> None:
    """A topic is gone, and topics are not made by use."""
    store = await opened(server.url)
    await store.create("t")
    await store.create("gone")

    async def refuse(name: TopicName) -> None:
        raise TopicNotFound(f"there is no topic {name}")

    store.spill.create_with(refuse)
    server.kill()
    for number in range(10):
        await store.push(b"%d" % number, topic="gone" if number == 5 else "t")
    await server.start()
    await query(server.url, "DELETE FROM holdfast.topics WHERE name = 'gone'")
    await store.drained()
    assert await store.values() == [b"%d" % number for number in range(10) if number != 5]
    assert store.spill.stats.failed_events == 1


async def both_said_that_they_are_there(*stores: Spilling) -> None:
    began_s = asyncio.get_running_loop().time()
    await until(lambda: all((store.database.holding.beat_s or 0) > began_s for store in stores))


async def test_brokers_of_one_database_store_by_the_time_of_their_messages(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    first = await opened(server.url, directory=tmp_path / "a", node="a")
    second = await opened(server.url, directory=tmp_path / "b", node="b")
    await first.create()
    await until(lambda: second.database.topic(T.topic) is not None)
    await both_said_that_they_are_there(first, second)
    server.kill()
    for number in range(20):
        await (first, second)[number % 2].push(b"%d" % number)
        await asyncio.sleep(0.003)
    await server.start()
    await asyncio.gather(first.drained(), second.drained())
    assert await first.values() == [b"%d" % number for number in range(20)]


async def test_brokers_wait_for_each_other_in_every_outage_however_it_is_noticed(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second outage is known before the first push of it, so nothing is under way; one broker is late back.

    And the other one beats before its spill sees that the database is back.
    """
    first = await opened(server.url, directory=tmp_path / "a", node="a", lease_s=LEASE_S)
    second = await opened(server.url, directory=tmp_path / "b", node="b", lease_s=LEASE_S)
    await first.create()
    await until(lambda: second.database.topic(T.topic) is not None)
    await both_said_that_they_are_there(first, second)
    server.kill()
    await first.push(b"0")
    await second.push(b"1")
    await server.start()
    await asyncio.gather(first.drained(), second.drained())
    await both_said_that_they_are_there(first, second)
    server.kill()
    await until(lambda: not first.database.database.is_up and not second.database.database.is_up)
    reach = second.database.database._reach

    is_seen = asyncio.Event()

    async def late() -> None:
        await is_seen.wait()
        await asyncio.sleep(0.2)
        await reach()

    monkeypatch.setattr(second.database.database, "_reach", late)
    beat_s, look = first.database.holding.beat_s, first.database.replaying.reach

    async def after_a_beat() -> None:
        await until(lambda: first.database.holding.beat_s != beat_s)
        await look()
        is_seen.set()

    monkeypatch.setattr(first.database.replaying, "reach", after_a_beat)
    await asyncio.sleep(LEASE_S)
    for number in range(2, 12):
        await (first, second)[number % 2].push(b"%d" % number)
        await asyncio.sleep(0.003)
    await server.start()
    await asyncio.gather(first.drained(), second.drained())
    assert await first.values() == [b"%d" % number for number in range(12)]


async def test_broker_that_does_not_come_back_is_not_waited_for_for_ever(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    first = await opened(server.url, directory=tmp_path / "a", node="a", lease_s=LEASE_S)
    await first.create()
    lost = await opened(server.url, directory=tmp_path / "b", node="b")
    await until(lambda: lost.database.holding.beat_s is not None)
    server.kill()
    await first.push(b"1")
    await lost.push(b"2")
    await lost.stop()
    await server.start()
    began_s = time.monotonic()
    await first.drained()
    assert time.monotonic() - began_s > LEASE_S / 2, "it is waited for at all"
    assert await first.values() == [b"1"]


async def test_stored_files_are_gone_and_a_copy_of_one_is_recognised(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    store = await opened(server.url, events_per_file=5)
    await store.create()
    server.kill()
    for number in range(20):
        await store.push(b"%d" % number)
    copies = {file.path.name: file.path.read_bytes() for file in store.spilled_files() if file.is_complete}
    await server.start()
    await store.drained()
    await until(lambda: not store.spill.replayer._gone)
    # The names of topics are written beside, in a moment of their own.
    left = ["failed", "spill.lock", "topics.json"]
    await until(lambda: sorted(each.name for each in store.directory.iterdir()) == left)
    await store.stop()
    for name, content in copies.items():
        (store.directory / name).write_bytes(content)
    again = await opened(server.url)
    await again.drained()
    assert len(copies) >= 3 and await again.values() == [b"%d" % number for number in range(20)]
