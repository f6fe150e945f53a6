"""A task's rows in few, large pieces, and the order of each partition kept."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from holdfast.model.errors import HoldfastError, TooLarge
from holdfast.spark import sink_pieces
from holdfast.spark.sink import BatchWriter, Staged
from holdfast.spark.sink_options import parse_sink_options
from holdfast.spark.sink_pieces import Piece, pieces
from holdfast.wire import record_batch


def batches(count: int, rows: int, value_bytes: int = 50) -> Iterator[pa.RecordBatch]:
    for start in range(0, count * rows, rows):
        numbers = range(start, start + rows)
        yield pa.record_batch(
            [
                [b"%d-" % number + b"v" * value_bytes for number in numbers],
                [b"%d" % (number % 997) for number in numbers],
            ],
            names=["value", "key"],
        )


def numbers_of(piece: Piece) -> list[int]:
    found: list[int] = []
    rest = memoryview(piece.batches)
    while rest:
        size = record_batch.header(rest).size
        found += [int(value.partition(b"-")[0]) for value in record_batch.decode_values(bytes(rest[:size]))]
        rest = rest[size:]
    return found


def test_small_rows_for_many_partitions_make_one_piece_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are spread over partitions several times; all of a partition go together, in their order."""
    monkeypatch.setattr(sink_pieces, "_GATHERED_ROWS_MAX", 2_000)
    made = list(pieces(batches(12, 1_000), "orders", lambda _: 32, task=3))
    assert sorted(piece.partition for piece in made) == list(range(32))
    found = [numbers_of(piece) for piece in made]
    assert all(numbers == sorted(numbers) for numbers in found)
    assert sorted(number for numbers in found for number in numbers) == list(range(12_000))


def test_what_is_held_is_bounded_and_the_largest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_pieces, "HELD_BYTES_MAX", 500_000)
    monkeypatch.setattr(sink_pieces, "_GATHERED_ROWS_MAX", 500)
    handed_out = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal handed_out
        for batch in batches(30, 500):
            handed_out += batch.num_rows
            yield batch

    found: list[int] = []
    by_partition: dict[int, list[int]] = {}
    made = 0
    for piece in pieces(counted(), "orders", lambda _: 16, task=0):
        made += 1
        assert (handed_out - len(found)) * 50 < 550_000, "more is held than the bound and one gathering"
        numbers = numbers_of(piece)
        found += numbers
        by_partition.setdefault(piece.partition, []).extend(numbers)
    assert sorted(found) == list(range(15_000))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert made < 100, "30 gatherings for 16 partitions each would have been 480 pieces"


def test_rows_too_large_for_one_piece_are_several() -> None:
    made = list(pieces(batches(3, 10, 900_000), "orders", lambda _: 1, task=0))
    assert [number for piece in made for number in numbers_of(piece)] == list(range(30))
    assert len(made) > 3 and all(len(piece.batches) <= sink_pieces.PIECE_BYTES_MAX for piece in made)


def test_row_without_a_topic_is_refused() -> None:
    rows = pa.record_batch([[b"a"], pa.array([None], pa.string())], names=["value", "topic"])
    with pytest.raises(HoldfastError, match=r"\[bad_value\] a row has no topic"):
        list(pieces(iter([rows]), None, lambda _: 1, task=0))


def test_option_topic_wins_over_a_column_of_that_name() -> None:
    """Rows that were read carry the topic that they came from: a copy of them must not go back there."""
    rows = pa.record_batch([[b"1-", b"2-"], pa.array(["source", None], pa.string())], names=["value", "topic"])
    [piece] = pieces(iter([rows]), "copied", lambda _: 1, task=0)
    assert piece.topic == "copied" and numbers_of(piece) == [1, 2]


def test_job_with_too_many_pieces_says_what_to_do() -> None:
    writer = BatchWriter(parse_sink_options({"servers": "127.0.0.1:1", "topic": "orders"}))
    with pytest.raises(TooLarge, match=r"\[too_large\] the tasks staged 30000 pieces.*coalesce"):
        writer.commit([Staged("writer", 0, ["receipt"] * 15_000)] * 2)
