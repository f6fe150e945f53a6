"""Numbers in steps, fine enough for people and few enough to be counted one by one: what percentiles are made of.

A step is the number itself below `EXACT_BELOW`, and above it the number rounded up to three digits. So a percentile of
steps is exact for small numbers and at most one percent too high for large ones, and what is counted never grows with
the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

EXACT_BELOW: Final = 1000


def stepped(number: Column) -> Column:
    """The step of a whole number."""
    step = f.pow(f.lit(10.0), f.floor(f.log10(f.greatest(number, f.lit(1)))) - 2)
    coarse = (f.ceil(number / step) * step).cast("bigint")
    return f.when(number < EXACT_BELOW, number).otherwise(coarse)
