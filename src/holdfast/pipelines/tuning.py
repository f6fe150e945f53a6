"""How Spark works while a pipeline runs: in how many pieces rows are exchanged, and with which settings of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE: Final = "spark.sql.shuffle.partitions"
# Of the bytes that are read, what one task sorts and joins: it fits into a small executor's memory.
_PIECE_BYTES: Final = 48 << 20
_PIECES_MIN: Final = 2
_PIECES_MAX: Final = 20_000


def pieces(size_bytes: int) -> int:
    """Pieces for so many bytes: Spark's usual two hundred take longer than the work where there is little."""
    return min(_PIECES_MAX, max(_PIECES_MIN, math.ceil(size_bytes / _PIECE_BYTES)))


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have Spark's settings so for a while, and then as they were."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
