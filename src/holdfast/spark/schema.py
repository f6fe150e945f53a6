"""The columns of the source, which of them a query wants, and their Arrow types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.spark.errors import BadOption, BadSchema, with_code
from holdfast.spark.value_schema import check_value_schema

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = "headers"
VALUE: Final = "value"

_HEADER_PAIRS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField(VALUE, BinaryType())]),
)
COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    VALUE: BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "id": StringType(),
    HEADERS: _HEADER_PAIRS,
}


def source_schema(value_schema: str | None, *, with_headers: bool) -> StructType | str:
    """All columns; with a `value_schema`, in Spark's own notation or as JSON, `value` is a struct of these fields.

    Only Spark's Java side reads its notation, so then the whole schema is handed to it as text.
    """
    columns = {name: kind for name, kind in COLUMNS.items() if with_headers or name != HEADERS}
    if value_schema is None:
        return StructType([StructField(name, kind) for name, kind in columns.items()])
    if value_schema.startswith("{"):
        return StructType(
            [StructField(name, _parsed(value_schema) if name == VALUE else kind) for name, kind in columns.items()]
        )
    check_value_schema(value_schema)
    texts = {name: kind.simpleString() for name, kind in columns.items()} | {VALUE: f"struct<{value_schema}>"}
    return ", ".join(f"`{name}` {text}" for name, text in texts.items())


def _parsed(value_schema: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(value_schema))
    except (ValueError, KeyError, TypeError) as error:
        raise with_code(BadOption, f"valueSchema is not the JSON of a StructType: {error}") from None


def check_user_schema(wanted: StructType, *, is_value_json: bool) -> None:
    """A user's schema may leave columns out and reorder them; it cannot add or convert any."""
    if not wanted.fields:
        raise with_code(BadSchema, "a schema needs at least one column")
    for field in wanted.fields:
        if field.name not in COLUMNS:
            raise with_code(BadSchema, f"there is no column {field.name}; the source has {', '.join(COLUMNS)}")
        if not field.nullable:
            raise with_code(BadSchema, f"the column {field.name} is nullable; leave NOT NULL out")
        if field.name == VALUE and is_value_json:
            if not isinstance(field.dataType, StructType):
                raise with_code(BadSchema, "with the option valueSchema the column value is a struct")
        elif field.dataType.simpleString() != COLUMNS[field.name].simpleString():
            raise with_code(
                BadSchema,
                f"the column {field.name} is {COLUMNS[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; convert it behind the source, or read JSON values with the option "
                "valueSchema",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Exactly what Spark expects for it; a batch whose schema differs in anything is refused."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
