"""Pushes with qos 0: acknowledged from memory, handed on a moment later; losable, and yet hardly ever lost."""

from __future__ import annotations

from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import files
from holdfast.model.messages import NewMessage
from tests.spill.conftest import Open


async def test_losable_messages_reach_the_store_a_moment_later(opened: Open) -> None:
    store = await opened()
    await store.create(partitions=2)
    messages = [NewMessage(value=b"%d" % number, key=b"k") for number in range(10)]
    published = await store.broker.publish("t", messages, may_be_lost=True)
    assert all(each.buffered for each in published)
    await until(lambda: store.database.writer.stored_messages == 10)
    assert await store.values(partition=published[0].partition) == [each.value for each in messages]


async def test_losable_messages_wait_in_files_of_their_own_and_outlive_a_stop(opened: Open, server: Server) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    await store.push(b"kept")
    await store.broker.publish("t", [NewMessage(value=b"losable")], may_be_lost=True)
    await until(lambda: len(store.spilled_files()) == 2)
    assert [file.kind for file in store.spilled_files()] == [files.FAILOVER, files.QOS0]
    await store.broker.publish("t", [NewMessage(value=b"in memory")], may_be_lost=True)
    await store.stop()
    await server.start()
    again = await opened(server.url)
    await until(lambda: again.spill.is_drained)
    assert await again.values() == [b"kept", b"losable", b"in memory"]
    assert again.spill.stats.qos0_lost_events == 0


async def test_losable_messages_without_a_spill_are_stored_like_all_others(opened: Open) -> None:
    store = await opened()
    store.broker.publisher.push_losable = None
    await store.create()
    [published] = await store.broker.publish("t", [NewMessage(value=b"1")], may_be_lost=True)
    assert published.offset == 0
