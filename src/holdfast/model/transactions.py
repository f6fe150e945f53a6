"""What a writer of transactions is told: by the broker, through the HTTP interface and in the client."""

from __future__ import annotations

from typing import Annotated, Final

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


# What fits into a writer's note; see `holdfast.transactions.writers`.
CONTENTS_BITS: Final = 46
ContentsNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << CONTENTS_BITS)]


class Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a transaction holds, as its writer counts it, to tell a repeat from another transaction.

    The broker keeps it with the writer's last number and does not interpret it. `checksum` covers the messages and
    `source` the place they were made of, where the writer knows one.
    """

    rows: Annotated[int, msgspec.Meta(ge=0, lt=(1 << CONTENTS_BITS) - 1)]
    checksum: ContentsNumber
    source: Annotated[int, msgspec.Meta(ge=0, lt=(1 << CONTENTS_BITS) - 1)] | None = None


class CommitResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything up to `last_number` is committed and visible.

    `duplicate`: the number had been committed before, so what this commit named is dropped. `contents` is what the
    commit of `last_number` said it holds, if it did.
    """

    writer: WriterName
    number: int
    duplicate: bool
    last_number: int
    contents: Contents | None = None


class WriterDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a writer stands; `last_number` is none, and `committed_ms` too, while it has committed nothing.

    `contents` is what the commit of `last_number` said it holds, if it did.
    """

    writer: WriterName
    last_number: int | None
    committed_ms: TimestampMs | None
    contents: Contents | None = None
