"""`spark.read.format("holdfast")`: what is there when the query is planned, read by as many tasks as wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.spark.errors import BadOption, DataLost, with_code
from holdfast.spark.fetching import Slice, data_lost
from holdfast.spark.offsets import StreamOffsets
from holdfast.spark.options import EARLIEST, LATEST, Places, SourceOptions
from holdfast.spark.reading import read_slice
from holdfast.spark.slices import Ranges, slices

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.spark.broker_places import PartitionPlace


class SlicePartition(InputPartition):
    """One task's slice, as Spark carries it to an executor; nothing to read where a query has no data."""

    def __init__(self, wanted: Slice | None) -> None:
        super().__init__(None if wanted is None else tuple(wanted))

    @property
    def slice(self) -> Slice | None:
        return None if self.value is None else Slice(*self.value)


class BatchReader(DataSourceReader):
    """The reader of one batch query. Planned on the driver, then it travels to the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from holdfast.spark.broker_places import broker_places

        with broker_places(self._options) as places:
            # A node that is behind may know an older topic of that name: then the others are asked.
            there = places.partitions(known=StreamOffsets({}, self._options.created_ms or {}))
            self._check_topics(there)
            starts = places.resolve(self._options.starting, there, EARLIEST)
            ends = places.resolve(self._options.ending, there, LATEST)
            ranges = {
                (each.topic, each.number): checked_range(
                    self._options, each, starts[each.topic, each.number], ends[each.topic, each.number]
                )
                for each in there
            }
            ranges = self._narrowed(ranges)
            begins_at_ms = self._begins_at_ms()
            if begins_at_ms is not None:
                wanted = [each for each in there if (each.topic, each.number) in ranges]
                firsts = places.resolve(Places(timestamp_ms=begins_at_ms), wanted, EARLIEST)
                ranges = {place: (max(start, firsts[place]), end) for place, (start, end) in ranges.items()}
        created_ms = {each.topic: each.created_ms for each in there}
        planned = slices(ranges, created_ms, self._options.partitions_min)
        return [SlicePartition(each) for each in planned] or [SlicePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        return read_slice(self._options, self._schema, partition.slice)

    def _check_topics(self, there: list[PartitionPlace]) -> None:
        """The topics are those for which somebody has chosen the offsets, which mean nothing in others."""
        for topic, created_ms in (self._options.created_ms or {}).items():
            if any(each.topic == topic and each.created_ms != created_ms for each in there):
                raise with_code(DataLost, f"the topic {topic} was deleted and made anew since the query was made")

    def _narrowed(self, ranges: Ranges) -> Ranges:
        """For readers that know from filters what is not wanted."""
        return ranges

    def _begins_at_ms(self) -> int | None:
        """The time before which nothing is wanted, for readers that know."""
        return None


def checked_range(options: SourceOptions, each: PartitionPlace, start: int, end: int) -> tuple[int, int]:
    """The range, without what has expired before it was asked for."""
    starting = options.starting
    is_time = starting.timestamp_ms is not None or starting.ago_ms is not None
    if start > end and not is_time and starting.at(each.topic, each.number, EARLIEST) != EARLIEST:
        raise with_code(
            BadOption,
            f"{each.topic}/{each.number} is to be read from offset {start} to {end}: startingOffsets is behind "
            "endingOffsets",
        )
    if start >= each.start or start >= end:
        return start, end
    if options.fail_on_data_loss:
        raise data_lost(f"{each.topic}/{each.number}: offsets {start} to {each.start - 1} have expired")
    return min(each.start, end), end
