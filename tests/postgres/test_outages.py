"""The database goes away in every way it can: nothing hangs, nothing acknowledged is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
from collections.abc import Awaitable

import asyncpg
import pytest
from testkit.postgres import Server
from testkit.wait import PATIENCE_S, until

from holdfast.backends.postgres import writing
from holdfast.frontends.text.line_cache import LineCache, Place
from holdfast.model.errors import HoldfastError, LeaderChanged, OutcomeUnknown, Unavailable
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.wire.text import DIALECTS
from tests.postgres.conftest import Open
from tests.postgres.stores import Opened, query

T = PartitionId(TopicName("t"), 0)
C = CursorName("c")


# A broker with this patience that refuses at all refuses at once.
FOR_EVER_S = 600.0


async def refused(work: Awaitable[object]) -> HoldfastError:
    """The error that something ends with; it does not wait for the database to come back."""
    with pytest.raises(HoldfastError) as error:
        async with asyncio.timeout(PATIENCE_S):
            await work
    return error.value


async def works_again(store: Opened, value: bytes) -> None:
    """By itself, and soon."""
    await until(lambda: store.backend.problem() is None, "the store is well again")
    await store.publish(value)


async def test_server_that_is_killed_is_missed_at_once_and_used_as_soon_as_it_is_back(
    opened: Open, server: Server
) -> None:
    store = await opened(address=server.url, timeout_s=FOR_EVER_S)
    await store.create()
    await store.publish(b"before")
    await store.backend.set_cursor(T.topic, CursorName("c"), {0: Offset(1)})
    server.kill()
    assert isinstance(await refused(store.publish(b"lost")), Unavailable | LeaderChanged)
    await until(lambda: store.backend.problem() is not None, "it is known")
    assert "away" in (store.backend.problem() or "")
    assert isinstance(await refused(store.publish(b"refused")), Unavailable)
    assert isinstance(await refused(store.backend.catch_up(T)), Unavailable)
    assert isinstance(await refused(store.backend.catch_up_cursors()), Unavailable)
    assert isinstance(await refused(store.create("u")), Unavailable)
    moved = store.backend.set_cursor(T.topic, CursorName("c"), {0: Offset(0)})
    assert isinstance(await refused(moved), Unavailable)
    assert store.backend.cursor(T.topic, CursorName("c")) == {0: 1}
    assert store.backend.describe_partition(T).leader is None
    assert not (await store.broker.cluster()).has_quorum
    await server.start()
    await works_again(store, b"after")
    assert {message.value for message in await store.read()} >= {b"before", b"after"}
    assert store.backend.database.outages == 1


async def test_broker_starts_without_its_database_and_serves_when_it_comes(opened: Open, server: Server) -> None:
    first = await opened(address=server.url)
    await first.create()
    await first.publish(b"before")
    await first.backend.stop()
    server.kill()
    store = await opened(address=server.url, timeout_s=FOR_EVER_S)
    assert store.backend.problem() is not None
    assert isinstance(await refused(store.publish(b"x")), Unavailable)
    with pytest.raises(Unavailable):
        store.broker.describe_topic("t")
    assert store.broker.topics() == []
    await server.start()
    await until(lambda: store.backend.known.is_loaded, "the topics are known")
    await works_again(store, b"after")
    assert [message.value for message in await store.read()] == [b"before", b"after"]


async def test_paused_server_is_an_outage_of_bounded_time(opened: Open, server: Server) -> None:
    store = await opened(address=server.url, timeout_s=0.5)
    await store.create()
    await store.publish(b"before")
    store.backend.reading.tails.forget(T)
    server.kill(signal.SIGSTOP)
    try:
        errors = await asyncio.gather(
            refused(store.publish(b"a")),
            refused(store.backend.read(T, Offset(0), 100)),
            refused(store.backend.catch_up(T)),
        )
        assert all(isinstance(error, Unavailable | LeaderChanged) for error in errors)
        await until(lambda: store.backend.problem() is not None, "it is known")
        assert "does not answer" in (store.backend.problem() or "")
    finally:
        server.kill(signal.SIGCONT)
    await works_again(store, b"after")
    assert (await store.read())[0].value == b"before"


async def test_read_only_database_takes_no_message_and_is_read(opened: Open, url: str) -> None:
    store = await opened()
    await store.create()
    await store.publish(b"before")
    name = url.rpartition("/")[2].partition("?")[0]
    await query(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await _end_sessions(url)
    await until(lambda: "read-only" in (store.backend.problem() or ""), "it is said")
    assert isinstance(await refused(store.publish(b"x")), Unavailable)
    assert [message.value for message in await store.read()] == [b"before"]
    connection = await asyncpg.connect(url, server_settings={"default_transaction_read_only": "off"})
    await connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await connection.close()
    await _end_sessions(url)
    await until(lambda: store.backend.database.is_up, "it is back")
    await works_again(store, b"after")


async def _end_sessions(url: str) -> None:
    await query(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def test_broker_whose_sessions_are_ended_publishes_on_and_nobody_is_told_of_a_failure(
    opened: Open, url: str
) -> None:
    store = await opened()
    await store.create()
    for number in range(5):
        await store.publish(b"%d" % number, ids=[str(number)])
        await _end_sessions(url)
    assert [message.value for message in await store.read()] == [b"%d" % number for number in range(5)]


async def test_database_without_a_free_connection_refuses_and_recovers(opened: Open, server: Server) -> None:
    store = await opened(address=server.url, timeout_s=1.0)
    await store.create()
    await store.publish(b"before")
    others = []
    with pytest.raises(asyncpg.PostgresError):
        while True:
            others.append(await asyncpg.connect(server.url))
    # The broker's own sessions are gone, and there is no room for new ones.
    await others[0].execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'"
    )
    taken = []
    for _ in range(12):
        try:
            taken.append(await asyncpg.connect(server.url))
        except asyncpg.PostgresError:
            await asyncio.sleep(0.01)
    await refused(store.publish(b"x"))
    for connection in (*others, *taken):
        await connection.close()
    await works_again(store, b"after")


async def test_too_much_that_waits_is_refused(opened: Open, server: Server) -> None:
    store = await opened(address=server.url, timeout_s=2.0)
    await store.create()
    server.kill(signal.SIGSTOP)
    try:
        refusals = 0
        publishing = []
        for _ in range(100):
            try:
                publishing.append(store.broker.publish_values("t", [bytes(1_000_000)]).offset)
            except Unavailable as error:
                refusals += "wait for the database" in error.message
        assert refusals > 20
        outcomes = await asyncio.wait_for(asyncio.gather(*publishing, return_exceptions=True), 10)
        assert all(isinstance(outcome, Unavailable | LeaderChanged) for outcome in outcomes)
    finally:
        server.kill(signal.SIGCONT)


async def test_too_many_messages_that_wait_are_refused_however_small(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WAITING_MESSAGES_MAX", 100)
    store = await opened()
    await store.create()
    first = [asyncio.create_task(store.publish(*[b""] * 40)) for _ in range(3)]
    await asyncio.sleep(0)
    assert "120 messages wait" in (await refused(store.publish(b""))).message
    await asyncio.gather(*first)
    await store.publish(b"")


async def test_publisher_behind_others_of_a_slow_database_does_not_wait_for_all_of_them(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_ROUND_MESSAGES_MAX", 1)
    store = await opened(timeout_s=1.0)
    await store.create()
    await query(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END'",
    )
    await query(url, "CREATE TRIGGER slow AFTER UPDATE ON holdfast.partitions EXECUTE FUNCTION slow()")
    done = await asyncio.gather(*(store.publish(b"%d" % number) for number in range(20)), return_exceptions=True)
    stored = [each for each in done if not isinstance(each, BaseException)]
    assert 1 <= len(stored) <= 5
    # The one under way when the time was over may be stored; those behind it are not.
    under_way, *behind = done[len(stored) :]
    assert isinstance(under_way, (Unavailable, OutcomeUnknown)), under_way
    assert all(isinstance(each, Unavailable) for each in behind), behind
    maybe = isinstance(under_way, OutcomeUnknown)
    assert len(stored) <= len(await store.read()) <= len(stored) + maybe


async def test_server_that_lacks_the_last_commits_is_believed(opened: Open, own_server: Server) -> None:
    """A standby takes over that did not have all of it yet: what is gone is gone, and nothing is mixed up."""
    store = await opened(address=own_server.url)
    database, notices = store.backend.database, store.backend.notices
    await store.create()
    await store.publish(b"a")
    await store.backend.set_cursor(T.topic, C, {0: Offset(1)})
    await own_server.stop()
    behind = own_server.path.with_name("behind")
    subprocess.run(["cp", "-a", own_server.path, behind], check=True)  # noqa: ASYNC221 - a tenth of a second
    await own_server.start()
    # What listens is the first to notice that the server was away, and the last to be there again.
    await until(lambda: database.is_up and notices._is_listening, "it is used again")
    skipped: list[str] = []
    store.broker._on_skip = skipped.append
    reader = store.broker.follow("t", {0: Offset(1)})
    await store.publish(b"lost", b"lost, too")
    cache = LineCache(DIALECTS["standard"])
    delivery = await reader.next(1 << 20)
    assert cache.make(Place("t", None, 0, delivery.offset, delivery.cuts), delivery, 1 << 20).messages == 2
    waiting = asyncio.create_task(reader.next(1 << 20))
    await store.create("lost")
    for _ in range(40):  # a sequence is ahead of itself by 32
        await store.backend.set_cursor(T.topic, C, {0: Offset(3)})
    await own_server.stop()
    shutil.rmtree(own_server.path)
    behind.rename(own_server.path)
    await own_server.start()
    await until(lambda: store.backend.end_offset(T) == 1, "it is known what there is")
    await store.create("other")
    assert [topic.name for topic in store.backend.topics()] == ["t", "other"]
    assert [each.offset for each in await store.publish(b"b", b"c")] == [1, 2]
    assert [message.value for message in await store.read()] == [b"a", b"b", b"c"]
    delivery = await asyncio.wait_for(waiting, 10)
    lines = cache.make(Place("t", None, 0, delivery.offset, delivery.cuts), delivery, 1 << 20).lines
    assert lines.count(b"|b\n") == 1 and b"lost" not in lines, "a live subscriber goes on with what is there now"
    assert len(skipped) == 1 and "lost 2 messages" in skipped[0]
    reader.close()
    await store.backend.set_cursor(T.topic, C, {0: Offset(2)})
    assert store.backend.cursor(T.topic, C) == {0: 2}


async def test_subscriber_that_is_behind_waits_for_the_database_and_goes_on(opened: Open, server: Server) -> None:
    store = await opened(address=server.url, timeout_s=1.0)
    await store.create()
    await store.publish(*[b"%d" % number for number in range(10)])
    store.backend.reading.tails.forget(T)
    follower = store.broker.follow("t", {0: Offset(0)})
    server.kill()
    waiting = asyncio.create_task(follower.next(1 << 20))
    await until(lambda: store.backend.problem() is not None, "it is known")
    assert not waiting.done(), "a subscription ended with the database"
    await server.start()
    delivery = await asyncio.wait_for(waiting, 10)
    assert delivery.next_offset == 10
    follower.close()


@pytest.mark.parametrize("what", ["session", "server"])
async def test_what_became_of_a_commit_is_never_guessed(opened: Open, server: Server, what: str) -> None:
    """Killed at any moment, at the commit above all: who was told that it is stored finds it once, in its place."""
    rolled = random.Random(8)
    store = await opened(address=server.url, timeout_s=3.0)
    await store.create()
    told: dict[Offset, bytes] = {}
    unknown: set[bytes] = set()
    refusals: set[bytes] = set()
    is_over = False

    async def publish(publisher: int) -> None:
        number = 0
        while not is_over:
            value = b"%d-%d" % (publisher, number)
            number += 1
            try:
                told[await store.broker.publish_values("t", [value]).offset] = value
            except LeaderChanged:
                unknown.add(value)
            except Unavailable:
                refusals.add(value)
                await asyncio.sleep(0.01)

    publishers = [asyncio.create_task(publish(number)) for number in range(6)]
    for _ in range(12 if what == "session" else 4):
        await asyncio.sleep(rolled.uniform(0.02, 0.1))
        if what == "server":
            server.kill()
            await server.start()
            await until(lambda: store.backend.problem() is None, "it is back")
        else:
            connection = store.backend.writer._connection
            if connection is not None and not connection.is_closed():
                # The broker's end of the wire is cut, while the server's session goes on with what it has.
                connection._transport.abort()
    await asyncio.sleep(0.2)
    is_over = True
    await asyncio.wait_for(asyncio.gather(*publishers), 20)
    found = {message.offset: message.value for message in await store.read()}
    values = list(found.values())
    assert len(values) == len(set(values)), "a message was stored twice"
    assert {offset: found.get(offset) for offset in told} == told, "an acknowledged message is not where it was said"
    assert list(found) == list(range(len(found)))
    assert not refusals & set(values), "a message was stored that was refused"
    assert set(values) - set(told.values()) <= unknown
    sessions = await query(server.url, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'")
    assert sessions[0][0] <= 7, "connections are left behind"
    if what == "session":
        assert not unknown, "the database was there all the time: it could have been asked"
