"""A request of which only a part was stored: its publisher is never told that nothing was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest
from testkit.batches import values_batch

from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.broker.passing import PassingBackend
from holdfast.broker.results import regular, then
from holdfast.model.errors import DiskFull, HoldfastError, NotStored, OutcomeUnknown, TooLarge, Unavailable
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.wire import batch_builder
from tests.broker.conftest import Desk


class Refusing(PassingBackend):
    """Refuses some writes, given by their numbers: at once, or when they are awaited."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.errors: dict[int, HoldfastError] = {}
        self.later = False
        self.leads_here = True
        self._writes = 0

    def refuse(self, errors: dict[int, HoldfastError], *, later: bool = False) -> None:
        self.errors, self.later, self._writes = errors, later, 0

    def _refusal(self) -> asyncio.Future[object] | None:
        error = self.errors.get(self._writes)
        self._writes += 1
        if error is None:
            return None
        if not self.later:
            raise error
        refused: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(refused.set_exception, error)
        return refused

    def leads(self, partition: PartitionId) -> bool:
        return self.leads_here and self.inner.leads(partition)

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        return self._refusal() or self.inner.append(partition, batch)  # type: ignore[return-value]

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        return self._refusal() or self.inner.append_all(partition, batches)  # type: ignore[return-value]

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        stored: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        then(self.append(partition, batch), stored, lambda offset: regular(partition.number, offset, 1))
        return stored


class Refused:
    """A broker whose store refuses some writes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.store = Refusing(desk.backend)
        self.broker = Broker(self.store, now_ms=desk.clock)

    async def stored(self, partitions: int = 1) -> list[bytes]:
        return [value for number in range(partitions) for value in await self._desk.values(partition=number)]


@pytest.fixture
async def refused(desk: Desk) -> Refused:
    made = Refused(desk)
    await desk.backend.create_topic(TopicName("t"), TopicConfig(partitions=2))
    # The ids of both partitions are known from here on, so nothing waits behind a gate.
    for key in KEYS:
        await made.broker.publish("t", [NewMessage(value=b"before", id=f"before {key!r}", key=key)])
    return made


# One for each partition.
KEYS = (b"d", b"a")


def with_id(number: int) -> bytes:
    return bytes(batch_builder.build_batch([NewMessage(value=b"%d" % number, id=str(number))], 1_000))


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """The process may open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_batches_are_stored_once_where_no_file_can_be_opened_for_the_rest(desk: Desk) -> None:
    """A publisher who is told that nothing was stored sends all of it again, and its first batches are there twice."""
    await desk.broker.ensure_topic("t")
    batches = [values_batch(b"%d" % i + b"x" * 1500) for i in range(4)]
    with no_more_files(), pytest.raises(OutcomeUnknown, match="part of this may be stored"):
        desk.broker.publish_batches("t", 0, batches)
    await desk.broker.publish_values("t", [b"the end"]).offset
    stored = await desk.values()
    assert [value[:1] for value in stored] == [b"0", b"1", b"t"]


async def test_batches_of_which_none_could_be_stored_may_be_sent_again(desk: Desk) -> None:
    await desk.broker.ensure_topic("t")
    await desk.broker.publish_values("t", [b"x" * 4000]).offset
    batches = [values_batch(b"%d" % i + b"x" * 1500) for i in range(2)]
    with no_more_files(), pytest.raises(Unavailable, match="Too many open files"):
        desk.broker.publish_batches("t", 0, batches)
    await desk.broker.publish_batches("t", 0, batches)
    assert [value[:1] for value in await desk.values()] == [b"x", b"0", b"1"]


@pytest.mark.parametrize("leads_here", [True, False])
@pytest.mark.parametrize("later", [True, False])
async def test_batches_of_which_one_is_refused_are_not_called_unstored(
    refused: Refused, later: bool, leads_here: bool
) -> None:
    refused.store.leads_here = leads_here
    refused.store.refuse({1: DiskFull("no room")}, later=later)
    with pytest.raises(OutcomeUnknown, match="part of this is stored: no room"):
        await refused.broker.publish_batches("t", 0, [with_id(0), with_id(1)])
    assert b"0" in await refused.stored() and b"1" not in await refused.stored()


@pytest.mark.parametrize("later", [True, False])
async def test_batches_that_are_all_refused_may_be_sent_again(refused: Refused, later: bool) -> None:
    refused.store.refuse({0: DiskFull("no room"), 1: Unavailable("not now")}, later=later)
    with pytest.raises(DiskFull):
        await refused.broker.publish_batches("t", 0, [with_id(0), with_id(1)])
    assert await refused.stored(2) == [b"before", b"before"]


def for_both_partitions(values: Sequence[bytes]) -> list[NewMessage]:
    return [NewMessage(value=value, key=key) for value, key in zip(values, KEYS, strict=True)]


async def test_messages_for_two_partitions_may_be_sent_again_where_the_first_is_refused_at_once(
    refused: Refused,
) -> None:
    refused.store.refuse({0: DiskFull("no room")})
    with pytest.raises(NotStored):
        await refused.broker.publish("t", for_both_partitions([b"one", b"two"]))
    assert await refused.stored(2) == [b"before", b"before"]


@pytest.mark.parametrize(("number", "later"), [(0, True), (1, True), (1, False)])
@pytest.mark.parametrize("error", [DiskFull("no room"), TooLarge("too large")])
async def test_messages_for_two_partitions_are_not_called_unstored_where_one_is_refused(
    refused: Refused, number: int, later: bool, error: HoldfastError
) -> None:
    refused.store.refuse({number: error}, later=later)
    with pytest.raises(OutcomeUnknown, match="part of this is stored"):
        await refused.broker.publish("t", for_both_partitions([b"one", b"two"]))
    assert len(await refused.stored(2)) == 3


async def test_message_is_not_called_unstored_because_another_request_for_the_one_beside_it_failed(
    refused: Refused,
) -> None:
    refused.store.refuse({0: DiskFull("no room")}, later=True)
    first = refused.broker.publish("t", [NewMessage(value=b"one", id="1")], 0)
    second = refused.broker.publish("t", [NewMessage(value=b"one", id="1"), NewMessage(value=b"two")], 0)
    with pytest.raises(DiskFull):
        await first
    with pytest.raises(OutcomeUnknown, match="part of this is stored: no room"):
        await second
    assert await refused.stored() == [b"before", b"two"]


@pytest.mark.parametrize("leads_here", [True, False])
@pytest.mark.parametrize("later", [True, False])
async def test_what_was_refused_does_not_hide_in_the_count_of_published_messages(
    refused: Refused, later: bool, leads_here: bool
) -> None:
    broker, store = refused.broker, refused.store
    store.leads_here = leads_here
    before = broker.stats.published_messages
    publishes: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.publish_values("t", [b"x"]).offset,
        lambda: broker.publish("t", [NewMessage(value=b"x", key=b"k")]),
        lambda: broker.publish("t", [NewMessage(value=b"x", id="x")]),
        lambda: broker.publish_batches("t", 0, [values_batch(b"x")]),
    ]
    for publish in publishes:
        store.refuse({0: DiskFull("no room")}, later=later)
        with pytest.raises(DiskFull):
            await publish()
    assert broker.stats.published_messages == before
    for publish in publishes:
        await publish()
    assert broker.stats.published_messages == before + len(publishes)
