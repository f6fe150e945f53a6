"""The way to one partition: one batch under way at a time, the next one gathering behind it.

That keeps the order of one client's publishes, and it is what makes many small publishes cheap: the
longer a request takes, the more messages the next one carries. Nothing here needs a queue limit of its
own: whoever publishes waits for the answer, so what is queued is what callers hold in their hands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.client.api import Api
from holdfast.client.encoding import IdMaker
from holdfast.client.errors import MAYBE_STORED, AnswerLost, MaybeStored, another
from holdfast.client.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from holdfast.client.store import Messages, Stored, build, places
from holdfast.model.errors import ConnectionLost, HoldfastError, RemoteError
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.messages import NewMessage, Published

# What a record, its key, id and headers' lengths take beside their bytes, rounded up.
RECORD_OVERHEAD_BYTES = 32
# A refusal of what a message is, as opposed to where it goes: another message of the batch may be fine.
_CONTENT_STATUSES = (400, 413)


class Waiting:
    """One `publish` call that waits for its message to be stored."""

    __slots__ = ("deadline", "future", "may_be_stored", "message", "resend", "size_bytes")

    def __init__(self, message: NewMessage, deadline: float, *, resend: bool) -> None:
        self.message = message
        self.deadline = deadline
        self.resend = resend
        # A try of it may have arrived, whatever becomes of later ones.
        self.may_be_stored = False
        self.size_bytes = message_bytes(message)
        self.future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()


class Gathered:
    """Publishes that go out together."""

    def __init__(self, first: Waiting) -> None:
        self.waiting = [first]
        self.resend = first.resend
        self.size_bytes = first.size_bytes

    def takes(self, waiting: Waiting) -> bool:
        if (
            waiting.resend is not self.resend
            or self.size_bytes + waiting.size_bytes > BATCH_BYTES_MAX
            or len(self.waiting) >= BATCH_MESSAGES_MAX
        ):
            return False
        self.waiting.append(waiting)
        self.size_bytes += waiting.size_bytes
        return True


class Bulk:
    """A batch of one `publish_many`: its future gets the places of all its messages."""

    def __init__(self, messages: Messages, timeout_s: float, *, resend: bool) -> None:
        self.messages = messages
        self.timeout_s = timeout_s
        self.resend = resend
        self.future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()


class Lane:
    """All publishes of one client to one partition, in the order they were made."""

    def __init__(self, api: Api, ids: IdMaker, partition: PartitionId) -> None:
        self._api = api
        self._ids = ids
        self._partition = partition
        self._queue: deque[Gathered | Bulk] = deque()
        self._task: asyncio.Task[None] | None = None
        self._last_loss = ""

    @property
    def gathering(self) -> bool:
        """Whether publishes wait here that another one could join."""
        return bool(self._queue) and isinstance(self._queue[-1], Gathered)

    def add(self, waiting: Waiting) -> None:
        last = self._queue[-1] if self._queue else None
        if not (isinstance(last, Gathered) and last.takes(waiting)):
            self._queue.append(Gathered(waiting))
        self._wake()

    def add_bulk(self, bulk: Bulk) -> None:
        self._queue.append(bulk)
        self._wake()

    async def drain(self) -> None:
        """Wait until all that was added is answered, one way or the other."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"publish to {self._partition}")

    async def _run(self) -> None:
        try:
            while self._queue:
                parcel = self._queue.popleft()
                try:
                    if isinstance(parcel, Bulk):
                        await self._store_bulk(parcel)
                    else:
                        await self._store_gathered(parcel.waiting, resend=parcel.resend)
                except BaseException as error:
                    # A bug, or the loop is ending: it goes on to whoever looks, and nobody is left waiting.
                    _abandon(parcel, error)
                    raise
        except asyncio.CancelledError:
            while self._queue:
                _abandon(self._queue.popleft(), asyncio.CancelledError())
            raise
        finally:
            self._task = None
            if self._queue:
                self._wake()

    async def _store_bulk(self, bulk: Bulk) -> None:
        if bulk.future.done():
            return
        try:
            stored = await self._store(bulk.messages, bulk.timeout_s, resend=bulk.resend)
        except HoldfastError as error:
            if not bulk.future.done():
                bulk.future.set_exception(error)
        else:
            if not bulk.future.done():
                bulk.future.set_result(stored)

    async def _store_gathered(self, waiting: Sequence[Waiting], *, resend: bool) -> None:
        """Try until everybody has an answer. Who ran out of time leaves, the others try on."""
        loop = asyncio.get_running_loop()
        while waiting := [each for each in waiting if not each.future.done()]:
            if waiting[0].deadline <= loop.time():
                _fail(waiting[:1], self._too_late())
                continue
            messages = [each.message for each in waiting]
            budget_s = max(0.0, waiting[0].deadline - loop.time())
            try:
                stored = await self._store(messages, budget_s, resend=resend)
            except RemoteError as error:
                if error.http_status in _CONTENT_STATUSES and len(waiting) > 1:
                    # One bad message refuses the batch whole; halving finds it without failing the others.
                    middle = len(waiting) // 2
                    await self._store_gathered(waiting[:middle], resend=resend)
                    await self._store_gathered(waiting[middle:], resend=resend)
                else:
                    _fail(waiting, error)
            except ConnectionLost as error:
                now = loop.time()
                unknown = isinstance(error, AnswerLost)
                if isinstance(error, MaybeStored):
                    for each in waiting:
                        each.may_be_stored = True
                _fail([each for each in waiting if unknown or each is waiting[0] or each.deadline <= now], error)
                self._last_loss = error.message
            except HoldfastError as error:
                _fail(waiting, error)
            else:
                self._settle(waiting, stored)

    async def _store(self, messages: Messages, budget_s: float, *, resend: bool) -> Stored:
        answer = await self._api.publish_batch(self._partition, build(messages), budget_s, resend=resend)
        return places(messages, answer, self._ids)

    def _too_late(self) -> ConnectionLost:
        before = f"; the last of those ended with: {self._last_loss}" if self._last_loss else ""
        return ConnectionLost(
            f"{self._api.timeout_s:g} s were over behind other publishes to {self._partition}{before}"
        )

    def _settle(self, waiting: Sequence[Waiting], stored: Stored) -> None:
        duplicates = set(stored.duplicates)
        for index, (each, offset) in enumerate(zip(waiting, stored.offsets, strict=True)):
            if not each.future.done():
                each.future.set_result(
                    Published(partition=self._partition.number, offset=Offset(offset), duplicate=index in duplicates)
                )


def message_bytes(message: NewMessage) -> int:
    """About how large a message is in a batch; never less than it is."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(message.value)
    if message.key is not None:
        size_bytes += len(message.key)
    if message.id is not None:
        size_bytes += RECORD_OVERHEAD_BYTES + 4 * len(message.id)
    for name, content in message.headers:
        size_bytes += RECORD_OVERHEAD_BYTES + 4 * len(name) + len(content)
    return size_bytes


def _fail(waiting: Sequence[Waiting], error: HoldfastError) -> None:
    is_verdict = isinstance(error, RemoteError) and error.http_status in _CONTENT_STATUSES
    for each in waiting:
        if each.future.done():
            continue
        if each.may_be_stored and not is_verdict and not isinstance(error, MaybeStored):
            # It speaks of the last try only.
            each.future.set_exception(MaybeStored(f"{error.message}; {MAYBE_STORED}"))
        else:
            each.future.set_exception(another(error))


def _abandon(parcel: Gathered | Bulk, error: BaseException) -> None:
    futures: list[asyncio.Future[Any]] = (
        [parcel.future] if isinstance(parcel, Bulk) else [each.future for each in parcel.waiting]
    )
    for future in futures:
        if future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
