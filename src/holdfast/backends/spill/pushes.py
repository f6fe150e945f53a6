"""Pushed messages as lines, column by column.

What lines have in common is written once for each partition's name; between that stand the transaction ids, the ids and
the values as they came. A line with `"push":true` leaves out what follows from its other fields: the key is the
partition's name, the headers are the transaction id and, where there is one, the trace id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.backends.spill import fields, sums
from holdfast.model.ids import TopicName
from holdfast.wire.push_batch import Pushed


def lines_of(
    topic: TopicName,
    numbers: Mapping[str, int | None],
    pushed: Pushed,
    time_ms: int,
    at_ms: int,
    tried: str | None = None,
) -> bytes:
    """A line for each message; `numbers` has the number of each name's partition, none where it is yet to be chosen."""
    names = {name: fields.encode(name).decode() for name in numbers}
    queue = fields.encode(topic).decode()
    begins = {name: f'{{"queue":{queue},"partition":{text},"transaction_id":"' for name, text in names.items()}
    places = {name: _place(number, time_ms, at_ms) for name, number in numbers.items()}
    mark = "" if tried is None else f'"tried":{fields.encode(tried).decode()},'
    values: Sequence[bytes]
    if (pushed.has_json and fields.are_on_one_line(pushed.values)) or fields.are_json(list(pushed.values)):
        mark, values = f"{mark}{fields.PAYLOAD.decode()}", pushed.values
    else:
        values = list(map(fields.field, pushed.values))
    end = f'","push":true,{mark}'
    columns = zip(pushed.names, _quotable(pushed.transaction_ids), _quotable(pushed.ids), strict=True)
    if not any(trace is not None for trace in pushed.trace_ids):
        heads = [
            f'{begins[name]}{transaction}","trace_id":""{places[name]}{message_id}{end}'.encode()
            for name, transaction, message_id in columns
        ]
    else:
        traces = ['""' if trace is None else fields.encode(trace).decode() for trace in pushed.trace_ids]
        heads = [
            f'{begins[name]}{transaction}","trace_id":{trace}{places[name]}{message_id}{end}'.encode()
            for (name, transaction, message_id), trace in zip(columns, traces, strict=True)
        ]
    return sums.summed_pairs(heads, values)


def _place(number: int | None, time_ms: int, at_ms: int) -> str:
    """What stands between the trace and the id."""
    place = "null" if number is None else str(number)
    return f',"namespace":"","task":"","number":{place},"time":{time_ms},"at":{at_ms},"id":"'


def _quotable(texts: Sequence[str]) -> Iterable[str]:
    """Texts as they stand between quotes. Nearly all are ids of letters and digits, which stand for themselves."""
    joined = "".join(texts)
    if len(fields.encode(joined)) == len(joined.encode()) + 2:
        return texts  # quotes around it is all that it takes
    return [fields.encode(text).decode()[1:-1] for text in texts]
