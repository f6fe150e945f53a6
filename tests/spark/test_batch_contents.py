"""What tells a batch that comes again from another one under its number."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.spark.batch_contents import NO_ROWS, Contents, RowSum, contents, is_same, place_of, summed

COLUMNS = ("value", "key", "id", "headers")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    types = {"value": pa.binary(), "key": pa.string(), "id": pa.string(), "headers": HEADERS}
    return pa.record_batch([pa.array([row.get(name) for row in rows], of) for name, of in types.items()], list(types))


def holds(*batches: pa.RecordBatch) -> Contents:
    return contents(sum((summed(each, COLUMNS) for each in batches), NO_ROWS), None)


def test_rows_are_the_same_in_any_order_and_however_tasks_cut_them() -> None:
    rows = [{"value": b"%d" % n, "key": str(n % 7), "headers": [{"key": "h", "value": b"x"}]} for n in range(200)]
    before = holds(batch(*rows))
    random.Random(1).shuffle(rows)
    assert holds(batch(*rows[:30]), batch(), batch(*rows[30:])) == before
    assert before.rows == 200 and is_same(before, holds(batch(*rows)))


@pytest.mark.parametrize(
    "other",
    [
        {"value": b"b", "key": "k"},
        {"value": b"a", "key": "l"},
        {"value": b"a", "key": None},
        {"value": None, "key": "k"},
        {"value": b"", "key": "k"},
        {"value": b"k", "key": "a"},
        {"value": b"a", "key": "k", "id": "i"},
        {"value": b"a", "key": "k", "headers": [{"key": "h", "value": None}]},
    ],
)
def test_row_that_differs_in_anything_is_another_row(other: dict[str, Any]) -> None:
    row = {"value": b"a", "key": "k"}
    assert not is_same(holds(batch(row)), holds(batch(other)))
    assert not is_same(holds(batch(row)), holds(batch(row, row)))


def test_missing_columns_and_binary_or_text_make_no_difference() -> None:
    binary = pa.record_batch([pa.array([b"a"])], ["value"])
    text = pa.record_batch([pa.array(["a"], pa.large_string())], ["value"])
    assert summed(binary, COLUMNS) == summed(text, COLUMNS)


def write(checkpoint: Path, number: int, *sources: object) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": number}), *(json.dumps(each) for each in sources)]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def write_files(checkpoint: Path, number: int, *names: str, of: str = "") -> None:
    log = checkpoint / "sources" / "1"
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": name, "timestamp": 1, "batchId": number}) for name in names]
    (log / f"{number}{of}").write_text("\n".join(["v1", *lines]))


def orders(end: int, **more: object) -> dict[str, object]:
    return {"offsets": {"orders": {"0": end}}, "created_ms": {"orders": 1}, "began": {"orders": {"0": 3}}, **more}


def test_place_of_a_batch_is_where_it_begins_and_ends(tmp_path: Path) -> None:
    write(tmp_path, 0, orders(10), {"logOffset": 0})
    write(tmp_path, 1, orders(20, group="g", servers="a:1"), {"logOffset": 1})
    for number in (0, 1):
        write_files(tmp_path, number, "a")
    first, second = place_of(str(tmp_path), 0), place_of(f"file:{tmp_path}", 1)
    assert first is not None and second is not None
    assert "orders/0 from 3 to 10" in first.told and "orders/0 from 10 to 20" in second.told
    assert second.cursors == {("orders", "g")}
    write(tmp_path, 1, orders(20, group="other", servers="b:2"), {"logOffset": 1})
    again = place_of(f"file://{tmp_path}", 1)
    assert again is not None and again.digest == second.digest, "who reads makes no difference"
    write(tmp_path, 1, orders(21), {"logOffset": 1})
    later = place_of(str(tmp_path), 1)
    assert later is not None and later.digest != second.digest
    write(tmp_path, 0, orders(9), {"logOffset": 0})
    longer = place_of(str(tmp_path), 1)
    assert longer is not None and longer.digest != later.digest


def test_place_of_a_batch_of_files_is_in_their_names(tmp_path: Path) -> None:
    """The same number of the log is another batch where the log was set back, and other files have come since."""
    for number in (0, 1):
        write(tmp_path, number, orders(10), {"logOffset": number})
    digests = []
    for names in (("a", "b"), ("b", "a"), ("a", "c")):
        write_files(tmp_path, 1, *names)
        found = place_of(str(tmp_path), 1)
        assert found is not None
        digests.append(found.digest)
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "sources" / "1" / "1").unlink()
    assert place_of(str(tmp_path), 1) is None, "the rows have to be the same then"
    write_files(tmp_path, 1, "a", "b", of=".compact")
    compacted = place_of(str(tmp_path), 1)
    assert compacted is not None and compacted.digest == digests[0]


def test_place_is_read_from_offsets_of_either_format(tmp_path: Path) -> None:
    write(tmp_path, 0, orders(10))
    first = place_of(str(tmp_path), 0)
    (tmp_path / "offsets" / "0").write_text(f"v2\n{{}}\n0:{json.dumps(orders(10))}")
    assert first is not None and place_of(str(tmp_path), 0) == first and first.messages == 7


def test_place_is_unknown_where_the_checkpoint_is_not_on_this_machine(tmp_path: Path) -> None:
    write(tmp_path, 1, orders(20))
    (tmp_path / "offsets" / "7").write_text("v9\n{}\n{}")
    write(tmp_path, 6, orders(20))
    for checkpoint, number in (
        (None, 1),
        (f"hdfs://{tmp_path}", 1),
        (str(tmp_path / "none"), 1),
        (str(tmp_path), 1),
        (str(tmp_path), 7),
    ):
        assert place_of(checkpoint, number) is None


def test_place_decides_where_both_are_known_and_the_rows_where_not() -> None:
    at = Contents(1, 2, source=3)
    assert is_same(at, Contents(9, 9, source=3)) and not is_same(at, Contents(1, 2, source=4))
    assert is_same(at, Contents(1, 2)) and not is_same(Contents(1, 3), at)
    assert RowSum(1, 2**64 - 1) + RowSum(1, 2) == RowSum(2, 1)
