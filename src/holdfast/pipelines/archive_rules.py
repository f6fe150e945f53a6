"""What an archive does next, decided without files and brokers: which offsets, where rows go, what is compacted."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from holdfast.spark.archive_format import ArchivedFile, State
from holdfast.spark.errors import ArchiveMismatch, DataLost
from holdfast.spark.offsets import PartitionKey
from holdfast.spark.slices import Ranges, limited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.spark.broker_places import PartitionPlace

# Columns that only say where a row is written: a file has all columns of its rows, and none of these.
TOPIC, DATE, HOUR = PLACE = ("_topic", "_date", "_hour")
# Where rows of a file stand: what is near in the log is near in the file, which compresses and skips best.
ORDER: Final = (*PLACE, "partition", "offset")
_HOUR_MICROS: Final = 3_600_000_000
# Files below are small in the same way, however much they differ.
_SMALL_BYTES: Final = 64 * 1024
# What one compaction takes on, so that the next batch does not wait for long.
_COMPACTED_BYTES_MAX: Final = 1 << 30

# A topic's rows of one hour.
HourKey = tuple[str, str, int]


def plan(
    state: State, there: Iterable[PartitionPlace], targets: Mapping[PartitionKey, int] | None, *, allow_gaps: bool
) -> Ranges:
    """The offsets that are not archived yet: up to where `targets` says, or to the end of what a node knows.

    A partition that is new to the archive begins where its log does now.
    """
    ranges: Ranges = {}
    for each in there:
        place = (each.topic, each.number)
        known = state.topics.get(each.topic)
        if known is not None and known.created_ms != each.created_ms:
            raise ArchiveMismatch(
                f"the topic {each.topic} was deleted and made anew since it was archived: archive the new one to "
                "another directory. Left out of the topics or the pattern of this one, as by --pattern "
                f"'(?!{re.escape(each.topic)}$)…', the others go on, and what is archived of it stays",
            )
        extent = known.partitions.get(each.number) if known is not None else None
        start = each.start if extent is None else extent.end
        if start < each.start:
            if not allow_gaps:
                raise DataLost(
                    f"{each.topic}/{each.number}: offsets {start} to {each.start - 1} expired before they were "
                    "archived; with --allow-gaps the archive goes on behind them, and remembers the gap",
                )
            start = each.start
        end = each.end if targets is None else targets.get(place, start)
        ranges[place] = (start, max(start, end))
    return ranges


def next_batch(ranges: Ranges, there: Iterable[PartitionPlace], batch_bytes: int) -> Ranges:
    """The first of these offsets, of about that many bytes by the mean size of what is stored; none that are empty."""
    known = list(there)
    messages = sum(each.end - each.start for each in known)
    mean_bytes = max(1.0, sum(each.size_bytes for each in known) / max(1, messages))
    chosen = limited(ranges, max(1, int(batch_bytes / mean_bytes)))
    return {place: (start, end) for place, (start, end) in chosen.items() if end > start}


def late_beginnings(state: State, ranges: Ranges) -> dict[PartitionKey, int]:
    """Where partitions begin that are new to the archive and have lost their oldest messages before it came."""
    known = {(name, number) for name, topic in state.topics.items() for number in topic.partitions}
    return {place: start for place, (start, _) in ranges.items() if start and place not in known}


def count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def placed(rows: DataFrame) -> DataFrame:
    """Rows with the topic, the day and the hour, by UTC and whatever the session's time zone, they are written to."""
    from pyspark.sql import functions as f

    hours = f.floor(f.unix_micros("timestamp") / f.lit(_HOUR_MICROS))
    day = f.date_add(f.lit("1970-01-01").cast("date"), f.floor(hours / 24).cast("int"))
    return rows.withColumns(
        {TOPIC: f.col("topic"), DATE: day.cast("string"), HOUR: f.pmod(hours, f.lit(24)).cast("int")}
    )


def runs(rows: DataFrame) -> DataFrame:
    """The stretches of offsets that follow one another, by topic and partition: the first and the last of each."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    ordered = Window.partitionBy("topic", "partition").orderBy("offset")
    # Of offsets that follow one another the difference to their count stays the same.
    numbered = rows.select(
        "topic", "partition", "offset", (f.col("offset") - f.row_number().over(ordered)).alias("run")
    )
    grouped = numbered.groupBy("topic", "partition", "run")
    return grouped.agg(f.min("offset").alias("first"), f.max("offset").alias("last")).drop("run")


def missing(found: Iterable[tuple[int, int]], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The stretches from `start` to `end` that are in none of the runs found, each as its first offset and its end."""
    borders = ((start - 1, start - 1), *sorted(found), (end, end))
    return tuple((before + 1, after) for (_, before), (after, _) in pairwise(borders) if after > before + 1)


def to_compact(
    files: Iterable[ArchivedFile], *, files_min: int, file_bytes: int, hours_max: int = 16
) -> list[list[ArchivedFile]]:
    """Files of one hour that become one, for some hours: where there are `files_min` of about the same size.

    About the same is within a factor of `files_min`, so a row is rewritten once for each such step up to `file_bytes`,
    and of each step an hour keeps fewer than `files_min` files. No file becomes larger than twice `file_bytes`.
    """
    alike: dict[tuple[HourKey, int], list[ArchivedFile]] = {}
    for file in files:
        if file.size_bytes < file_bytes:
            step = max(0, int(math.log(max(1, file.size_bytes) / _SMALL_BYTES, files_min)))
            alike.setdefault(((file.topic, file.date, file.hour), step), []).append(file)
    chosen: dict[HourKey, list[ArchivedFile]] = {}
    size_bytes = 0
    for (hour, _), some in sorted(alike.items(), key=lambda item: item[0]):
        if len(some) < files_min or hour in chosen or len(chosen) == hours_max or size_bytes > _COMPACTED_BYTES_MAX:
            continue
        chosen[hour] = _filling(sorted(some, key=lambda file: file.path), file_bytes)
        size_bytes += sum(file.size_bytes for file in chosen[hour])
    return list(chosen.values())


def _filling(files: list[ArchivedFile], file_bytes: int) -> list[ArchivedFile]:
    """The first of these, two at least, that together are large enough to be left alone from then on."""
    sizes = list(accumulate(file.size_bytes for file in files))
    return files[: max(2, 1 + bisect_left(sizes, file_bytes))]
