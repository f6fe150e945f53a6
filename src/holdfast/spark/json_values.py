"""Values that are JSON become a struct, in bulk: Arrow's own parser reads all of them as lines of one text.

It takes what it understands or nothing. Where one value among many is not JSON, or does not fit the schema, the values
of that batch are read one by one: what is no JSON object is null, and so is a field that has another type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_INT_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def parse_json(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """One struct of that type for each value; null where there is none."""
    if len(values) - values.null_count == 0:
        return pa.nulls(len(values), kind)
    if _is_for_arrow(kind):
        parsed = _in_bulk(values, kind)
        if parsed is not None:
            return parsed
    return pa.array([_struct(value, kind) for value in values.to_pylist()], kind)


def _is_for_arrow(kind: pa.DataType) -> bool:
    """Types that Arrow reads from JSON just as Spark would; of times and decimals it has a view of its own."""
    if pa.types.is_struct(kind):
        return all(_is_for_arrow(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_for_arrow(kind.value_type)
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    )


def _in_bulk(values: pa.Array, kind: pa.StructType) -> pa.Array | None:
    present = values.drop_null()
    # Each value is one object and nothing else, so as many rows as values means one for each.
    looks_right = pc.all(pc.and_(pc.starts_with(present, b"{"), pc.ends_with(present, b"}"))).as_py()
    if not looks_right:
        return None
    if not _is_utf8(present):
        return None
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(present)], pa.int32()), present), b"\n")[0]
    text = lines.as_buffer()
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(kind)), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(present):
        return None
    columns = [table.column(field.name).combine_chunks() for field in kind]
    parsed = pa.StructArray.from_arrays(columns, fields=list(kind))
    if values.null_count == 0:
        return parsed
    # Where each value's row is: counted over those that are there.
    is_there = values.is_valid()
    rows = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
    return parsed.take(pc.if_else(is_there, rows, pa.scalar(None, pa.int64())))


def _is_utf8(values: pa.Array) -> bool:
    """Arrow's parser does not look, and would pass on what no string may hold."""
    try:
        values.cast(pa.string() if pa.types.is_binary(values.type) else pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _struct(value: bytes | None, kind: pa.StructType) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return _fitted(parsed, kind) if isinstance(parsed, dict) else None


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """The value as that type, or null where it is of another."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind} if _is(value, dict) else None
    if pa.types.is_list(kind):
        return [_fitted(each, kind.value_type) for each in value] if _is(value, list) else None
    if pa.types.is_map(kind):
        if not _is(value, dict) or not all(map(_is_text, value)):
            return None
        return [(name, _fitted(each, kind.item_type)) for name, each in value.items()]
    if pa.types.is_integer(kind):
        bits = _INT_BITS.get(str(kind), 64)
        return value if _is(value, int) and -(1 << bits - 1) <= value < 1 << bits - 1 else None
    if pa.types.is_floating(kind):
        return _float(value) if _is(value, int) or _is(value, float) else None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_string(kind):
        if isinstance(value, str):
            return value if _is_text(value) else None
        return json.dumps(value, separators=(",", ":"))
    return _converted(value, kind)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_text(value: str) -> bool:
    """JSON can escape half a character, which is none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float(value: float) -> float:
    """As Arrow reads it: beyond what a number can be is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _converted(value: Any, kind: pa.DataType) -> Any:
    makers: list[tuple[Callable[[pa.DataType], bool], Callable[[], Any]]] = [
        (pa.types.is_timestamp, lambda: _aware(datetime.fromisoformat(value))),
        (pa.types.is_date, lambda: date.fromisoformat(value)),
        (pa.types.is_decimal, lambda: pa.scalar(Decimal(str(value)), kind).as_py()),
        (pa.types.is_binary, lambda: value.encode()),
    ]
    for is_kind, make in makers:
        if is_kind(kind):
            try:
                return make()
            except (ValueError, TypeError, AttributeError, OverflowError, InvalidOperation, pa.ArrowInvalid):
                return None
    return None


def _aware(when: datetime) -> datetime:
    """In UTC: a time at the edge of the calendar may have no place there, and is refused here."""
    return when.astimezone(UTC) if when.tzinfo is not None else when.replace(tzinfo=UTC)
