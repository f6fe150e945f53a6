"""Push and pop on this store: rows that people can read, and several brokers that hand out each message once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from testkit.serving import serving
from testkit.wait import until

from holdfast.backends.postgres import copying
from holdfast.backends.postgres.transaction import told_of_breaks
from holdfast.broker.popping import cursor_of
from holdfast.broker.results import spread
from holdfast.model.errors import LeaderChanged, TopicNotFound
from holdfast.model.ids import TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.push_ids import push_ids
from holdfast.wire import batch_builder
from holdfast.wire.push_batch import Pushed
from tests.postgres.conftest import Open
from tests.postgres.stores import Opened, now_ms, query


def columns(*items: tuple[str, str, bytes]) -> Pushed:
    names, transactions, values = zip(*items, strict=True)
    return Pushed(names, values, push_ids(names, transactions), transactions, [None] * len(items))


async def push(store: Opened, *items: tuple[str, str, bytes], topic: str = "t") -> list[bool]:
    """Whether each item was there before."""
    told = [False] * len(items)
    for places, fate in await store.broker.publish_pushed(topic, columns(*items)):
        assert not isinstance(fate, BaseException), fate
        offsets = fate.offsets or range(fate.count)
        assert len(places) == len(offsets) == fate.count
        if fate.duplicates:
            for place, published in zip(places, spread(fate), strict=True):
                told[place] = published.duplicate
    return told


async def pop(store: Opened, name: str | None = None, batch: int = 100) -> list[bytes]:
    popped = await store.broker.pop("t", "g", name, messages_max=batch, bytes_max=1 << 20)
    return [message.value for message in popped.messages]


async def test_rows_of_a_push_show_its_ids_and_its_payload(tmp_path: Path, url: str) -> None:
    items: list[dict[str, Any]] = [
        {"queue": "orders", "partition": "customer-17", "payload": {"total": 42}, "transactionId": "tx-1"},
        {"queue": "orders", "payload": [1], "transactionId": "0191e2cd-09aa-70ca-a04c-6567f4442e96", "traceId": "tr-1"},
    ]
    async with serving(tmp_path, store=url) as broker:
        results = await broker.http("POST", "/api/v1/push", {"items": items}, expect=201)
        assert [each["status"] for each in results] == ["queued"] * 2
        popped = await broker.http("GET", "/api/v1/pop/queue/orders?autoAck=true&batch=9")
        assert [each["data"] for each in popped["messages"]] == [{"total": 42}, [1]]
        assert (await broker.http("GET", "/health"))["database"] == "connected"
    columns = "queue, id, transaction_id, trace_id, key, payload"
    rows = await query(url, f'SELECT {columns} FROM holdfast.queue_messages ORDER BY "offset"')
    assert [tuple(row)[:-1] for row in rows] == [
        ("orders", results[0]["message_id"], "tx-1", None, "customer-17"),
        ("orders", results[1]["message_id"], items[1]["transactionId"], "tr-1", "Default"),
    ]
    assert [json.loads(row["payload"]) for row in rows] == [{"total": 42}, [1]]


async def test_namespace_and_task_are_kept_and_given_back(tmp_path: Path, url: str) -> None:
    items = [
        {"queue": "orders", "payload": 1, "transactionId": "tx-1", "traceId": "tr-1", "namespace": "n", "task": "t"},
        {"queue": "orders", "payload": 2, "transactionId": "tx-2"},
    ]
    async with serving(tmp_path, store=url) as broker:
        await broker.http("POST", "/api/v1/push", {"items": items}, expect=201)
        again = await broker.http("POST", "/api/v1/push", {"items": items}, expect=201)
        assert [each["status"] for each in again] == ["duplicate"] * 2
        popped = await broker.http("GET", "/api/v1/pop/queue/orders?autoAck=true&batch=9")
        assert [(each.get("namespace"), each.get("task")) for each in popped["messages"]] == [("n", "t"), (None, None)]
    rows = await query(url, 'SELECT transaction_id, trace_id FROM holdfast.queue_messages ORDER BY "offset"')
    assert [tuple(row) for row in rows] == [("tx-1", "tr-1"), ("tx-2", None)]


UUIDS = [f"0191e2cd-09aa-70ca-a04c-{number:012x}" for number in range(50)]


@pytest.mark.parametrize(
    ("names", "transactions", "traces"),
    [
        (["a", "b", "a"], UUIDS[:3], [None] * 3),
        (["a", "ü" * 100, "c"], [UUIDS[0], "x" * 250, "…"], [None, "trace", "t" * 250]),
        (["p"] * 3, ["ü" * 36, "ü" * 18, "x" * 36], [None] * 3),
        (["p"] * 3, [UUIDS[0], UUIDS[1].upper(), "x" * 36], [None, None, "t"]),
    ],
    ids=["usual", "unusual", "as long as usual", "nearly usual"],
)
async def test_pushed_messages_are_read_back_as_they_were_from_memory_and_from_the_table(
    opened: Open, names: list[str], transactions: list[str], traces: list[str | None]
) -> None:
    one = await opened("n1")
    await one.create(partitions=3)
    pushed = Pushed(names, [b"1", b"\xff\0", b"x" * 5000], push_ids(names, transactions), transactions, traces)
    await one.broker.publish_pushed("t", pushed)
    two = await opened("n2")
    found = [[message for number in range(3) for message in await store.read("t", number)] for store in (one, two)]
    assert found[0] == found[1]
    wanted = {each.id: (each.key, each.value, list(each.headers)) for each in pushed.messages()}
    assert {each.id: (each.key, each.value, list(each.headers)) for each in found[0]} == wanted


async def test_transaction_is_stored_once_through_whichever_brokers_it_comes(opened: Open) -> None:
    one, two = await opened("n1"), await opened("n2")
    await one.create(partitions=2)
    await until(lambda: two.backend.topic(TopicName("t")) is not None, "it is known")
    items = [(f"p{number % 3}", each, each.encode()) for number, each in enumerate([*UUIDS, "one", "two"])]
    ended = await asyncio.gather(*(push(store, *items) for store in (one, two, one, two)))
    for place in range(len(items)):
        assert [told[place] for told in ended].count(False) == 1
    assert await push(await opened("n3"), *items, ("p0", "three", b""), items[0], ("p9", "one", b"")) == [
        *[True] * len(items),
        False,
        True,
        False,
    ]
    stored = [message.value for number in range(2) for message in await one.read("t", number)]
    assert sorted(stored) == sorted([*(each[2] for each in items), b"", b""])


async def test_ids_are_recognised_whether_they_were_expected_to_be_new_or_not(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.postgres.transaction._ASK_TRANSACTIONS", 2)
    store = await opened()
    await store.create(partitions=2)
    dice = random.Random(7)
    stored: dict[tuple[str, str], bytes] = {}
    for number in range(60):
        items = [(f"p{dice.randrange(3)}", str(dice.randrange(150)), b"%d" % number) for _ in range(dice.randrange(4))]
        items.append(("p0", f"new {number}", b"%d" % number))
        expected = []
        for name, transaction, value in items:
            expected.append((name, transaction) in stored)
            stored.setdefault((name, transaction), value)
        assert await push(store, *items) == expected
    values = [message.value for number in range(2) for message in await store.read("t", number)]
    assert sorted(values) == sorted(stored.values())


async def test_known_id_changes_nothing_for_those_it_is_stored_with(opened: Open, url: str) -> None:
    store = await opened("n1")
    for topic in ("known", "gone", "new"):
        await store.create(topic)
    await store.publish(b"1", topic="known", ids=["a"])
    await query(url, "DELETE FROM holdfast.topics WHERE name = 'gone'")
    transactions = store.backend.writer.transactions
    known, gone, new = await asyncio.gather(
        store.publish(b"1", b"2", topic="known", ids=["a", "b"]),
        store.publish(b"3", topic="gone", ids=["c"]),
        store.publish(b"4", b"5", topic="new", ids=["a", "b"]),
        return_exceptions=True,
    )
    assert store.backend.writer.transactions == transactions + 1
    assert isinstance(gone, TopicNotFound)
    assert not isinstance(known, BaseException) and not isinstance(new, BaseException)
    assert [(each.offset, each.duplicate) for each in known] == [(0, True), (1, False)]
    assert [(each.offset, each.duplicate) for each in new] == [(0, False), (1, False)]
    assert [message.value for message in await store.read("known")] == [b"1", b"2"]
    assert [message.value for message in await store.read("new")] == [b"4", b"5"]


async def test_transaction_that_a_bug_of_ours_cut_off_is_not_committed_with_the_next(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody waits any more for what it stores."""
    store = await opened("n1")
    partition = await store.create()
    await store.create("other")

    async def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    batch = batch_builder.build_batch([NewMessage(value=b"1", id="a")], now_ms())
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.backends.postgres.transaction._finish", fail)
        before = store.backend.writer.id
        store.backend.forward(partition, batch, has_ids=True).cancel()
        await until(lambda: store.backend.writer.id != before, "the writer has another name")
    await store.publish(b"2", topic="other", ids=["b"])
    [again] = await store.publish(b"1", ids=["a"])
    assert (again.offset, again.duplicate) == (0, False)
    assert await query(url, "SELECT count(*) FROM holdfast.messages") == [(2,)]


async def test_what_was_given_up_on_while_rows_were_sent_is_not_stored_after_all(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave up keeps it elsewhere, and stores it again."""
    store = await opened("n1")
    partition = await store.create()
    is_sending = asyncio.Event()
    stream = copying.stream

    async def stream_slowly(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
        async for piece in stream(parts):
            yield piece
            if not is_sending.is_set():
                is_sending.set()
                await asyncio.Event().wait()

    monkeypatch.setattr(copying, "stream", stream_slowly)
    batch = batch_builder.build_batch([NewMessage(value=b"1", id="a")], now_ms())
    given_up = store.backend.forward(partition, batch, has_ids=True)
    await is_sending.wait()
    assert list(store.backend.writer.abandon().values()) == [None]
    with pytest.raises(LeaderChanged):
        await given_up
    await store.publish(b"2", ids=["b"])
    assert [message.value for message in await store.read()] == [b"2"]


async def test_connection_that_is_closed_while_rows_are_sent_is_no_bug_of_ours(url: str) -> None:
    connection = await asyncpg.connect(url)
    with pytest.raises(AttributeError, match="no such thing"), told_of_breaks(connection):
        raise AttributeError("no such thing")
    connection.terminate()
    with pytest.raises(ConnectionResetError), told_of_breaks(connection):
        raise RuntimeError("unable to perform operation; the handler is closed")


async def test_id_of_a_push_is_the_same_id_in_every_other_way(opened: Open) -> None:
    store = await opened()
    await store.create()
    pushed = columns(("p", "tx", b"1"))
    await store.broker.publish_pushed("t", pushed)
    [told] = await store.publish(b"1", ids=[pushed.ids[0]])
    assert told.duplicate and told.offset == 0
    await store.publish(b"2", ids=[push_ids(["p"], ["other"])[0]])
    assert await push(store, ("p", "other", b"2")) == [True]


async def test_transaction_may_come_again_once_it_is_too_old(opened: Open, url: str) -> None:
    store = await opened(dedupe_age_ms=60_000)
    await store.create()
    assert await push(store, ("p", "tx", b"1"), ("p", "new", b"2")) == [False, False]
    await query(url, "UPDATE holdfast.id_keys SET inserted_at = now() - interval '2 minutes'")
    assert await push(store, ("p", "tx", b"1"), ("p", "tx", b"1")) == [False, True]
    assert await push(store, ("p", "tx", b"1")) == [True]


async def test_brokers_that_pop_for_one_group_hand_out_each_message_once(opened: Open) -> None:
    stores = [await opened(f"n{number}") for number in range(3)]
    await stores[0].create(partitions=2)
    for store in stores:
        await until(lambda: store.backend.topic(TopicName("t")) is not None, "it is known")  # noqa: B023
    values = [b"%d" % number for number in range(300)]
    await push(stores[0], *((f"p{number % 5}", str(number), value) for number, value in enumerate(values)))

    async def drain(store: Opened, batch: int) -> list[bytes]:
        taken: list[bytes] = []
        while some := await pop(store, batch=batch):
            taken += some
        return taken

    parts = await asyncio.gather(*(drain(store, batch) for store in stores for batch in (3, 7)))
    assert sorted(value for part in parts for value in part) == sorted(values)
    assert sum(bool(part) for part in parts) > 1
    for store in stores:
        assert await pop(store) == []


async def test_brokers_that_pop_one_partition_hand_out_each_message_once(opened: Open) -> None:
    one, two = await opened("n1"), await opened("n2")
    await one.create()
    await until(lambda: two.backend.topic(TopicName("t")) is not None, "it is known")
    await push(one, *((f"p{number % 3}", str(number), b"%d" % number) for number in range(60)))
    taken = [each for _ in range(5) for store in (one, two) for each in await pop(store, "p1", batch=2)]
    assert taken == [b"%d" % number for number in range(1, 60, 3)]
    assert await pop(two, "p1") == []
    [position] = (one.backend.cursor(TopicName("t"), cursor_of("g", "p1")) or {}).values()
    assert position == 59
