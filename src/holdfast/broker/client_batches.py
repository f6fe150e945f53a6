"""Batches that clients built: checked before anything is done with them, and taken apart where messages have ids."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.broker import admit
from holdfast.model.errors import BadBatch, BadMessageId
from holdfast.model.ids import TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.model.pauses import Paused, without_pauses
from holdfast.wire import record_batch, stamps

# A producer whose clock is further ahead would make retention and search by time useless.
_CLOCK_AHEAD_MS_MAX: Final = 24 * 60 * 60 * 1000
# The first of January of the year 1: most calendars have nothing before it, and as microseconds it fits 64 bits.
_TIMESTAMP_MS_MIN: Final = -62_135_596_800_000


class Timed(NamedTuple):
    """Messages, each with the time that its sender gave it."""

    messages: list[NewMessage]
    times_ms: list[TimestampMs]


class Prepared(NamedTuple):
    """A checked batch: how many messages it has, its bytes, and its messages if some have ids."""

    messages_count: int
    batch: bytearray
    with_ids: Timed | None


def prepared(batch: record_batch.Buffer, message_bytes_max: int, now_ms: TimestampMs) -> Prepared:
    return without_pauses(preparing(batch, message_bytes_max, now_ms))


def preparing(batch: record_batch.Buffer, message_bytes_max: int, now_ms: TimestampMs) -> Paused[Prepared]:
    """The same, with a pause after as many messages as others may wait for."""
    count, with_ids = yield from _checking(batch, message_bytes_max, now_ms)
    # What was read where a transaction stored it is a message like any other here.
    plain = stamps.cleared(batch) if stamps.is_stamped(batch) else bytearray(batch)
    return Prepared(count, plain, with_ids)


def checked(batch: record_batch.Buffer, message_bytes_max: int, now_ms: TimestampMs) -> tuple[int, Timed | None]:
    """How many messages it has, and them if some have ids. Raises `BadBatch`, `TooLarge`, `BadMessageId`."""
    return without_pauses(_checking(batch, message_bytes_max, now_ms))


def _checking(
    batch: record_batch.Buffer, message_bytes_max: int, now_ms: TimestampMs
) -> Paused[tuple[int, Timed | None]]:
    head, largest, earliest_ms, latest_ms = yield from record_batch.checking_largest(batch)
    admit.check_largest(largest, message_bytes_max)
    if earliest_ms < _TIMESTAMP_MS_MIN:
        raise BadBatch("the batch has a timestamp before the year 1; send milliseconds since 1970")
    if latest_ms > now_ms + _CLOCK_AHEAD_MS_MAX:
        raise BadBatch("the batch's newest timestamp is more than a day ahead; check the sender's clock")
    if not record_batch.has_ids(batch):
        return head.record_count, None
    messages: list[NewMessage] = []
    times_ms: list[TimestampMs] = []
    yield
    for records in record_batch.records_in_parts(batch):
        yield
        messages += map(_message_of, records)
        times_ms += [TimestampMs(head.base_timestamp_ms + record.timestamp_delta) for record in records]
    yield
    admit.check_messages(messages, message_bytes_max)
    return head.record_count, Timed(messages, times_ms)


def _message_of(record: record_batch.Record) -> NewMessage:
    return NewMessage(
        value=record.value,
        key=record.key,
        id=_given_id(record),
        headers=[pair for pair in record.headers if pair[0] != record_batch.ID_HEADER],
    )


def _given_id(record: record_batch.Record) -> str | None:
    """The id in a record from outside. Two that are not UTF-8 would look alike, and one message be lost."""
    for name, value in record.headers:
        if name == record_batch.ID_HEADER:
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise BadMessageId(f"a message id is UTF-8 text, not {value[:60]!a}") from None
    return None
