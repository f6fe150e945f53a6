"""JSON read in bulk says the same as JSON read one by one, and nonsense among it costs no other value."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.sizes import examples

from holdfast.spark import json_values
from holdfast.spark.json_values import parse_json

KIND = pa.struct([("item", pa.string()), ("count", pa.int32()), ("tags", pa.list_(pa.string()))])
fields = st.fixed_dictionaries(
    {},
    optional={
        "item": st.none() | st.text(max_size=5),
        "count": st.none() | st.integers(-(2**31), 2**31 - 1),
        "tags": st.none() | st.lists(st.text(max_size=3), max_size=3),
        "more": st.integers() | st.booleans(),
    },
)
good = fields.map(lambda value: json.dumps(value).encode())
odd = st.sampled_from(
    [
        None,
        b"",
        b"{",
        b"[]",
        b"{}{}",
        b"{}\n{}",
        b"7",
        b"null",
        b'{"count": "x"}',
        b'{"count": 1e3}',
        b'{"item": "\xff"}',
        b'{"item": "\\ud800"}',
    ]
)


@examples(80, 2_000)
@given(st.lists(good | st.none(), min_size=1, max_size=20))
def test_bulk_and_one_by_one_agree(values: list[bytes | None]) -> None:
    one_by_one = [json_values._struct(value, KIND) for value in values]
    assert parse_json(pa.array(values, pa.binary()), KIND).to_pylist() == pa.array(one_by_one, KIND).to_pylist()


@examples(80, 2_000)
@given(st.lists(good | odd, min_size=1, max_size=20))
def test_nonsense_costs_no_other_value(values: list[bytes | None]) -> None:
    together = parse_json(pa.array(values, pa.binary()), KIND).to_pylist()
    alone = [parse_json(pa.array([value], pa.binary()), KIND).to_pylist()[0] for value in values]
    assert together == alone


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.timestamp("us", tz="UTC"), '"2026-01-02T03:04:05"', "2026-01-02 03:04:05+00:00"),
        (pa.timestamp("us", tz="UTC"), '"soon"', "None"),
        (pa.timestamp("us", tz="UTC"), '"0001-01-01T00:00:00+23:00"', "None"),
        (pa.timestamp("us", tz="UTC"), '"9999-12-31T23:59:59-23:00"', "None"),
        (pa.date32(), '"2026-01-02"', "2026-01-02"),
        (pa.decimal128(10, 2), "12.5", "12.50"),
        (pa.map_(pa.string(), pa.int64()), '{"a": 1}', "[('a', 1)]"),
        (pa.map_(pa.string(), pa.int64()), '{"\\ud800": 1}', "None"),
        (pa.string(), '{"a": 1}', '{"a":1}'),
        (pa.string(), '"\\ud800"', "None"),
        (pa.string(), '{"a": "\\ud800"}', '{"a":"\\ud800"}'),
        (pa.list_(pa.string()), '["a", "\\udfff"]', "['a', None]"),
        (pa.binary(), '"\\ud800"', "None"),
        (pa.int8(), "300", "None"),
        (pa.bool_(), "1", "None"),
        (pa.float64(), "3", "3.0"),
        (pa.float64(), "1" + 400 * "0", "inf"),
        (pa.float64(), "-1" + 400 * "0", "-inf"),
        (pa.float64(), "1e999", "inf"),
        (pa.int64(), "1" + 400 * "0", "None"),
        (pa.decimal128(10, 2), "1e400", "None"),
    ],
)
def test_types_that_json_does_not_have(kind: pa.DataType, text: str, expected: str) -> None:
    value = f'{{"field": {text}}}'.encode()
    for values in ([value], [value, b"no JSON"]):
        parsed = parse_json(pa.array(values, pa.binary()), pa.struct([("field", kind)]))
        assert str(parsed.to_pylist()[0]["field"]) == expected


@pytest.mark.parametrize("others", [[], [b"no JSON"]])
def test_bytes_that_are_no_text_are_no_json(others: list[bytes]) -> None:
    parsed = parse_json(pa.array([b'{"item": "\xff"}', b'{"item": "tea"}', *others], pa.binary()), KIND)
    assert [value and value["item"] for value in parsed.to_pylist()] == [None, "tea", *(None for _ in others)]
