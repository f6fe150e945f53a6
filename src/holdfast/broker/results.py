"""What publishers are told, put together from appends that finish at different times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from holdfast.model.errors import LeaderChanged, StorageFailed, Unavailable
from holdfast.model.ids import NO_OFFSET, Offset
from holdfast.model.messages import BatchPublished, Published

S = TypeVar("S")
T = TypeVar("T")


class Gathered:
    """Results of one request that come from several appends, in the order of its messages."""

    def __init__(self, count: int) -> None:
        # In how many partitions it is stored: where one of them fails, the others may have their part.
        self.parts = 1
        self.future: asyncio.Future[list[Published]] = asyncio.get_running_loop().create_future()
        self._results: list[Published | None] = [None] * count
        self._missing = count

    def settle(self, place: int, result: Published) -> None:
        self._results[place] = result
        self._missing -= 1
        if not self._missing and not self.future.done():
            self.future.set_result([result for result in self._results if result is not None])

    def fail(self, error: BaseException) -> None:
        if self.parts > 1 and isinstance(error, Unavailable):
            error = LeaderChanged(f"part of this may be stored: {error.message}")
        if not self.future.done():
            self.future.set_exception(error)

    def settle_with(
        self, appended: asyncio.Future[Offset], places: list[tuple[int, int]], partition: int, *, duplicate: bool
    ) -> None:
        """Settle messages, given with their places in the batch, once its append is done."""

        def settle(done: asyncio.Future[Offset]) -> None:
            error = failure(done)
            if error is not None:
                self.fail(error)
                return
            base = done.result()
            for place, in_batch in places:
                offset = Offset(base + in_batch)
                self.settle(place, Published(partition=partition, offset=offset, duplicate=duplicate))

        if not places:
            return
        if appended.done():
            settle(appended)
        else:
            appended.add_done_callback(settle)


def then_all(
    sources: Sequence[asyncio.Future[S]],
    promise: asyncio.Future[T],
    convert: Callable[[list[S | BaseException]], T],
) -> None:
    """Settle `promise` once all sources are done, with what each has ended in."""
    missing = len(sources)

    def settle(done: asyncio.Future[S]) -> None:
        nonlocal missing
        missing -= 1
        if not missing and not promise.done():
            promise.set_result(convert([failure(each) or each.result() for each in sources]))

    for source in sources:
        source.add_done_callback(settle)


def regular(partition: int, base_offset: Offset, count: int) -> BatchPublished:
    """A batch that was stored as it came."""
    return BatchPublished(partition=partition, base_offset=base_offset, count=count, duplicates=0)


def run(partition: int, base_offset: Offset, counts: Iterable[int]) -> list[BatchPublished]:
    """Batches that were stored as they came, one behind the other."""
    published = []
    for count in counts:
        published.append(BatchPublished(partition=partition, base_offset=base_offset, count=count, duplicates=0))
        base_offset = Offset(base_offset + count)
    return published


def summary(partition: int, results: list[Published]) -> BatchPublished:
    """A batch of which some messages may have been there before."""
    duplicates = sum(result.duplicate for result in results)
    return BatchPublished(
        partition=partition,
        base_offset=results[0].offset,
        count=len(results),
        duplicates=duplicates,
        offsets=[result.offset for result in results] if duplicates else None,
    )


def spread(published: BatchPublished) -> list[Published]:
    """What became of each message of a batch that another node stored.

    New messages got offsets behind all that were there, so of the offsets the highest ones are theirs.
    """
    partition = published.partition
    if published.buffered:
        return [Published(partition=partition, offset=NO_OFFSET)] * published.count
    if published.offsets is None:
        first = published.base_offset
        return [Published(partition=partition, offset=Offset(first + place)) for place in range(published.count)]
    fresh = set(sorted(set(published.offsets), reverse=True)[: published.count - published.duplicates])
    results = []
    for offset in published.offsets:
        results.append(Published(partition=partition, offset=offset, duplicate=offset not in fresh))
        fresh.discard(offset)
    return results


def failure(done: asyncio.Future[T]) -> BaseException | None:
    """Why a finished future has no result, if it has none."""
    if done.cancelled():
        return StorageFailed("it was given up on before it was known to be stored; send it again with its id")
    return done.exception()


def refuse(future: asyncio.Future[T], error: BaseException) -> None:
    """Fail a future that is still open. Whoever waits may be gone; then nobody asks for the reason: fine."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def then(source: asyncio.Future[S], promise: asyncio.Future[T], convert: Callable[[S], T]) -> None:
    """Settle `promise` with the converted result of `source`, or with its failure."""

    def settle(done: asyncio.Future[S]) -> None:
        if promise.done():
            return
        error = failure(done)
        if error is not None:
            promise.set_exception(error)
        else:
            promise.set_result(convert(done.result()))

    if source.done():
        settle(source)
    else:
        source.add_done_callback(settle)
