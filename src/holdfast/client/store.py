"""From messages to a batch, and from the broker's answer back to a place for each message.

In a batch either every message has an id or none has, so duplicates come only in batches of the first
kind: by a resend after a lost connection, or with a user's id that was there before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.client.encoding import IdMaker
from holdfast.model.errors import RemoteError
from holdfast.model.ids import NO_OFFSET
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.wire.batch_builder import build_batch, build_values

Messages = Sequence[NewMessage] | Sequence[bytes]


class Stored(NamedTuple):
    """An offset for each message, `NO_OFFSET` for one that waits for its place.

    `duplicates` are the indexes of those that were there before.
    """

    offsets: Sequence[int]
    duplicates: Sequence[int] = ()


def build(messages: Messages) -> bytearray:
    """A record batch of messages, or of plain values."""
    timestamp_ms = time.time_ns() // 1_000_000
    if isinstance(messages[0], bytes):
        return build_values(messages, timestamp_ms)  # type: ignore[arg-type]
    return build_batch(messages, timestamp_ms)  # type: ignore[arg-type]


def places(messages: Messages, answer: BatchPublished, ids: IdMaker) -> Stored:
    """Where the messages of a batch stand, given what the broker answered."""
    if answer.count != len(messages):
        raise RemoteError("bad_answer", f"the broker stored {answer.count} of {len(messages)} messages")
    if answer.buffered:
        return Stored([NO_OFFSET] * answer.count)
    if not answer.duplicates:
        return Stored(range(answer.base_offset, answer.base_offset + answer.count))
    if answer.offsets is None or len(answer.offsets) != len(messages):
        raise RemoteError("bad_answer", "the broker does not say where the duplicates of this batch stand")
    return _told_apart(messages, answer.offsets, answer.duplicates, ids)


def _told_apart(messages: Messages, offsets: Sequence[int], duplicate_count: int, ids: IdMaker) -> Stored:
    """Which messages of a batch are the duplicates.

    What is new was appended in one go, so it has the highest offsets, one behind the other; an offset
    below, or one that comes twice, is a duplicate's. A duplicate of an id that the client made is its
    own resend after a lost connection: for the caller the message is stored once and new.
    """
    next_new = max(offsets) + 1 - (len(messages) - duplicate_count)
    duplicates = []
    for index, (message, offset) in enumerate(zip(messages, offsets, strict=True)):
        if offset == next_new:
            next_new += 1
        elif not (isinstance(message, NewMessage) and ids.made(message.id)):
            duplicates.append(index)
    return Stored(offsets, duplicates)
