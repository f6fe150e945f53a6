"""All that was ever in a topic: what is archived and what is in the log, as one DataFrame without gap or overlap.

::

    orders = holdfast.spark.history("orders", archive="archive", servers="127.0.0.1:8090")

The archive says up to which offset it has each partition, in the same commit that says which files count; the log is
read from exactly there on. Both move meanwhile: the archive grows, files are replaced by larger ones, retention deletes
the start of the log. So the archive is looked at first and the log then; where the log begins behind the end of the
archive the archive is looked at again, since what was deleted may have been archived first. Only where the archive
stands still does nobody have what is between: `data_lost`.

What it gives is what was there when it was called. Files that are replaced later stay for a while, which the archive's
`--keep-replaced` says; a query that is run after that, or after what it reads of the log has expired or its topic was
made anew, fails and is right again with another call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from holdfast.spark.archive_files import ArchiveReader
from holdfast.spark.archive_format import ArchivedTopic, State
from holdfast.spark.errors import ArchiveMismatch, BadOption, DataLost
from holdfast.spark.offsets import StreamOffsets
from holdfast.spark.schema import COLUMNS
from holdfast.spark.slices import Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.broker_places import BrokerPlaces, PartitionPlace

# Spark writes the sums of pages and looks at none of them by itself.
_VERIFY: Final = "parquet.page.verify-checksum.enabled"
ROW_SCHEMA: Final = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])


def history(
    topic: str,
    *,
    archive: str,
    servers: str | None = "127.0.0.1:8090",
    spark: SparkSession | None = None,
    allow_gaps: bool = False,
    tasks_min: int | None = None,
) -> DataFrame:
    """A topic from where its archive begins to the end of its log; with `servers=None` only what is archived.

    The columns are those of the source, with headers. `allow_gaps` leaves out what neither has, instead of failing.
    """
    chosen = spark if spark is not None else _session()
    reader = ArchiveReader(archive)
    if not reader.exists():
        raise BadOption(f"{archive} is no archive; holdfast pipeline archive makes one")
    live: Ranges = {}
    created_ms = 0
    if servers is None:
        state = reader.load()
        if topic not in state.topics:
            raise BadOption(f"{archive} has no topic {topic}")
        _check_gaps(topic, state.topics[topic], {}, allow_gaps=allow_gaps)
    else:
        state, live, created_ms = _joined(topic, reader, servers, allow_gaps=allow_gaps)
    files = sorted((file for file in state.files.values() if file.topic == topic), key=lambda file: file.path)
    parts = []
    if files:
        parts.append(archived_rows(chosen, map(reader.address_of, files)))
    if servers is not None and any(end > start for start, end in live.values()):
        parts.append(
            live_rows(chosen, servers, live, {topic: created_ms}, tasks_min=tasks_min, fail_on_data_loss=not allow_gaps)
        )
    if not parts:
        return chosen.createDataFrame([], ROW_SCHEMA)
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def archived_rows(spark: SparkSession, addresses: Iterable[str]) -> DataFrame:
    """What is in files of an archive. A page whose sum is not that of its bytes fails whoever reads it."""
    return spark.read.schema(ROW_SCHEMA).option(_VERIFY, "true").parquet(*addresses)


def live_rows(
    spark: SparkSession,
    servers: str,
    ranges: Ranges,
    created_ms: Mapping[str, int],
    *,
    tasks_min: int | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The rows of these offsets, with headers; ranges that are empty are left out.

    Of these very topics: a query is planned when it is run, and a topic may be another one by then.
    """
    assigned: dict[str, list[int]] = {}
    bounds: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]] = ({}, {})
    for (topic, number), places in sorted(ranges.items()):
        if places[1] > places[0]:
            assigned.setdefault(topic, []).append(number)
            for side, place in zip(bounds, places, strict=True):
                side.setdefault(topic, {})[str(number)] = place
    options: dict[str, Any] = {
        "servers": servers,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(bounds[0]),
        "endingOffsets": json.dumps(bounds[1]),
        "includeHeaders": "true",
        "createdMs": json.dumps({topic: created_ms[topic] for topic in assigned}),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        **({} if tasks_min is None else {"minPartitions": str(tasks_min)}),
    }
    return spark.read.format("holdfast").options(**options).load()


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    from holdfast.spark.spark_session import session

    return SparkSession.getActiveSession() or session()


def _joined(topic: str, reader: ArchiveReader, servers: str, *, allow_gaps: bool) -> tuple[State, Ranges, int]:
    """The archive, the offsets of the log that follow it, and when the topic they are of was made."""
    from holdfast.spark.broker_places import broker_places
    from holdfast.spark.options import parse_options

    state = reader.load()
    with broker_places(parse_options({"servers": servers, "subscribe": topic})) as places:
        while True:
            archived = state.topics.get(topic)
            there = _partitions(places, topic, archived)
            live = behind(topic, archived, there, places.certain_ends(there))
            if not lacks(archived, live):
                break
            state = reader.load()
            if state.topics.get(topic) == archived:
                break
    if archived is not None:
        _check_gaps(topic, archived, live, allow_gaps=allow_gaps)
    return state, live, max((each.created_ms for each in there), default=0)


def _partitions(places: BrokerPlaces, topic: str, archived: ArchivedTopic | None) -> list[PartitionPlace]:
    """A topic that was deleted has a history, and no partitions; one that nobody has ever heard of is a mistake."""
    if archived is None:
        return places.partitions()
    return places.partitions(is_missing_fine=True, known=StreamOffsets({}, {topic: archived.created_ms}))


def behind(
    topic: str, archived: ArchivedTopic | None, there: list[PartitionPlace], ends: dict[tuple[str, int], int]
) -> Ranges:
    """The offsets of each partition's log that the archive does not have: those from its end on, as far as there."""
    ranges: Ranges = {}
    for each in there:
        if archived is not None and archived.created_ms != each.created_ms:
            raise ArchiveMismatch(
                f"the archive holds another topic {topic}, which was deleted since; with servers=None it is read alone",
            )
        extent = archived.partitions.get(each.number) if archived is not None else None
        start = each.start if extent is None else max(each.start, extent.end)
        ranges[topic, each.number] = (start, max(start, ends.get((topic, each.number), start)))
    return ranges


def lacks(archived: ArchivedTopic | None, live: Ranges) -> bool:
    """Whether something is neither in the archive nor in the log behind it; a newer archive may have it.

    Also of a partition, or a whole topic, of which the archive had nothing when it was looked at.
    """
    extents = {} if archived is None else archived.partitions
    return any(start > (extents[number].end if number in extents else 0) for (_, number), (start, _) in live.items())


def _check_gaps(topic: str, archived: ArchivedTopic, live: Ranges, *, allow_gaps: bool) -> None:
    if allow_gaps:
        return
    for number, extent in sorted(archived.partitions.items()):
        start, _ = live.get((topic, number), (extent.end, extent.end))
        gaps = (*extent.gaps, *(((extent.end, start),) if start > extent.end else ()))
        if gaps:
            first, end = gaps[0]
            raise DataLost(
                f"{topic}/{number}: offsets {first} to {end - 1} are neither in the archive nor in the log; "
                "with allow_gaps=True they are left out",
            )
