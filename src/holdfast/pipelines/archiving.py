"""`holdfast pipeline archive`: topics to Parquet, by topic, date and hour, each offset once, small files compacted.

Each round reads the offsets behind those that are archived, writes their rows to files that nobody counts yet, looks
whether every offset is there, and commits the files together with the new ends (`spark/archive_files.py` has the
directory and every crash case). The archive alone says how far it is: there is no checkpoint that could disagree with
it. Whoever is killed leaves files that no commit knows. A compaction is a commit that replaces files by others with the
same rows.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from holdfast.model.errors import HoldfastError
from holdfast.pipelines import archive_rules, rounds
from holdfast.pipelines.archive_settings import ArchiveSettings
from holdfast.pipelines.errors import PipelineFailed, uncoded
from holdfast.pipelines.streams import INTERVAL_S_DEFAULT, BatchFigures, Reports, StreamRun
from holdfast.spark.archive_files import PARQUET, ROWS, ArchiveWriter, address
from holdfast.spark.archive_format import ArchivedFile, ArchivedTopic, Commit, Kind, extended
from holdfast.spark.archive_history import archived_rows, live_rows
from holdfast.spark.errors import ArchiveMismatch, DataLost
from holdfast.spark.offsets import PartitionKey, StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.broker_places import BrokerPlaces, PartitionPlace
    from holdfast.spark.slices import Ranges

_log: Final = logging.getLogger("holdfast.pipelines")
# Settings of a session of the archive's own. Times that a Parquet file of our days would have as 96 bits, or that a
# calendar before 1582 would have, are whole microseconds of the one calendar, as every reader expects them.
_SESSION_CONF: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_WRITE_OPTIONS: Final = {
    "compression": "zstd",
    # Files of tasks come to their place when the whole job is done, not each when its task is.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A session's limit would make as many files of a compaction as it had before, again and again.
    "maxRecordsPerFile": "0",
}


def archive_topics(
    spark: SparkSession,
    to: str,
    settings: ArchiveSettings,
    *,
    once: bool = False,
    interval_s: float = INTERVAL_S_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    reports: Reports | None = None,
) -> StreamRun:
    """Archive topics to a directory: `once` all that is there now, else until `stop` is set."""
    from holdfast.spark.broker_places import broker_places
    from holdfast.spark.options import parse_options

    chosen = {"subscribePattern": settings.pattern} if settings.pattern is not None else {}
    options = {"servers": settings.servers, "subscribe": ",".join(settings.topics), **chosen}
    own = spark.newSession()
    for name, value in _SESSION_CONF.items():
        own.conf.set(name, value)
    stop = stop or threading.Event()
    try:
        parsed = parse_options({name: text for name, text in options.items() if text})
        with ArchiveWriter(to).opened() as archive, broker_places(parsed) as places:
            archiver = Archiver(own, archive, places, settings, tell)
            archiver.begin(once=once)

            def step() -> BatchFigures | None:
                figures = archiver.batch()
                goes_on = True
                # Somebody who wants the end does not wait for files to be rewritten. Who wants all of it once does.
                while goes_on and not stop.is_set():
                    goes_on = archiver.compact() and once and figures is None
                return figures

            return rounds.run(
                own, step, name="archive", once=once, interval_s=interval_s, tell=tell, stop=stop, reports=reports
            )
    except HoldfastError as error:
        raise uncoded(error) from error
    except OSError as error:
        raise PipelineFailed(f"the archive {to} cannot be written: {error}") from error


class Archiver:
    """Does one batch, or one compaction, of an archive that it has to itself."""

    def __init__(
        self,
        spark: SparkSession,
        archive: ArchiveWriter,
        places: BrokerPlaces,
        settings: ArchiveSettings,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._places = places
        self._settings = settings
        self._tell = tell
        self._targets: dict[PartitionKey, int] | None = None
        self._gone = frozenset(archive.state.gone)

    def begin(self, *, once: bool) -> None:
        """Look where the topics end, if that is the goal; and put the cursor where the archive is.

        It may be behind, after a crash, or ahead, where another archive had it before: and who waits for it waits for
        this one.
        """
        from holdfast.spark.progress import warn_hidden

        there = self._there()
        if once:
            self._targets = self._places.certain_ends(there)
        ranges = archive_rules.plan(self._archive.state, there, self._targets, allow_gaps=self._settings.allow_gaps)
        hidden = {topic for topic in {each.topic for each in there} if not self._places.has_own_cursors(topic)}
        for topic in sorted(hidden):
            warn_hidden(self._settings.group, topic)
        starts = {place: start for place, (start, _) in ranges.items() if place[0] not in hidden}
        self._places.keep_places(self._settings.group, starts)

    # --- a batch ------------------------------------------------------------------------------------

    def batch(self) -> BatchFigures | None:
        """Archive what comes next; None where nothing does."""
        began = time.monotonic()
        there = self._there()
        state, settings = self._archive.state, self._settings
        waiting = archive_rules.plan(state, there, self._targets, allow_gaps=settings.allow_gaps)
        ranges = archive_rules.next_batch(waiting, there, settings.batch_bytes)
        if not ranges:
            if self._gone != frozenset(state.gone):
                self._commit("note")
            return None
        for (topic, number), start in archive_rules.late_beginnings(state, ranges).items():
            _log.warning("%s/%d begins at offset %s: older messages have expired", topic, number, f"{start:,}")
        self._tell(f"archives {archive_rules.count(ranges):,} messages")
        rows = live_rows(
            self._spark,
            settings.servers,
            ranges,
            {each.topic: each.created_ms for each in there},
            tasks_min=self._spark.sparkContext.defaultParallelism,
            fail_on_data_loss=not settings.allow_gaps,
        )
        counted, read = _counted(rows)
        files = self._written(archive_rules.placed(counted), self._archive.new_place())
        self._check_topics([each for each in there if (each.topic, each.number) in ranges])
        missing = self._missing(files, ranges, read())
        self._commit("batch", added=files, topics=self._extended(ranges, missing, there))
        self._show_progress({place: end for place, (_, end) in ranges.items()}, there)
        offsets: dict[str, dict[str, int]] = {}
        for (topic, number), (_, end) in sorted(ranges.items()):
            offsets.setdefault(topic, {})[str(number)] = end
        return BatchFigures(
            batch=self._archive.state.version,
            rows=sum(file.rows for file in files),
            seconds=time.monotonic() - began,
            lag=archive_rules.count(waiting) - archive_rules.count(ranges),
            offsets=offsets,
        )

    def _there(self) -> list[PartitionPlace]:
        """The partitions that are chosen; a topic that went is asked for at every broker once, and then never again."""
        known, pattern = self._archive.state.topics, self._settings.pattern
        chosen = StreamOffsets({}, {name: topic.created_ms for name, topic in known.items()}, gone=self._gone)
        there = self._places.partitions(is_missing_fine=pattern is not None, known=chosen)
        missing = known.keys() - {each.topic for each in there}
        self._gone = frozenset(
            name for name in missing if name in self._gone or (pattern is not None and re.fullmatch(pattern, name))
        )
        return there

    def _check_topics(self, planned: list[PartitionPlace]) -> None:
        """What was read is of the topics that were planned: none was made anew while it was read."""
        now = {each.topic: each.created_ms for each in self._there()}
        for each in planned:
            if now.get(each.topic) != each.created_ms:
                raise ArchiveMismatch(f"the topic {each.topic} went, or was made anew, while it was read")

    def _missing(
        self, files: list[ArchivedFile], ranges: Ranges, read: int
    ) -> dict[PartitionKey, tuple[tuple[int, int], ...]]:
        """The stretches of the batch that the log did not have any more; there are none unless gaps are allowed."""
        wanted, found = archive_rules.count(ranges), sum(file.rows for file in files)
        # What was read and is in no file is there still: whoever allows gaps does not mean that.
        if found != read or found > wanted or (found < wanted and not self._settings.allow_gaps):
            raise DataLost(
                f"{wanted:,} messages were to be archived, {read:,} were read, and {found:,} were written; nothing of "
                "the batch counts",
            )
        if found == wanted:
            return {}
        runs: dict[PartitionKey, list[tuple[int, int]]] = {place: [] for place in ranges}
        for row in archive_rules.runs(self._read(files)).collect() if files else ():
            runs[row["topic"], row["partition"]].append((row["first"], row["last"]))
        return {place: archive_rules.missing(runs[place], *each) for place, each in ranges.items()}

    def _extended(
        self,
        ranges: Ranges,
        missing: dict[PartitionKey, tuple[tuple[int, int], ...]],
        there: list[PartitionPlace],
    ) -> dict[str, ArchivedTopic]:
        topics: dict[str, ArchivedTopic] = {}
        for each in there:
            place = (each.topic, each.number)
            if place in ranges:
                known = self._archive.state.topics.get(each.topic)
                before = known.partitions.get(each.number) if known is not None else None
                topic = topics.setdefault(each.topic, ArchivedTopic(created_ms=each.created_ms, partitions={}))
                topic.partitions[each.number] = extended(before, *ranges[place], missing.get(place, ()))
        return topics

    def _show_progress(self, reached: dict[PartitionKey, int], there: list[PartitionPlace]) -> None:
        from holdfast.spark.progress import publish_progress

        created_ms = {each.topic: each.created_ms for each in there}
        publish_progress(self._places.client, StreamOffsets(reached, created_ms, self._settings.group))

    # --- a compaction -------------------------------------------------------------------------------

    def compact(self) -> bool:
        """Make one file of many small ones, in some hours; says whether there was anything to do."""
        settings = self._settings
        chosen = archive_rules.to_compact(
            self._archive.state.files.values(), files_min=settings.compact_files, file_bytes=settings.file_bytes
        )
        old = [file for some in chosen for file in some]
        if not old:
            return False
        self._tell(f"compacts {len(old):,} files to {len(chosen):,}")
        rows = archive_rules.placed(self._read(old)).repartition(len(chosen), *archive_rules.PLACE)
        new = self._written(rows, self._archive.new_place())
        if _rows_by_hour(new) != _rows_by_hour(old):
            raise DataLost(f"{len(old)} files were to be compacted, and their rows are not those of the new")
        self._commit("compaction", added=new, replaced=old)
        return True

    # --- files --------------------------------------------------------------------------------------

    def _read(self, files: list[ArchivedFile]) -> DataFrame:
        return archived_rows(self._spark, map(self._archive.address_of, files))

    def _written(self, rows: DataFrame, place: Path) -> list[ArchivedFile]:
        """Write rows, which say where each goes, to a place of their own; what is there then."""
        ordered = rows.sortWithinPartitions(*archive_rules.ORDER)
        writer = ordered.write.options(**_WRITE_OPTIONS).partitionBy(*archive_rules.PLACE)
        try:
            writer.parquet(address(place))
        except BaseException:
            self._archive.discard(place)
            raise
        return sorted(_files_of(self._archive.files, place), key=lambda file: file.path)

    def _commit(
        self,
        kind: Kind,
        *,
        added: list[ArchivedFile] | None = None,
        replaced: list[ArchivedFile] | None = None,
        topics: dict[str, ArchivedTopic] | None = None,
    ) -> None:
        now_ms = int(time.time() * 1000)
        state = self._archive.state
        expired_ms = now_ms - int(self._settings.keep_replaced_s * 1000)
        self._archive.commit(
            Commit(
                version=state.version + 1,
                time_ms=now_ms,
                kind=kind,
                added=tuple(added or ()),
                replaced=tuple(replaced or ()),
                forgotten=tuple(sorted(path for path, at_ms in state.retired.items() if at_ms < expired_ms)),
                topics=topics or {},
                gone=tuple(sorted(self._gone)),
            )
        )


def _counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """The same rows, and how many of them were read once all are."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observed = Observation()
    return rows.observe(observed, f.count(f.lit(1)).alias("rows")), lambda: int(observed.get["rows"])


def _files_of(root: Path, place: Path) -> Iterator[ArchivedFile]:
    """What Spark has written, under its final name. A crash in between leaves files that no commit knows."""
    import pyarrow.parquet as pq

    for written in list(place.glob(f"*/*/*/*{PARQUET}")):
        # The sums that Hadoop writes beside it have the old name.
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
        path = written.rename(written.with_suffix(ROWS))
        # Names of topics need no escaping, so directories have them as they are.
        topic, date, hour = (part.partition("=")[2] for part in path.parent.relative_to(place).parts)
        yield ArchivedFile(
            path=str(path.relative_to(root)),
            topic=unquote(topic),
            date=date,
            hour=int(hour),
            rows=pq.read_metadata(path).num_rows,
            size_bytes=path.stat().st_size,
        )


def _rows_by_hour(files: list[ArchivedFile]) -> dict[archive_rules.HourKey, int]:
    rows: dict[archive_rules.HourKey, int] = {}
    for file in files:
        hour = (file.topic, file.date, file.hour)
        rows[hour] = rows.get(hour, 0) + file.rows
    return rows
