"""Recognising a message that was sent twice.

Each partition remembers the ids of its newest messages, bounded by count and by age, whichever comes
first. The window is a consequence of the log: ids travel inside the stored batches, so it is rebuilt by
reading the newest of them, after a restart as after a change of leader. Of messages that retention has deleted,
their ids are kept beside the log.

Times are milliseconds of a clock that only goes forwards: were it the time of day, a clock that is put
right by an hour would make a node forget everything.

A message's partition follows from its key, or from its id where it has no key, so a resend of the same
message meets the same window.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat

from holdfast.model.ids import Offset


class DedupeWindow:
    """The ids one partition remembers, those whose messages are still being stored among them."""

    def __init__(self, *, ids_max: int, age_ms_max: int) -> None:
        self._ids_max = ids_max
        self._age_ms_max = age_ms_max
        self._stored: dict[str, Offset] = {}
        self._order: deque[tuple[int, str, Offset]] = deque()
        self._pending: dict[str, tuple[Future[Offset], int]] = {}
        # Behind the newest message it has taken note of.
        self.next_offset = Offset(0)

    def __len__(self) -> int:
        return len(self._stored)

    def stored_offset(self, message_id: str, steady_ms: int) -> Offset | None:
        """Where a message with this id stands, if it is within the window."""
        self._forget_older_than(steady_ms - self._age_ms_max)
        return self._stored.get(message_id)

    def pending(self, message_id: str) -> tuple[Future[Offset], int] | None:
        """The append that is storing a message with this id, and its place in the batch."""
        return self._pending.get(message_id)

    def reserve(self, message_ids: Mapping[str, int], appended: Future[Offset]) -> None:
        """Take note of ids that an append will store, once it is begun; or else, `release` them."""
        for message_id, place in message_ids.items():
            self._pending[message_id] = (appended, place)

    def release(self, message_ids: Iterable[str]) -> None:
        """Their append is not under way any more."""
        for message_id in message_ids:
            self._pending.pop(message_id, None)

    def storing(self, message_ids: Mapping[str, int], appended: Future[Offset], steady_ms: int) -> None:
        """Take note of ids (with their places in the batch) until their append is done or has failed."""
        self.reserve(message_ids, appended)
        if appended.done():
            self._settle(message_ids, appended, steady_ms)
        else:
            appended.add_done_callback(lambda done: self._settle(message_ids, done, steady_ms))

    def remember(self, message_id: str, offset: Offset, steady_ms: int) -> None:
        """Take note of an id that is stored; called in the order of the log."""
        self._remember((message_id,), (offset,), steady_ms)

    def _remember(self, message_ids: Collection[str], offsets: Sequence[Offset], steady_ms: int) -> None:
        # No step in Python for each: a large request has very many.
        self._stored.update(zip(message_ids, offsets, strict=True))
        self.next_offset = max(self.next_offset, Offset(offsets[-1] + 1))
        self._order.extend(zip(repeat(steady_ms), message_ids, offsets, strict=False))
        while len(self._order) > self._ids_max:
            self._forget_oldest()

    def _settle(self, message_ids: Mapping[str, int], appended: Future[Offset], steady_ms: int) -> None:
        self.release(message_ids)
        if appended.cancelled() or appended.exception() is not None:
            return
        base = appended.result()
        self._remember(message_ids.keys(), [Offset(base + place) for place in message_ids.values()], steady_ms)

    def _forget_older_than(self, steady_ms: int) -> None:
        while self._order and self._order[0][0] < steady_ms:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, message_id, offset = self._order.popleft()
        if self._stored.get(message_id) == offset:
            del self._stored[message_id]
