"""Blocks become lines in order, each id once: held against plain Python, however blocks are cut and held."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.spill.events import Event
from holdfast.recovery import blocks, merging
from holdfast.recovery.blocks import Blocks
from holdfast.recovery.seen_ids import SeenIds

Line = tuple[str, int, int, int, int, int, str | None, bytes]


def some_lines(dice: random.Random, span: int) -> list[Line]:
    """Of some files: times rise, with a spread, and ids repeat; queue, number, time, at, source, line, id, text."""
    found: list[Line] = []
    for source in range(4):
        for line in range(dice.randint(0, 60)):
            message_id = dice.choice((None, f"id-{dice.randrange(40)}", str(UUID(int=dice.randrange(40)))))
            time = line + dice.randrange(span)
            place = dice.choice(("a", "b")), dice.randrange(2)
            text = b"%d of %d %s\n" % (line, source, b"x" * dice.randrange(50))
            found.append((*place, time, time + dice.randrange(3), source, line, message_id, text))
    return found


def blocks_of(lines: list[Line], dice: random.Random, order_by: str) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = []
    gathered = Blocks(order_by)
    for source in range(4):
        own = [line for line in lines if line[4] == source]
        while own:
            some, own = own[: (cut := dice.randint(1, 20))], own[cut:]
            events = [
                Event(queue=each[0], partition="", number=each[1], time=each[2], at=each[3], id=each[6])
                for each in some
            ]
            texts = pa.array([each[7] for each in some], pa.binary())
            numbers = [each[1] for each in some]
            made += gathered.add(source, np.array([each[5] for each in some], np.int32), events, numbers, texts)
            if dice.random() < 0.5:
                made += gathered.take()
    return [*made, *gathered.take()]


def sorted_blocks(made: list[pa.RecordBatch], large: bool) -> list[pa.RecordBatch]:
    """As Spark brings them."""
    table = pa.Table.from_batches(made, schema=blocks.SCHEMA)
    table = table.sort_by([("queue", "ascending"), ("number", "ascending"), ("first", "ascending")])
    if large:
        table = table.cast(
            pa.schema([(f.name, pa.large_binary() if f.type == pa.binary() else f.type) for f in table.schema])
        )
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=3)
    return batches


@pytest.mark.parametrize("order_by", ["time", "kept"])
@pytest.mark.parametrize("span", [3, 200])
def test_lines_come_in_order_and_each_id_once(order_by: str, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 150)
    monkeypatch.setattr(merging, "_GIVEN_BYTES", 300)
    monkeypatch.setattr(merging, "_SORTED_ROWS_MAX", 40)
    dice = random.Random(span)
    for case in range(25):
        lines = some_lines(dice, span)
        known = [(queue, number, f"id-{dice.randrange(40)}") for queue in "ab" for number in range(2)]
        made = blocks_of(lines, dice, order_by) + [blocks.known_ids(q, n, [i]) for q, n, i in known]
        found: list[Any] = []
        for batch in merging.merged(iter(sorted_blocks(made, large=case % 2 == 0)), dice.choice((1, 30, 999)), 500):
            found += [tuple(row.values()) for row in batch.to_pylist()]
            assert batch.schema == merging.SCHEMA
        keys = (2, 3, 4, 5) if order_by == "time" else (3, 2, 4, 5)
        seen = set(known)
        expected = []
        for each in sorted(lines, key=lambda line: (line[0], line[1], *(line[key] for key in keys))):
            mark = each[0], each[1], each[6]
            expected.append((*each[:2], 2 if each[6] is not None and mark in seen else 1, *each[4:6], each[7]))
            seen.add(mark)  # type: ignore[arg-type]
        assert found == expected, f"case {case}"


def test_ids_that_the_store_has_are_not_held_until_the_first_line_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be many millions of them."""
    held: list[int] = []
    add = merging._Stream.add

    def watched(stream: merging._Stream, rows: pa.Buffer, lines: pa.Buffer) -> None:
        add(stream, rows, lines)
        held.append(stream._count)

    monkeypatch.setattr(merging._Stream, "add", watched)
    made = [blocks.known_ids("a", 0, [f"id-{part}-{number}" for number in range(10)]) for part in range(50)]
    assert list(merging.merged(iter(made), 30, 500)) == []
    assert len(held) == 50 and max(held) <= 40


def test_lines_that_went_to_a_file_come_back_once_they_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One late message must not have all others of its partition go through a file; it is where Spark has its own."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    stream = merging._Stream(("a", 0), 1, 500)

    def put(times: list[int]) -> None:
        rows = np.zeros(len(times), blocks.ROW)
        rows["first"], rows["size"] = times, 100
        stream.add(pa.py_buffer(rows.tobytes()), pa.py_buffer(b"".join(b"%0100d" % time for time in times)))

    put([*range(10), 99])
    assert sum(batch.num_rows for batch in stream.take(2)) == 2
    file: Any = stream._lines._file
    assert file is not None and Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(tmp_path)
    put([5])
    assert sum(batch.num_rows for batch in stream.take(50)) == 9
    assert stream._lines._file is None
    [batch] = stream.take(None)
    assert batch["event"].to_pylist() == [b"%0100d" % 99]


def test_ids_are_recognised_however_many_there_were() -> None:
    """Runs go to disk, and ids whose mix is equal are told apart."""
    dice = np.random.default_rng(7)
    ids, seen = SeenIds(run_ids_max=64), set()
    for _ in range(200):
        high = dice.integers(0, 3, 40).astype(np.uint64)
        low = dice.integers(0, 900, 40).astype(np.uint64)
        if dice.random() < 0.5:
            low = (high * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(5)  # all of them mix to 5
        expected = []
        for pair in zip(high.tolist(), low.tolist(), strict=True):
            expected.append(pair not in seen)
            seen.add(pair)
        assert ids.are_first(high, low).tolist() == expected
    assert len(ids._runs) < 120, "there are few runs"
