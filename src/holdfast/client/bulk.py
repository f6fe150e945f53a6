"""`publish_many`: cut a list into batches by partition and keep a few of them on their way.

Every step is a plain call (the next batch is queued when the one before is answered), so a list of a
million messages costs a few hundred steps of Python and no await per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from holdfast.client.encoding import IdMaker, Value, new_message, value_bytes
from holdfast.client.errors import PublishManyLost, PublishManyRefused, may_be_stored
from holdfast.client.lane import RECORD_OVERHEAD_BYTES, Bulk, Lane, message_bytes
from holdfast.client.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, BULK_STREAMS, BULK_WINDOW
from holdfast.client.results import PublishResults
from holdfast.client.store import Messages, Stored
from holdfast.model.errors import BadMessage, ConnectionLost, RemoteError
from holdfast.model.messages import NewMessage
from holdfast.model.names import message_id


class Piece(NamedTuple):
    """One batch: `places` are the indexes of its messages in the list that was given."""

    partition: int
    places: Sequence[int]
    messages: Messages


def encoded(items: Sequence[Value | NewMessage], ids: IdMaker, *, retry_safe: bool) -> Messages:
    """The list as plain values where nothing else is needed, else as messages.

    Either all of them have ids or none has: where one has, or all are to be safe to send again, the
    others get ids too.
    """
    if isinstance(items, str | bytes | bytearray | Mapping):
        raise BadMessage(f"publish_many takes a list of messages, not one {type(items).__name__}; use publish for that")
    kinds = set(map(type, items))
    if NewMessage not in kinds and not retry_safe:
        return items if kinds == {bytes} else [value_bytes(item) for item in items]
    messages = [_checked(item) if isinstance(item, NewMessage) else new_message(item) for item in items]
    if not retry_safe and not any(message.id is not None for message in messages):
        return messages
    return [
        message
        if message.id is not None
        else NewMessage(value=message.value, key=message.key, id=ids.next(), headers=message.headers)
        for message in messages
    ]


def _checked(message: NewMessage) -> NewMessage:
    if not isinstance(message.value, bytes) or not isinstance(message.key, bytes | None):
        raise BadMessage("the value and the key of a NewMessage are bytes")
    if message.id is not None:
        message_id(message.id)
    return message


def plain_pieces(values: Messages, turn: Callable[[], int]) -> Iterator[Piece]:
    """Runs of the list as they stand, each to the partition whose turn it is."""
    start = 0
    while start < len(values):
        some = values[start : start + BATCH_MESSAGES_MAX]
        count = _count_that_fits(some)
        yield Piece(turn(), range(start, start + count), some[:count] if count < len(some) else some)
        start += count


def partition_pieces(messages: Messages, places: Sequence[int], partition: int) -> Iterator[Piece]:
    """The messages of one partition, in order."""
    start = 0
    while start < len(places):
        some_places = places[start : start + BATCH_MESSAGES_MAX]
        some = [messages[place] for place in some_places]
        count = _count_that_fits(some)  # type: ignore[arg-type]
        yield Piece(partition, some_places[:count], some[:count])  # type: ignore[arg-type]
        start += count


def _count_that_fits(messages: Messages) -> int:
    """How many messages from the front make a batch that is not too large; at least one."""
    if isinstance(messages[0], bytes):
        sizes = [size + RECORD_OVERHEAD_BYTES for size in map(len, messages)]  # type: ignore[arg-type]
    else:
        sizes = [message_bytes(message) for message in messages]  # type: ignore[arg-type]
    if sum(sizes) <= BATCH_BYTES_MAX:
        return len(sizes)
    return max(1, sum(total <= BATCH_BYTES_MAX for total in accumulate(sizes)))


class BulkJob:
    """One `publish_many` on its way. `done` gets the results once every batch is answered."""

    def __init__(
        self,
        count: int,
        streams: Sequence[Iterator[Piece]],
        lane_of: Callable[[int], Lane],
        timeout_s: float,
        resend: bool,
    ) -> None:
        self.done: asyncio.Future[PublishResults] = asyncio.get_running_loop().create_future()
        self._results = PublishResults(count)
        self._streams = streams
        self._lane_of = lane_of
        self._timeout_s = timeout_s
        self._resend = resend
        self._under_way = 0
        self._failure: BaseException | None = None

    def start(self) -> None:
        for stream in self._streams:
            for _ in range(BULK_WINDOW):
                self._send_next(stream)
        self._finish_if_idle()

    def _send_next(self, stream: Iterator[Piece]) -> None:
        if self._failure is not None or self.done.done():
            return
        try:
            piece = next(stream, None)
            if piece is None:
                return
            bulk = Bulk(piece.messages, self._timeout_s, resend=self._resend)
            self._lane_of(piece.partition).add_bulk(bulk)
        except BaseException as error:
            self._failure = error
            raise
        self._under_way += 1
        bulk.future.add_done_callback(partial(self._answered, stream, piece))

    def _answered(self, stream: Iterator[Piece], piece: Piece, future: asyncio.Future[Stored]) -> None:
        self._under_way -= 1
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        if failure is None:
            stored = future.result()
            self._results.set(piece.places, piece.partition, stored.offsets, stored.duplicates)
        elif self._failure is None or (may_be_stored(failure) and not may_be_stored(self._failure)):
            # Of several, the one that says that nobody knows is true of all.
            self._failure = failure
        try:
            self._send_next(stream)
        finally:
            self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self._under_way or self.done.done():
            return
        failure = self._failure
        if failure is None and not self._results.complete:
            failure = AssertionError("a message of the list was in no batch")
        if failure is None:
            self.done.set_result(self._results)
        elif isinstance(failure, ConnectionLost):
            self.done.set_exception(PublishManyLost(failure, self._results.known()))
        elif isinstance(failure, RemoteError):
            self.done.set_exception(PublishManyRefused(failure, self._results.known()))
        elif isinstance(failure, asyncio.CancelledError):
            self.done.cancel()
        else:
            self.done.set_exception(failure)


def shared(stream: Iterator[Piece], partitions: int) -> list[Iterator[Piece]]:
    """Several takers of one row of pieces, so that several partitions are written to at once."""
    return [stream] * min(BULK_STREAMS, partitions)
