"""Readers as Spark makes them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.types import StructType

from holdfast.spark.broker_places import BrokerPlaces
from holdfast.spark.fetching import Slice
from holdfast.spark.options import parse_options
from holdfast.spark.schema import source_schema
from holdfast.spark.source_batch import SlicePartition
from holdfast.spark.source_stream import StreamReader


def schema(*, with_headers: bool = False) -> StructType:
    found = source_schema(None, with_headers=with_headers)
    assert isinstance(found, StructType)
    return found


def stream_reader(servers: str, places: BrokerPlaces | None = None, **options: str) -> StreamReader:
    return StreamReader(parse_options({"servers": servers, **options}), schema(), places)


@contextmanager
def streaming(servers: str, **options: str) -> Iterator[StreamReader]:
    """A reader that is stopped behind the block."""
    reader = stream_reader(servers, None, **options)
    try:
        yield reader
    finally:
        reader.stop()


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
    """The slices of a batch."""
    found = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, SlicePartition) and partition.slice is not None
        found.append(partition.slice)
    return found
