"""Columns as record batches: what another decoder reads is what the rows were."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType
from testkit.sizes import examples

from holdfast.model.errors import HoldfastError
from holdfast.model.ids import Offset
from holdfast.spark.decoding import decode
from holdfast.spark.schema import arrow_schema
from holdfast.spark.sink_encoding import encoded, partitions_of
from holdfast.spark.sink_options import check_columns, parse_sink_options
from holdfast.wire import record_batch
from tests.spark import readers

Row = tuple[bytes | None, bytes | None, str | None, list[tuple[str, bytes]]]

ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | st.binary(max_size=150),
        st.none() | st.text("abc-é", min_size=1, max_size=90),
        st.lists(st.tuples(st.text("xyz", max_size=5), st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=200,
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def checked(batch: bytes) -> list[record_batch.Record]:
    whole = record_batch.summed(batch)
    record_batch.checked(whole)
    return record_batch.decode_records(whole)


@given(rows=ROWS, columns=st.sets(st.sampled_from(["key", "id", "headers"])), cut=st.integers(0, 3))
@examples(60, 2000)
def test_rows_are_read_back_as_they_were(rows: list[Row], columns: set[str], cut: int) -> None:
    cut = min(cut, len(rows) - 1)
    given_columns: dict[str, Any] = {
        "key": pa.array([row[1] for row in rows], pa.binary()).slice(cut),
        "id": pa.array([row[2] for row in rows], pa.string()).slice(cut),
        "headers": pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS).slice(cut),
    }
    values = pa.array([row[0] for row in rows], pa.binary()).slice(cut)
    batch = encoded(values, **{{"key": "keys", "id": "ids"}.get(n, n): given_columns[n] for n in columns})
    for record, (value, key, message_id, headers) in zip(checked(batch), rows[cut:], strict=True):
        assert record.value == (value or b"")
        assert record.key == (key if "key" in columns else None)
        assert record_batch.record_id(record) == (message_id if "id" in columns else None)
        others = [pair for pair in record.headers if pair[0] != record_batch.ID_HEADER]
        assert others == (headers if "headers" in columns else [])


def test_many_rows_and_long_ones_keep_their_numbers() -> None:
    values = [b"x" * (i % 7) for i in range(40_000)] + [b"y" * 3_000_000, b"z"]
    assert [record.value for record in checked(encoded(pa.array(values)))] == values
    assert [record.value for record in checked(encoded(pa.array(["é", None])))] == ["é".encode(), b""]


def test_keys_go_where_the_broker_would_bring_them() -> None:
    keys = [b"%d" % (i % 50) for i in range(500)] + [None]
    found = partitions_of(pa.array(keys, pa.binary()), 7, 3)
    assert found.tolist() == [3 if key is None else zlib.crc32(key) % 7 for key in keys]


def test_null_is_read_as_null_by_spark_again() -> None:
    batch = bytearray(record_batch.summed(encoded(pa.array([b"a", None, b""]), pa.array([None, b"k", b"l"]))))
    record_batch.place(batch, Offset(0), 1)
    read = decode(batch, "orders", 0, 0, 3, arrow_schema(readers.schema()))
    assert read.column("value").to_pylist() == [b"a", None, b""]
    assert read.column("key").to_pylist() == [None, b"k", b"l"]


def test_headers_are_taken_by_their_names() -> None:
    turned = pa.list_(pa.struct([("value", pa.string()), ("key", pa.string())]))
    headers = pa.array([[{"key": "k", "value": "v"}], None, [{"key": "n", "value": None}]], turned)
    records = checked(encoded(pa.array([b"x", b"y", b"z"]), headers=headers))
    assert [record.headers for record in records] == [[("k", b"v")], [], [("n", b"")]]


@pytest.mark.parametrize(
    ("element", "is_taken"),
    [
        (StructType().add("key", StringType()).add("value", BinaryType()), True),
        (StructType().add("value", StringType()).add("key", StringType()), True),
        (StringType(), False),
        (StructType().add("key", StringType()).add("value", IntegerType()), False),
        (StructType().add("key", BinaryType()).add("value", BinaryType()), False),
        (StructType().add("name", StringType()).add("value", BinaryType()), False),
        (StructType().add("key", StringType()).add("value", BinaryType()).add("more", BinaryType()), False),
    ],
)
def test_headers_of_another_type_are_refused(element: DataType, is_taken: bool) -> None:
    schema = StructType().add("value", StringType()).add("headers", ArrayType(element))
    options = parse_sink_options({"servers": "a", "topic": "orders"})
    if is_taken:
        check_columns(schema, options)
        return
    with pytest.raises(HoldfastError, match=r"\[bad_schema\] the column headers is array<struct<key:string") as raised:
        check_columns(schema, options)
    assert f"not array<{element.simpleString()}>" in str(raised.value)
