"""What executors do with rows: give them to a function, and make dead letters of those for which it raises.

A function gets batches and raises for a whole one. Whatever it raised for is cut in halves and given to it again, until
single rows are left: those are dead, and everything else went on, in the order in which it came. So what is made of a
row must not depend on which others are in its batch, and a function may see a row several times.

Results and dead letters are rows of one table with the column `topic`, which the sink writes in one transaction: a
message is in the target or among the dead, and never in both.

Executors have Python, numpy, pyarrow and pyspark, and pandas where a function wants it. This module, `made_rows`,
`dead_letters` and `transform_state` import nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from holdfast.pipelines.dead_letters import dead_letter
from holdfast.pipelines.errors import BadFunction
from holdfast.pipelines.made_rows import Rules, as_given, as_made


def in_order(
    rows: pa.Table, make: Callable[[pa.Table], pa.Table], bury: Callable[[pa.Table, Exception], pa.Table]
) -> Iterator[pa.Table]:
    """What `make` makes of all rows, in their order, and what `bury` does of each single one for which it raises."""
    waiting = [rows] if rows.num_rows else []
    while waiting:
        part = waiting.pop()
        try:
            made = make(part)
        except (BadFunction, MemoryError):
            raise  # no row's fault
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and the letter tells what
            if part.num_rows == 1:
                made = bury(part, error)
            else:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
                continue
        yield made


def over_batches(function: Callable[[Any], Any], rules: Rules) -> Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]:
    """For `mapInArrow`: rows that were read become rows that are written."""

    def make(rows: pa.Table) -> pa.Table:
        return as_made(function(as_given(rows, rules.batches)), rules)

    def bury(row: pa.Table, error: Exception) -> pa.Table:
        return dead_letter(row, error, rules)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, rules.batch_rows_max):
                rows = pa.Table.from_batches([batch.slice(start, rules.batch_rows_max)])
                yield from _batches(in_order(rows, make, bury))

    return run


def _batches(made: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    tables = [table for table in made if table.num_rows]
    if tables:
        yield from pa.concat_tables(tables).combine_chunks().to_batches()
