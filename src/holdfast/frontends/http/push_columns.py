"""The items of a push side by side, as they were asked for and as they are answered.

A request of many items is looked at, stored and answered column by column: a step for each item is what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import uuid_utils
from msgspec import Raw

from holdfast.frontends.http import schema
from holdfast.model.push_ids import push_ids
from holdfast.wire.push_batch import DEFAULT_PARTITION, Labels, Pushed

_encode: Final = msgspec.json.Encoder().encode

QUEUED: Final = "queued"
DUPLICATE: Final = "duplicate"
BUFFERED: Final = "buffered"
FAILED: Final = "failed"


class Columns(NamedTuple):
    """What items ask for; none where one leaves something out."""

    queues: Sequence[str]
    names: Sequence[str | None]
    payloads: Sequence[Raw]
    transaction_ids: Sequence[str | None]
    trace_ids: Sequence[str | None]
    namespaces: Sequence[str | None]
    tasks: Sequence[str | None]

    @classmethod
    def of(cls, items: Sequence[schema.PushItem]) -> Columns:
        return cls(
            [item.queue for item in items],
            [item.partition for item in items],
            [item.payload for item in items],
            [item.transactionId for item in items],
            [item.traceId for item in items],
            [item.namespace for item in items],
            [item.task for item in items],
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        return parts[0] if len(parts) == 1 else cls(*map(list, map(chain.from_iterable, zip(*parts, strict=True))))

    def only(self, places: Sequence[int]) -> Columns:
        """Some of them."""
        pick: Any = itemgetter(*places) if len(places) > 1 else lambda column: (column[places[0]],)
        return Columns(*map(pick, self))

    def pushed(self) -> Pushed:
        """As they are stored, each with its id; those without a transaction id get one."""
        names = [name or DEFAULT_PARTITION for name in self.names]
        transaction_ids = [each or str(uuid_utils.uuid7()) for each in self.transaction_ids]
        return Pushed(
            names,
            list(map(bytes, self.payloads)),
            push_ids(names, transaction_ids),
            transaction_ids,
            [each or None for each in self.trace_ids] if any(self.trace_ids) else [None] * len(names),
            is_fresh=not any(self.transaction_ids),
            has_json=True,
            labels=self._labels(),
        )

    def _labels(self) -> Sequence[Labels] | None:
        if not (any(self.namespaces) or any(self.tasks)):
            return None
        return [(namespace or "", task or "") for namespace, task in zip(self.namespaces, self.tasks, strict=True)]


class Outcomes(NamedTuple):
    """What became of items; by their places, the errors of those that became nothing."""

    transaction_ids: Sequence[str]
    message_ids: Sequence[str]
    statuses: Sequence[str]
    errors: Mapping[int, BaseException] = {}

    def between(self, start: int, end: int) -> Outcomes:
        if start == 0 and end == len(self.statuses):
            return self
        errors = {place - start: error for place, error in self.errors.items() if start <= place < end}
        return Outcomes(self.transaction_ids[start:end], self.message_ids[start:end], self.statuses[start:end], errors)

    @classmethod
    def put_together(cls, parts: Iterable[tuple[Sequence[int], Outcomes]], count: int) -> Outcomes:
        """Those of several parts, each given with the places of its items."""
        columns: list[list[str]] = [[""] * count for _ in range(3)]
        errors: dict[int, BaseException] = {}
        for places, part in parts:
            for column, of_part in zip(columns, part[:3], strict=True):
                for place, each in zip(places, of_part, strict=True):
                    column[place] = each
            errors |= {places[place]: error for place, error in part.errors.items()}
        transaction_ids, message_ids, statuses = columns
        return cls(transaction_ids, message_ids, statuses, errors)

    def text(self) -> bytes:
        """The answer where nothing failed: a result for each item."""
        if len(set(self.statuses)) != 1 or not _stand_for_themselves((*self.transaction_ids, *self.message_ids)):
            rows = zip(range(len(self.statuses)), *self[:3], strict=False)
            return _encode([schema.PushResult(*row) for row in rows])
        count = len(self.statuses)
        parts = ['","message_id":"'] * (5 * count)
        parts[0::5] = _begins[:count] if count <= len(_begins) else map(_begin, range(count))
        parts[1::5] = self.transaction_ids
        parts[3::5] = self.message_ids
        parts[4::5] = [f'","status":"{self.statuses[0]}"}},'] * count
        return f"[{''.join(parts)[:-1]}]".encode()


def _begin(index: int) -> str:
    return f'{{"index":{index},"transaction_id":"'


# By an item's place, the beginning of its result.
_begins: Final = [_begin(index) for index in range(1024)]


def _stand_for_themselves(texts: Sequence[str]) -> bool:
    """Whether nothing in them has to be written in another way between quotes."""
    joined = "".join(texts)
    return len(_encode(joined)) == len(joined.encode()) + 2
