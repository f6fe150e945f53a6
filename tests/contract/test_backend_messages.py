"""Messages: stored in order, seen only once durable, the same for every reader, and still there after a restart."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
from testkit.batches import foreign_records, values_batch
from testkit.inprocess import Store

from holdfast.model.errors import HoldfastError, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.wire import record_batch


async def test_offsets_are_gapless_and_in_the_order_of_the_calls(store: Store) -> None:
    t = await store.create()
    appended = [store.append(t, values_batch(*[b"%d/%d" % (i, j) for j in range(1 + i % 3)])) for i in range(50)]
    offsets = await asyncio.gather(*appended)
    expected = [sum(1 + i % 3 for i in range(n)) for n in range(50)]
    assert offsets == expected
    values = [b"%d/%d" % (i, j) for i in range(50) for j in range(1 + i % 3)]
    assert await store.read_all(t) == dict(enumerate(values))


async def test_many_batches_at_once_stand_where_as_many_calls_would_put_them(store: Store) -> None:
    if not store.leads:
        pytest.skip("the broker gives them to the node that leads, one request at a time")
    t = await store.create()
    rolled = random.Random(11)
    expected: list[bytes] = []
    appended = []
    for turn in range(9):
        batches = [[b"%d/%d/%d" % (turn, i, j) for j in range(1 + i % 3)] for i in range(rolled.choice((1, 2, 700)))]
        values = [value for batch in batches for value in batch]
        if turn % 3:
            appended.append((len(expected), store.backend.append_all(t, [values_batch(*batch) for batch in batches])))
        else:
            appended.append((len(expected), store.append(t, values_batch(*values))))
        expected += values
    for base_offset, future in appended:
        assert await future == base_offset
    assert await store.read_all(t) == dict(enumerate(expected))
    await store.restart()
    assert await store.read_all(t) == dict(enumerate(expected))


async def test_acknowledgements_come_in_the_order_of_the_calls(store: Store) -> None:
    t = await store.create()
    done: list[int] = []

    def note(number: int, _: object) -> None:
        done.append(number)

    appended = [store.append(t, values_batch(b"%d" % i)) for i in range(30)]
    for i, future in enumerate(appended):
        future.add_done_callback(partial(note, i))
    await asyncio.gather(*appended)
    await asyncio.sleep(0)
    assert done == list(range(30))


async def test_acknowledged_message_is_visible_to_every_reader_at_once(store: Store) -> None:
    t = await store.create()
    for i in range(20):
        future = store.append(t, values_batch(b"%d" % i))
        if store.leads and not future.done():
            assert store.backend.end_offset(t) == i, "a message is visible before it is durable"
            assert await store.read(t, i) == []
        assert await future == i
        await store.caught_up(t)
        assert store.backend.end_offset(t) == i + 1
        assert await store.read(t, i) == [b"%d" % i]


async def test_reader_gets_the_messages_that_were_stored(store: Store) -> None:
    t = await store.create()
    await store.publish(t, b"before")
    offset = Offset(await store.publish(t, b"one", b"", store.kept(b"\xff\x00\n"), timestamp_ms=77))
    await store.restart()
    (stored,) = await store.backend.read(t, offset, 300)
    records = foreign_records(bytes(stored))
    assert [(r.offset, r.value, r.timestamp_ms) for r in records] == [
        (1, b"one", 77),
        (2, b"", 77),
        (3, store.kept(b"\xff\x00\n"), 77),
    ]


async def test_read_begins_with_the_batch_that_holds_the_offset(store: Store) -> None:
    t = await store.create()
    for i in range(5):
        await store.publish(t, *[b"%d" % (4 * i + j) for j in range(4)])
    for offset in range(20):
        batches = await store.backend.read(t, Offset(offset), 1)
        assert len(batches) == 1, "a small limit still gives one batch"
        head = record_batch.header(batches[0])
        assert head.base_offset <= offset < head.next_offset
    everything = await store.backend.read(t, Offset(5), 1 << 30)
    assert record_batch.header(everything[0]).base_offset in (4, 5), "batches may be cut anew, but not far before"
    assert record_batch.header(everything[-1]).next_offset == 20


async def test_reading_at_the_end_is_empty_and_beyond_it_an_error(store: Store) -> None:
    t = await store.create()
    assert await store.read(t, 0) == []
    await store.publish(t, b"one")
    assert await store.read(t, 1) == []
    with pytest.raises(OffsetOutOfRange):
        await store.read(t, 2)
    with pytest.raises(OffsetOutOfRange):
        await store.read(t, -1)


async def test_partitions_count_for_themselves(store: Store) -> None:
    await store.create("t", partitions=3)
    partitions = [PartitionId(TopicName("t"), number) for number in range(3)]
    for number, partition in enumerate(partitions):
        for i in range(number + 1):
            assert await store.publish(partition, b"%d-%d" % (number, i)) == i
    await store.restart()
    for number, partition in enumerate(partitions):
        assert await store.read_all(partition) == {i: b"%d-%d" % (number, i) for i in range(number + 1)}
        assert store.backend.describe_partition(partition).end_offset == number + 1


async def test_everything_acknowledged_is_there_after_restarts(store: Store) -> None:
    rolled = random.Random(5)
    t = await store.create()
    expected: dict[int, bytes] = {}
    for round_number in range(4):
        for i in range(15):
            values = [b"%d/%d/%d " % (round_number, i, j) + rolled.randbytes(rolled.randrange(400)) for j in range(3)]
            values = list(map(store.kept, values))
            offset = await store.publish(t, *values)
            assert offset == len(expected), "offsets start again or skip after a restart"
            expected |= {offset + j: value for j, value in enumerate(values)}
        assert await store.read_all(t) == expected
        await store.restart()
        assert await store.read_all(t) == expected
        assert store.backend.start_offset(t) == 0
        assert store.backend.end_offset(t) == len(expected)


async def test_time_leads_to_the_first_message_of_that_time(store: Store) -> None:
    t = await store.create()
    for i in range(10):
        await store.publish(t, b"%d" % i, b"x", timestamp_ms=100 * i)
    for _ in range(2):
        for i in range(10):
            assert await store.backend.offset_at(t, TimestampMs(100 * i)) == 2 * i
            assert await store.backend.offset_at(t, TimestampMs(100 * i - 50)) == 2 * i
        assert await store.backend.offset_at(t, TimestampMs(901)) == 20
        assert await store.backend.offset_at(t, TimestampMs(0)) == 0
        await store.restart()


async def test_watcher_hears_of_every_commit_until_it_stops_watching(store: Store) -> None:
    t = await store.create()
    ends: list[int] = []
    unwatch = store.backend.watch(t, lambda: ends.append(store.backend.end_offset(t)))
    for i in range(3):
        await store.publish(t, b"%d" % i)
        assert ends[-1] == i + 1, "a reader would sleep through a message"
    unwatch()
    heard = list(ends)
    await store.publish(t, b"unheard")
    assert ends == heard
    unwatch()


async def test_readable_offset_is_itself_where_nothing_is_wrong(store: Store) -> None:
    t = await store.create()
    for i in range(3):
        await store.publish(t, b"%d" % i)
    assert [store.backend.next_readable(t, Offset(offset)) for offset in range(4)] == [0, 1, 2, 3]


async def test_missing_topic_is_refused_and_takes_nothing(store: Store) -> None:
    missing = PartitionId(TopicName("missing"), 0)
    with pytest.raises(TopicNotFound):
        await store.append(missing, values_batch(b"x"))
    with pytest.raises(HoldfastError):
        await store.backend.read(missing, Offset(0), 100)
    await store.create("t")
    with pytest.raises(HoldfastError):
        await store.append(PartitionId(TopicName("t"), 1), values_batch(b"x"))
    assert store.backend.topic(TopicName("missing")) is None


async def test_many_topics_written_at_once_keep_their_own_order(store: Store) -> None:
    """More files in one round than are synced one by one."""
    partitions = [await store.create(f"t{number}") for number in range(12)]
    appended = [store.append(partition, values_batch(b"%d" % i)) for i in range(10) for partition in partitions]
    await asyncio.gather(*appended)
    await store.restart()
    for partition in partitions:
        assert await store.read_all(partition) == {i: b"%d" % i for i in range(10)}


async def test_backend_names_itself_and_has_no_problem(store: Store) -> None:
    assert store.backend.node_id == store.node
    assert store.backend.problem() is None
    t = await store.create()
    assert store.backend.describe_partition(t).leader == "n1"
