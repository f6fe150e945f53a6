"""What executors do with rows: give them to a function, and make dead letters of those for which it raises.

A function gets batches and raises for a whole one. Whatever it raised for is cut in halves and given to it again, until
single rows are left: those are dead, and everything else went on, in the order in which it came. So what is made of a
row must not depend on which others are in its batch, and a function may see a row several times.

Results and dead letters are rows of one table with the column `topic`, which the sink writes in one transaction: a
message is in the target or among the dead, and never in both.

Executors have Python, numpy, pyarrow and pyspark, and pandas where a function wants it. This module, `made_rows`,
`dead_letters`, `call_limits` and `transform_state` import nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from holdfast.pipelines.call_limits import CallLimit
from holdfast.pipelines.dead_letters import dead_letter
from holdfast.pipelines.errors import BadFunction
from holdfast.pipelines.made_rows import Rules, as_given, as_made

# A function that is wrong for all rows, and what others want of this process.
NO_ROWS_FAULT: Final = (BadFunction, MemoryError, KeyboardInterrupt, GeneratorExit)


def in_order(
    rows: pa.Table, make: Callable[[pa.Table], pa.Table], bury: Callable[[pa.Table, BaseException], pa.Table]
) -> Iterator[pa.Table]:
    """What `make` makes of all rows, in their order, and what `bury` does of each single one for which it raises.

    Not every error of a message is an `Exception`: a panic in Rust is none, and neither is what `sys.exit` raises.
    """
    waiting = [rows] if rows.num_rows else []
    while waiting:
        part = waiting.pop()
        try:
            made = make(part)
        except MemoryError as error:
            raise MemoryError(f"memory ran out at {places_of(part)}") from error
        except NO_ROWS_FAULT:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, and the letter tells what
            if part.num_rows == 1:
                made = bury(part, error)
            else:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
                continue
        yield made


def places_of(rows: pa.Table) -> str:
    """Where the first and the last of some rows stand."""
    first, last = (
        "/".join(str(rows[name][at].as_py()) for name in ("topic", "partition", "offset"))
        for at in (0, rows.num_rows - 1)
    )
    return first if first == last else f"{first} to {last}"


def caller(rules: Rules) -> Callable[[Callable[[], Any], pa.Table | str], Any]:
    """Calls a function about rows, for as long as one call may take."""
    if rules.call_timeout_s is None:
        return lambda function, _: function()
    limit = CallLimit(rules.call_timeout_s)
    return lambda function, about: limit.call(function, about if isinstance(about, str) else places_of(about))


def over_batches(function: Callable[[Any], Any], rules: Rules) -> Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]:
    """For `mapInArrow`: rows that were read become rows that are written."""

    call = caller(rules)

    def make(rows: pa.Table) -> pa.Table:
        given = as_given(rows, rules.batches)
        return as_made(call(lambda: function(given), rows), rules)

    def bury(row: pa.Table, error: BaseException) -> pa.Table:
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
