"""What a writer of transactions is told: by the broker, through the HTTP interface and in the client."""

from __future__ import annotations

import msgspec

from holdfast.model.ids import TimestampMs, TopicName, WriterName


class StageReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for messages that are durable and hidden; a commit that names `receipt` shows them.

    After `expires_ms` it can no longer be committed.
    """

    receipt: str
    topic: TopicName
    partition: int
    count: int
    bytes: int
    expires_ms: TimestampMs


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything up to `last_number` is committed and visible.

    `duplicate`: the number had been committed before, so what this commit named is dropped.
    """

    writer: WriterName
    number: int
    duplicate: bool
    last_number: int


class WriterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Where a writer stands; `last_number` is none, and `committed_ms` too, while it has committed nothing."""

    writer: WriterName
    last_number: int | None
    committed_ms: TimestampMs | None
