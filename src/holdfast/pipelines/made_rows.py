"""Rows that a transform makes, as messages of its target: which columns they have, and what a broker would refuse."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import BadMessage, BadMessageId, TooLarge
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX, MESSAGE_BYTES_MAX, MESSAGE_ID_BYTES_MAX
from holdfast.pipelines.errors import BadFunction

ARROW: Final = "arrow"
PANDAS: Final = "pandas"
BATCHES: Final = (ARROW, PANDAS)

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What a row becomes; the sink's columns.
MADE: Final = pa.schema(
    [("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("id", pa.string())]
)
MADE_DDL: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, id string"
# What may be returned of a message; a function may also leave these others where they were, which no message is given.
GIVEN: Final = ("key", "value", "headers", "id")
_LEFT_OUT: Final = frozenset(("topic", "partition", "offset", "timestamp", "event_time", "window_start", "window_end"))
# What a broker counts for a header beside its name and its value.
_HEADER_BYTES: Final = 10
_ID_HEADER: Final = "holdfast-id"


class Rules(NamedTuple):
    """What executors are told; of plain values."""

    source: str
    target: str
    batches: str = ARROW
    batch_rows_max: int = 10_000
    message_bytes_max: int = MESSAGE_BYTES_MAX
    call_timeout_s: float | None = None


def as_given(rows: pa.Table, batches: str) -> Any:
    """Rows as a function wants them: one record batch, or a pandas frame."""
    if batches == PANDAS:
        return rows.to_pandas()
    return rows.combine_chunks().to_batches()[0]


def as_made(returned: Any, rules: Rules) -> pa.Table:
    """What a function returned, as rows for the target; raises where any of them could not be a message."""
    columns = _columns(returned)
    count = len(next(iter(columns.values()))) if columns else 0
    if strange := [str(name) for name in columns if name not in GIVEN and name not in _LEFT_OUT]:
        raise BadFunction(
            f"[{BadFunction.code}] the function returned the column {', '.join(strange)}; a message has "
            f"{', '.join(GIVEN)}: make one value of several columns"
        )
    if not count:
        return MADE.empty_table()
    if "value" not in columns:
        raise BadFunction(f"[{BadFunction.code}] the function returned rows without the column value")
    made = {"topic": pa.repeat(pa.scalar(rules.target), count)}
    for name in GIVEN:
        made[name] = _as(columns[name], name) if name in columns else pa.nulls(count, MADE.field(name).type)
    rows = pa.table(made, schema=MADE)
    check(rows, rules.message_bytes_max)
    return rows


def _columns(returned: Any) -> dict[str, Any]:
    if isinstance(returned, pa.RecordBatch | pa.Table):
        return dict(zip(returned.schema.names, returned.columns, strict=True))
    if type(returned).__name__ == "DataFrame" and hasattr(returned, "columns"):
        return {name: returned[name] for name in returned.columns}
    raise BadFunction(
        f"[{BadFunction.code}] the function returned {type(returned).__name__}; it has to return a pyarrow RecordBatch "
        "or Table, or a pandas DataFrame"
    )


def _as(values: Any, name: str) -> Any:
    wanted = MADE.field(name).type
    if not isinstance(values, pa.Array | pa.ChunkedArray):  # a pandas column
        values = pa.array(values, type=HEADERS if name == "headers" else None, from_pandas=True)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_fine = is_text or pa.types.is_null(kind) or (is_bytes and name != "id")
    if name != "headers" and not is_fine:
        raise TypeError(f"the column {name} is {kind}; give {'text' if name == 'id' else 'bytes or text'}")
    return values.cast(wanted)


def check(rows: pa.Table, message_bytes_max: int) -> None:
    """Refuse what a broker would: a row that it does not take would hold up all others for ever."""
    largest = int(sizes(rows).max())
    if largest > message_bytes_max:
        raise TooLarge(f"what was made has {largest} bytes; at most {message_bytes_max} are allowed")
    ids = rows["id"].drop_null()
    lengths = pc.binary_length(ids.cast(pa.binary()))
    bounds = pc.min_max(lengths).as_py()
    if len(ids) and not (bounds["min"] > 0 and bounds["max"] <= MESSAGE_ID_BYTES_MAX):
        raise BadMessageId(f"an id has 1 to {MESSAGE_ID_BYTES_MAX} bytes")
    # Python's word, as brokers go by that: Arrow has one of its own about thousands of characters.
    if not "".join(ids.to_pylist()).isprintable():
        raise BadMessageId("an id has printable characters only")
    headers = rows["headers"].combine_chunks()
    if (pc.max(pc.list_value_length(headers)).as_py() or 0) > HEADERS_PER_MESSAGE_MAX:
        raise BadMessage(f"a message has at most {HEADERS_PER_MESSAGE_MAX} headers")
    names = pc.struct_field(pc.list_flatten(headers), 0)
    names.validate(full=True)  # as UTF-8
    if names.null_count or pc.any(pc.equal(names, _ID_HEADER)).as_py():
        raise BadMessage(f"a header has a name, and it is not {_ID_HEADER}: give the id as the id")


def sizes(rows: pa.Table) -> Any:
    """What a broker counts for each row."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        total += _lengths(rows[name].combine_chunks())
    headers = rows["headers"].combine_chunks()
    pairs = pc.list_flatten(headers)
    if len(pairs):
        each = _lengths(pc.struct_field(pairs, 0).cast(pa.binary())) + _lengths(pc.struct_field(pairs, 1))
        np.add.at(total, pc.list_parent_indices(headers).to_numpy(zero_copy_only=False), each + _HEADER_BYTES)
    return total


def _lengths(values: Any) -> Any:
    return pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
