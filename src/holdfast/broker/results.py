"""What publishers are told, put together from appends that finish at different times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.model.errors import HoldfastError, LeaderChanged, NotStored, Refused, StorageFailed
from holdfast.model.ids import NO_OFFSET, Offset
from holdfast.model.messages import BatchPublished, Published

S = TypeVar("S")
T = TypeVar("T")


class Gathered:
    """Results of one request that come from several appends, in the order of its messages.

    It has a result, or an error that is true of all of it, once every message has its own.
    """

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[list[Published]] = asyncio.get_running_loop().create_future()
        self._results: list[Published | None] = [None] * count
        self._missing = count
        self._errors: list[BaseException] = []

    @property
    def has_failed(self) -> bool:
        return bool(self._errors)

    def settle(self, place: int, result: Published) -> None:
        self._results[place] = result
        self._count(1)

    def fail(self, count: int, error: BaseException) -> None:
        """So many messages have failed, for one reason."""
        self._errors.append(error)
        self._count(count)

    def abandon(self, count: int) -> None:
        """So many messages are not tried: others of the request have failed."""
        assert self._errors, "there is a reason"
        self._count(count)

    def _count(self, settled: int) -> None:
        self._missing -= settled
        if self._missing or self.future.done():
            return
        stored = [result for result in self._results if result is not None]
        if self._errors:
            self.future.set_exception(error_of_all(self._errors, some_stored=bool(stored)))
        else:
            self.future.set_result(stored)

    def settle_with(
        self, appended: asyncio.Future[Offset], places: list[tuple[int, int]], partition: int, *, duplicate: bool
    ) -> None:
        """Settle messages, given with their places in the batch, once its append is done."""

        def settle(base: Offset) -> None:
            for place, in_batch in places:
                offset = Offset(base + in_batch)
                self._results[place] = Published(partition=partition, offset=offset, duplicate=duplicate)

        self._settle_once(appended, len(places), settle)

    def settle_run(self, appended: asyncio.Future[Offset], places: Sequence[int], partition: int) -> None:
        """Settle new messages, which stand in the batch one behind the other, once its append is done."""

        def settle(base: Offset) -> None:
            for offset, place in enumerate(places, base):
                self._results[place] = Published(partition=partition, offset=Offset(offset))

        self._settle_once(appended, len(places), settle)

    def _settle_once(self, appended: asyncio.Future[Offset], count: int, set_results: Callable[[Offset], None]) -> None:
        def settle(done: asyncio.Future[Offset]) -> None:
            error = failure(done)
            if error is not None:
                self.fail(count, error)
                return
            set_results(done.result())
            self._count(count)

        if not count:
            return
        if appended.done():
            settle(appended)
        else:
            appended.add_done_callback(settle)


def error_of_all(errors: Sequence[BaseException], *, some_stored: bool) -> BaseException:
    """What is true of a request of which these parts failed, and others were stored or not."""
    for error in errors:
        if not isinstance(error, Refused | NotStored):
            return error  # of unknown outcome, or a bug: true of any request
    if some_stored:
        return LeaderChanged(f"part of this is stored: {told(errors[0])}")
    # Sent again, it would be refused all the same.
    return next((error for error in errors if isinstance(error, Refused)), errors[0])


def told(error: BaseException) -> str:
    return error.message if isinstance(error, HoldfastError) else str(error)


def one_by_one(starts: Iterable[Callable[[], asyncio.Future[T]]]) -> asyncio.Future[list[T]]:
    """Begin steps of one request, one behind the other; done when all of them are.

    The first that is refused at once ends the row. Raises if nothing was begun before it.
    """
    begun: list[asyncio.Future[T]] = []
    refused: list[BaseException] = []
    for start in starts:
        try:
            begun.append(start())
        except HoldfastError as error:
            if not begun:
                raise
            refused.append(error)
            break
    return all_of(begun, refused)


def all_of(begun: Sequence[asyncio.Future[T]], refused: Sequence[BaseException]) -> asyncio.Future[list[T]]:
    """The results of the steps of one request, of which others may have been refused."""
    promise: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()

    def settle(fates: list[T | BaseException]) -> None:
        errors = [each for each in fates if isinstance(each, BaseException)]
        stored = [each for each in fates if not isinstance(each, BaseException)]
        if errors or refused:
            refuse(promise, error_of_all([*errors, *refused], some_stored=bool(stored)))
        elif not promise.done():
            promise.set_result(stored)

    when_all(begun, settle)
    return promise


def when_all(sources: Sequence[asyncio.Future[S]], settle: Callable[[list[S | BaseException]], object]) -> None:
    """Call `settle` once all sources are done, with what each has ended in."""
    missing = len(sources)

    def count(done: asyncio.Future[S]) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            settle([failure(each) or each.result() for each in sources])

    if not sources:
        settle([])
    for source in sources:
        source.add_done_callback(count)


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


def stored_behind(published: BatchPublished, end: Offset) -> BatchPublished:
    """The same for a batch that was sent twice by this node, which knew the partition up to `end` when it began.

    The leader recognised messages that the first sending had stored. They stand behind `end` and are no duplicates.
    """
    if not published.duplicates:
        return published
    regular_offsets = [Offset(published.base_offset + place) for place in range(published.count)]
    offsets = published.offsets or regular_offsets
    fresh = len({offset for offset in offsets if offset >= end})
    duplicates = min(published.duplicates, published.count - fresh)
    return msgspec.structs.replace(
        published, duplicates=duplicates, offsets=offsets if duplicates or offsets != regular_offsets else None
    )


def failure(done: asyncio.Future[T]) -> BaseException | None:
    """Why a finished future has no result, if it has none."""
    if done.cancelled():
        return StorageFailed("it was given up on before it was known to be stored; send it again with its id")
    return done.exception()


def refuse(future: asyncio.Future[T], error: BaseException) -> None:
    """Fail a future that is still open. The waiter may be cancelled; an unretrieved reason is ignored then."""
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
