"""A request of very many messages: others go on while it is worked on, and it is stored as one batch all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from testkit.batches import values_batch

from holdfast.broker.broker import Broker
from holdfast.broker.dedupe import DedupeWindow
from holdfast.broker.recognising import Recognised
from holdfast.model.errors import BadMessageId, NotLeader, OutcomeUnknown, TopicNotFound
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.limits import MESSAGES_AT_ONCE_MAX
from holdfast.model.messages import NewMessage, Published
from holdfast.model.push_ids import push_ids
from holdfast.model.topics import TopicConfig
from holdfast.wire import batch_builder, record_batch
from holdfast.wire.push_batch import Pushed
from tests.broker.conftest import Desk

COUNT = 4 * MESSAGES_AT_ONCE_MAX + 1
PARTITION = PartitionId(TopicName("t"), 0)


def messages(count: int = COUNT, prefix: str = "") -> list[NewMessage]:
    return [NewMessage(value=b"%d" % number, id=f"{prefix}{number}") for number in range(count)]


def publish(broker: Broker) -> asyncio.Future[Any]:
    return broker.publish_large("t", messages())


def publish_keys(broker: Broker) -> asyncio.Future[Any]:
    return broker.publish_large("t", [NewMessage(value=b"x", key=b"%d" % number) for number in range(COUNT)])


def publish_batch(broker: Broker) -> asyncio.Future[Any]:
    return broker.publish_large_batches("t", 0, [batch_builder.build_batch(messages(), 1_000)])


def publish_batches(broker: Broker) -> asyncio.Future[Any]:
    batches = [batch_builder.build_batch(messages(COUNT // 3, prefix), 1_000) for prefix in ("a", "b", "c")]
    return broker.publish_large_batches("t", 0, batches)


def publish_batch_of_keys(broker: Broker) -> asyncio.Future[Any]:
    keyed = [NewMessage(value=b"x", key=b"%d" % number) for number in range(COUNT)]
    return broker.publish_large_batches("t", 0, [batch_builder.build_batch(keyed, 1_000)])


def publish_forwarded_keys(broker: Broker) -> asyncio.Future[Any]:
    keyed = [NewMessage(value=b"x", key=b"%d" % number) for number in range(COUNT)]
    return broker.publisher.publish_forwarded(PARTITION, batch_builder.build_batch(keyed, 1_000))


def publish_forwarded(broker: Broker) -> asyncio.Future[Any]:
    return broker.publisher.publish_forwarded(PARTITION, batch_builder.build_batch(messages(), 1_000))


def push(broker: Broker) -> asyncio.Future[Any]:
    names, texts = ["Default"] * COUNT, [str(number) for number in range(COUNT)]
    pushed = Pushed(names, [b"1"] * COUNT, push_ids(names, texts), texts, [None] * COUNT)
    return broker.publish_large_push("t", pushed)


class Work:
    """Steps that are done for one message each, by their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        for owner, name in ((DedupeWindow, "stored_offset"), (batch_builder, "_record"), (record_batch, "_record")):
            monkeypatch.setattr(owner, name, self._counted(f"{owner.__name__}.{name}", getattr(owner, name)))

    def _counted(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.done[name] += 1
            return step(*args)

        return counted


@pytest.mark.parametrize(
    "way",
    [
        publish,
        publish_keys,
        publish_batch,
        publish_batches,
        publish_batch_of_keys,
        publish_forwarded,
        publish_forwarded_keys,
        push,
    ],
)
async def test_others_get_their_turn_after_a_part_of_a_large_request(
    desk: Desk, way: Callable[[Broker], asyncio.Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.send(("known", b"before"))
    work = Work(monkeypatch)
    most: Counter[str] = Counter()

    def note() -> None:
        nonlocal most
        most |= work.done
        work.done.clear()

    async def take() -> None:
        note()
        await asyncio.sleep(0)

    monkeypatch.setattr(desk.broker.turns, "take_for_request", take)
    future = way(desk.broker)
    if way is not publish:
        work.done.clear()  # making the request was work, too
    await future
    note()
    assert most
    assert max(most.values()) <= MESSAGES_AT_ONCE_MAX, "others waited for all of it"


async def test_large_request_is_one_batch_whatever_is_published_meanwhile(desk: Desk) -> None:
    await desk.send(("known", b"before"))
    large = desk.broker.publish_large("t", messages())
    others: list[asyncio.Future[list[Published]]] = []
    while not large.done():
        others.append(desk.send((f"other {len(others)}", b"other")))
        await asyncio.sleep(0)
    results = await large
    first = results[0].offset
    assert [result.offset for result in results] == list(range(first, first + COUNT))
    assert not any(result.duplicate for result in results)
    await asyncio.gather(*others)
    values = await desk.values()
    assert values[first : first + COUNT] == [message.value for message in messages()]
    assert len(values) == 1 + COUNT + len(others)


async def test_id_that_comes_again_while_a_large_request_is_worked_on_is_stored_once(desk: Desk) -> None:
    await desk.send(("known", b"before"))
    both = [desk.broker.publish_large("t", messages()) for _ in range(2)]
    again = []
    while not both[0].done():
        again.append(desk.send(("0", b"0"), (str(COUNT - 1), b"last")))
        await asyncio.sleep(0)
    offsets = [[result.offset for result in await each] for each in both]
    assert offsets[0] == offsets[1]
    for each in again:
        assert [result.offset for result in await each] == [offsets[0][0], offsets[0][-1]]
    assert len(await desk.values()) == 1 + COUNT


async def test_large_request_for_several_partitions_says_where_each_message_stands(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=3))
    await desk.send(("17", b"17"))
    results = await desk.broker.publish_large("t", [*messages(), *messages(10)])
    assert [place for place, result in enumerate(results) if result.duplicate] == [17, *range(COUNT, COUNT + 10)]
    stored = {number: await desk.values(partition=number) for number in range(3)}
    assert [stored[result.partition][result.offset] for result in results[:COUNT]] == [
        message.value for message in messages()
    ]
    assert sum(map(len, stored.values())) == COUNT


async def test_nothing_that_was_sent_on_overtakes_a_large_batch(desk: Desk) -> None:
    """Another node sent it, for a connection that had published it behind the large one."""
    await desk.send(("known", b"before"))
    sent = [desk.broker.publisher.publish_forwarded(PARTITION, batch_builder.build_batch(messages(), 1_000))]
    for number in range(3):
        sent.append(desk.broker.publisher.publish_forwarded(PARTITION, values_batch(b"behind %d" % number)))
        await asyncio.sleep(0)
    await asyncio.gather(*sent)
    sent = [desk.broker.publisher.publish_forwarded(PARTITION, values_batch(b"the end"))]
    await asyncio.gather(*sent)
    values = await desk.values()
    assert values[:1] + values[-4:] == [b"before", b"behind 0", b"behind 1", b"behind 2", b"the end"]
    assert values[1:-4] == [message.value for message in messages()]


async def test_large_request_that_nobody_waits_for_any_more_is_stored_whole(desk: Desk) -> None:
    async def request() -> None:
        await asyncio.shield(desk.broker.publish_large("t", messages()))

    asking = asyncio.ensure_future(request())
    for _ in range(3):
        await asyncio.sleep(0)
    asking.cancel()
    # The last id is known to be new, or that its message is there.
    while not (await desk.send((str(COUNT - 1), b"%d" % (COUNT - 1))))[0].duplicate:
        pass
    await desk.broker.publish_large("t", messages())
    assert sorted(await desk.values()) == sorted(message.value for message in messages())


async def test_large_request_of_which_a_message_is_wrong_is_refused_whole(desk: Desk) -> None:
    await desk.send(("known", b"before"))
    wrong = [*messages(), NewMessage(value=b"x", id="\n")]
    with pytest.raises(BadMessageId):
        await desk.broker.publish_large("t", wrong)
    with pytest.raises(BadMessageId):
        await desk.broker.publish_large_batches("t", 0, [batch_builder.build_batch(wrong, 1_000)])
    assert await desk.values() == [b"before"]


async def test_large_request_is_not_stored_by_a_node_that_lost_the_partition_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader may have stored the same ids. Here they are free again, for the request that comes once more."""
    await desk.send(("known", b"before"))
    reign = desk.backend.reign(PARTITION)
    assert reign is not None
    with monkeypatch.context() as patched:
        taken = asyncio.Event()

        async def take() -> None:
            await asyncio.sleep(0)

        def reserve(recognised: Recognised) -> None:
            real(recognised)
            taken.set()

        real = Recognised.reserve
        patched.setattr(Recognised, "reserve", reserve)
        patched.setattr(desk.broker.turns, "take_for_request", take)
        large = desk.broker.publish_large("t", messages())
        await taken.wait()
        again = desk.send(("0", b"0"))
        patched.setattr(desk.backend, "reign", lambda partition: reign + 1)
        with pytest.raises(NotLeader):
            await large
        with pytest.raises(NotLeader):
            await again
    assert await desk.values() == [b"before"]
    assert not any(result.duplicate for result in await desk.broker.publish_large("t", messages()))


async def test_node_that_stops_asking_for_its_large_batch_does_not_block_the_partition(desk: Desk) -> None:
    await desk.send(("known", b"before"))

    async def handler() -> None:
        await desk.broker.publisher.publish_forwarded(PARTITION, batch_builder.build_batch(messages(), 1_000))

    asking = asyncio.ensure_future(handler())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(60):
        await desk.broker.publisher.publish_forwarded(PARTITION, values_batch(b"behind"))
    assert (await desk.values())[-1] == b"behind"


async def test_large_request_goes_into_no_topic_that_was_made_anew_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.send(("0", b"0"))
    is_paused, may_go_on = asyncio.Event(), asyncio.Event()
    reserve = Recognised.reserve

    def noticed(recognised: Recognised) -> None:
        reserve(recognised)
        is_paused.set()

    async def take() -> None:
        if is_paused.is_set():
            await may_go_on.wait()
        await asyncio.sleep(0)

    monkeypatch.setattr(Recognised, "reserve", noticed)
    monkeypatch.setattr(desk.broker.turns, "take_for_request", take)
    large = desk.broker.publish_large("t", messages(), 0)
    await is_paused.wait()
    await desk.broker.delete_topic("t")
    await desk.broker.create_topic("t", TopicConfig())
    await desk.send(("other", b"other"))
    may_go_on.set()
    with pytest.raises((TopicNotFound, OutcomeUnknown)):
        await large
    assert await desk.values() == [b"other"]
    results = await desk.broker.publish("t", messages(10), 0)
    assert not any(result.duplicate for result in results)
