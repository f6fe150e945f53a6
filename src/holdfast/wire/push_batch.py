"""Pushed messages, and the batch that is made of them.

A push is columns: so many names, so many values. The batch is a record batch like any other, and carries the columns it
was made of: a store of rows takes those and need not take the records apart again. Whoever keeps the bytes alone loses
nothing but that.

A pushed message has its partition's name as key, the header `transaction-id`, and the headers `trace-id`, `namespace`
and `task` where it has them. A push with a namespace or a task, which are rare, is a batch without columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder, varint
from holdfast.wire.record_batch import ID_HEADER

TRANSACTION_HEADER: Final = "transaction-id"
TRACE_HEADER: Final = "trace-id"
NAMESPACE_HEADER: Final = "namespace"
TASK_HEADER: Final = "task"
DEFAULT_PARTITION: Final = "Default"

# A record's attributes and its time: that of the batch.
_FIRST_FIELDS: Final = b"\0\0"


# The namespace and the task of a message, each empty where there is none.
Labels = tuple[str, str]


class Pushed(NamedTuple):
    """Messages side by side. A trace id is none where there is none, and never empty.

    `is_fresh`: their ids were drawn here and now, so nobody can have sent them before. `has_json`: each value was read
    by a JSON decoder, as text without blanks around it. `times_ms`: where they do not all have the time of the batch.
    `labels`: where any message has a namespace or a task.
    """

    names: Sequence[str]
    values: Sequence[bytes]
    ids: Sequence[str]
    transaction_ids: Sequence[str]
    trace_ids: Sequence[str | None]
    is_fresh: bool = False
    has_json: bool = False
    times_ms: Sequence[int] | None = None
    labels: Sequence[Labels] | None = None

    def only(self, places: Sequence[int]) -> Pushed:
        """Some of them."""
        if len(places) == len(self.names):
            return self
        pick: Any = itemgetter(*places) if len(places) > 1 else lambda column: (column[places[0]],)
        names, values, ids, transaction_ids, trace_ids = map(pick, self[:5])
        times_ms = None if self.times_ms is None else pick(self.times_ms)
        labels = None if self.labels is None else pick(self.labels)
        return Pushed(names, values, ids, transaction_ids, trace_ids, self.is_fresh, self.has_json, times_ms, labels)

    def messages(self) -> list[NewMessage]:
        """The same one by one."""
        labels = [("", "")] * len(self.names) if self.labels is None else self.labels
        return [
            NewMessage(value=value, key=name.encode(), id=message_id, headers=headers_of(transaction, trace, *label))
            for name, value, message_id, transaction, trace, label in zip(*self[:5], labels, strict=True)
        ]


class TimedPush(NamedTuple):
    """Columns with the time that a batch of them has: a store of rows needs no batch."""

    pushed: Pushed
    time_ms: int


class PushedBatch(bytearray):
    """A record batch with the columns it was made of, for as long as somebody may want them."""

    __slots__ = ("pushed",)

    pushed: Pushed | None


def headers_of(
    transaction_id: str, trace_id: str | None, namespace: str = "", task: str = ""
) -> list[tuple[str, bytes]]:
    headers = [(TRANSACTION_HEADER, transaction_id.encode())]
    if trace_id is not None:
        headers.append((TRACE_HEADER, trace_id.encode()))
    if namespace:
        headers.append((NAMESPACE_HEADER, namespace.encode()))
    if task:
        headers.append((TASK_HEADER, task.encode()))
    return headers


def header_section(transaction_id: str, trace_id: str | None, message_id: str | None) -> tuple[int, bytes]:
    """The headers of a pushed message as they are on the wire, and how many these are."""
    section = _TRANSACTION + _sized(transaction_id)
    if trace_id is not None:
        section += _TRACE + _sized(trace_id)
    if message_id is not None:
        section += _ID + _sized(message_id)
    return 1 + (trace_id is not None) + (message_id is not None), section


def build(pushed: Pushed, timestamp_ms: int) -> PushedBatch:
    """One batch of all of them."""
    if pushed.labels is not None:
        batch = PushedBatch(batch_builder.build_batch(pushed.messages(), timestamp_ms))
        batch.pushed = None
        return batch
    keys = {name: _sized(name) for name in set(pushed.names)}
    encode, join = varint.encode, b"".join
    records: list[bytes] = []
    add = records.append
    for index, (name, value, headers) in enumerate(zip(pushed.names, pushed.values, _headers(pushed), strict=True)):
        body = join((_FIRST_FIELDS, encode(index), keys[name], encode(len(value)), value, headers))
        add(encode(len(body)))
        add(body)
    batch = PushedBatch(batch_builder.sealed(records, len(pushed.names), timestamp_ms))
    batch.pushed = pushed
    return batch


def as_batch(given: bytearray | TimedPush) -> bytearray:
    """For whoever keeps batches."""
    if not isinstance(given, TimedPush):
        return given
    if given.pushed.times_ms is not None:
        return batch_builder.build_timed(given.pushed.messages(), given.pushed.times_ms)
    return build(*given)


def _headers(pushed: Pushed) -> list[bytes]:
    """The header section of each. Where all ids have the usual length, these are two columns between constants."""
    transaction_ids, ids, trace_ids = pushed.transaction_ids, pushed.ids, pushed.trace_ids
    lengths = {*map(len, transaction_ids), *map(len, ids)}
    if lengths == {_USUAL_CHARACTERS} and not any(trace_ids) and "".join(transaction_ids).isascii():
        return [f"{_USUAL_FIRST}{each}{_USUAL_THEN}{other}".encode() for each, other in zip(transaction_ids, ids)]  # noqa: B905
    sections = map(header_section, transaction_ids, trace_ids, ids)
    return [varint.encode(count) + section for count, section in sections]


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return varint.encode(len(encoded)) + encoded


_TRANSACTION: Final = _sized(TRANSACTION_HEADER)
_TRACE: Final = _sized(TRACE_HEADER)
_ID: Final = _sized(ID_HEADER)
# Of UUIDs. Lengths below 64 are single characters of ASCII.
_USUAL_CHARACTERS: Final = 36
_USUAL_LENGTH: Final = varint.encode(_USUAL_CHARACTERS)
_USUAL_FIRST: Final = (varint.encode(2) + _TRANSACTION + _USUAL_LENGTH).decode("ascii")
_USUAL_THEN: Final = (_ID + _USUAL_LENGTH).decode("ascii")
