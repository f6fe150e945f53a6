"""`spark.readStream.format("holdfast")`: micro-batches between offsets that Spark keeps in its checkpoint.

Which messages a batch has is decided once, by its two offsets, and stored offsets never mean another message: so a
batch that is run again, by a task, a job or another driver, has the same rows, and with a sink that takes a batch once,
each message counts once.

Spark asks for the first offset more than once, and again when a query is restarted before its first batch. "The end"
would be another place each time; so it is looked up once, and where the query has a `groupId` it is kept in the
brokers, as the place of the group's cursor, before Spark is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.spark.errors import BadOption, with_code
from holdfast.spark.fetching import data_lost
from holdfast.spark.offsets import PartitionKey, StreamOffsets, from_json
from holdfast.spark.options import LATEST, Places, SourceOptions
from holdfast.spark.reading import read_slice
from holdfast.spark.slices import limited, slices
from holdfast.spark.source_batch import SlicePartition

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.spark.broker_places import BrokerPlaces, PartitionPlace

# Topics that are gone and whose offsets are kept.
_GONE_MAX = 50

_log = logging.getLogger("holdfast.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query: plans in one process of the driver for as long as the query runs.

    Only the options and the schema travel to the executors.
    """

    def __init__(self, options: SourceOptions, schema: StructType, places: BrokerPlaces | None = None) -> None:
        if options.ending != Places():
            raise with_code(BadOption, "a stream has no end: endingOffsets and endingTimestamp are for spark.read")
        if options.created_ms is not None:
            raise with_code(
                BadOption, "createdMs is for spark.read: a stream keeps in its checkpoint which topics it reads"
            )
        self._options = options
        self._schema = schema
        self._kept_places = places
        self._initial: StreamOffsets | None = None
        # Where the group's cursors were moved to last.
        self._shown: dict[PartitionKey, int] | None = None
        self._known_ends: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._is_target_whole = False

    def __getstate__(self) -> dict[str, Any]:
        # Executors read slices; connections and what was planned stay here.
        kept_here = ("_kept_places", "_initial", "_shown", "_known_ends", "_target")
        return {**self.__dict__, **dict.fromkeys(kept_here)}

    @property
    def _places(self) -> BrokerPlaces:
        from holdfast.spark.broker_places import BrokerPlaces

        if self._kept_places is None:
            self._kept_places = BrokerPlaces(self._options)
        return self._kept_places

    # --- where to begin ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._first_places()
            self._shown = self._initial.places  # nothing is done yet
        return self._initial.as_json()

    def _first_places(self) -> StreamOffsets:
        there = self._places.partitions(is_missing_fine=self._options.pattern is not None)
        starting, group = self._options.starting, self._options.group_id
        starts = self._places.resolve(starting, there, LATEST)
        if group is not None:
            moving = {place for place in starts if starting.is_moving(*place, LATEST)}
            topics = {topic for topic, _ in moving}
            self._check_cursors({topic for topic, _ in starts})
            found = self._places.kept_places(group, topics)
            for topic in sorted(topics - {topic for topic, _ in found}):
                found |= self._places.keep_everywhere(group, topic, starting.moving_word)
            kept = {place: offset for place, offset in found.items() if place in moving}
            self._places.keep_places(group, {place: at for place, at in starts.items() if place not in kept})
            starts |= kept
        return self._offsets(starts, there)

    def _check_cursors(self, topics: set[str]) -> None:
        for topic in sorted(topics):
            if not self._places.has_own_cursors(topic):
                raise with_code(
                    BadOption,
                    f"{topic} has a processor, so its cursors stand in {topic}.processed: subscribe to that, or leave "
                    "groupId away",
                )

    # --- where to end -----------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        there = self._places.partitions(is_missing_fine=True)
        ends = self._places.certain_ends(there)
        self._target = self._offsets(ends, [each for each in there if (each.topic, each.number) in ends])
        self._is_target_whole = False

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = from_json(start)
        there = self._places.partitions(is_missing_fine=True, known=known)
        begin, ends = self._from_here_on(known, there)
        self._show_done(known, there)
        self._known_ends = self._offsets(ends, there)
        if self._target is not None:
            if not self._is_target_whole:
                self._target = self._with_those_missed(self._target, known, there)
                self._is_target_whole = True
            # Not what a node knows, which may be less: the query would end before the target.
            targets = self._target.of_topics({each.topic: each.created_ms for each in there})
            ends = {place: max(start, targets.get(place, start)) for place, start in begin.items()}
        ranges = {place: (begin[place], end) for place, end in ends.items()}
        for offsets_max in self._offset_limits(limit, there):
            ranges = limited(ranges, offsets_max)
        reached = self._offsets({place: end for place, (_, end) in ranges.items()}, there)
        reached = reached._replace(began=_began(known, reached, begin))
        return self._with_those_gone(reached, known).as_json()

    def _show_done(self, done: StreamOffsets, there: list[PartitionPlace]) -> None:
        """Move the group's cursors to where the next batch begins.

        Spark asks for that batch when the one before it is done, also when there will be none, and when a query is
        started again on its checkpoint. It calls `commit` only when there is a next batch.
        """
        if self._options.group_id is None or done.places == self._shown:
            return
        from holdfast.spark.progress import publish_progress

        self._shown = done.places
        # In a topic that was made anew, offsets of the one before mean nothing.
        places = done.of_topics({each.topic: each.created_ms for each in there})
        publish_progress(self._places.client, done._replace(places=places, group=self._options.group_id))

    def _with_those_missed(
        self, target: StreamOffsets, known: StreamOffsets, there: list[PartitionPlace]
    ) -> StreamOffsets:
        """A target with the topics that the query has read before, and that the node which set it has not heard of."""
        missed = [
            each
            for each in there
            if known.created_ms.get(each.topic) == each.created_ms != target.created_ms.get(each.topic)
        ]
        if not missed:
            return target
        return target._replace(
            places=target.places | self._places.certain_ends_anywhere(missed),
            created_ms=target.created_ms | {each.topic: each.created_ms for each in missed},
        )

    def _with_those_gone(self, reached: StreamOffsets, known: StreamOffsets) -> StreamOffsets:
        """Topics that are not there keep their offsets: one that comes back is read on, not again.

        Not for ever: where topics come and go, as one for each day, the oldest ones are dropped.
        """
        gone = filter(self._options.chooses, known.created_ms.keys() - reached.created_ms.keys())
        kept = frozenset(sorted(gone, key=lambda topic: (known.created_ms[topic], topic))[-_GONE_MAX:])
        return reached._replace(
            gone=kept,
            places=reached.places | {place: offset for place, offset in known.places.items() if place[0] in kept},
            created_ms=reached.created_ms | {topic: known.created_ms[topic] for topic in kept},
            began={
                **reached.began,
                **{place: known.began.get(place, at) for place, at in known.places.items() if place[0] in kept},
            },
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._known_ends is None else self._known_ends.as_json()

    def _from_here_on(
        self, begin: StreamOffsets, there: list[PartitionPlace]
    ) -> tuple[dict[PartitionKey, int], dict[PartitionKey, int]]:
        """Where each partition is to be read from, and its end; partitions that are new are read from their start."""
        starts, ends = {}, {}
        for each in there:
            place = (each.topic, each.number)
            start = begin.places.get(place, each.start)
            if begin.created_ms.get(each.topic, each.created_ms) != each.created_ms:
                if each.topic not in begin.gone:  # else it was told of when it went
                    self._lost(f"the topic {each.topic} was deleted and made anew")
                start = each.start
            elif start < each.start:
                self._lost(
                    f"{each.topic}/{each.number}: offsets {start} to {each.start - 1} expired before they were read"
                )
                start = each.start
            starts[place] = start
            # The node that answers may be behind the one that was asked before: an end never moves back.
            ends[place] = max(start, each.end)
        gone = begin.created_ms.keys() - {topic for topic, _ in starts} - begin.gone
        for topic in sorted(filter(self._options.chooses, gone)):
            self._lost(f"the topic {topic} is gone")
        return starts, ends

    def _offset_limits(self, limit: ReadLimit, there: list[PartitionPlace]) -> Iterator[int]:
        """Every limit that holds, as a number of messages."""
        if isinstance(limit, ReadMaxRows):
            yield limit.max_rows
        bytes_max = [limit.max_bytes] if isinstance(limit, ReadMaxBytes) else []
        if self._options.bytes_per_trigger_max is not None and isinstance(limit, ReadMaxRows):
            bytes_max.append(self._options.bytes_per_trigger_max)
        for size_max in bytes_max:
            messages = sum(each.end - each.start for each in there)
            mean_bytes = max(1.0, sum(each.size_bytes for each in there) / max(1, messages))
            yield max(1, int(size_max / mean_bytes))

    # --- a batch ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        ranges = {place: (_begins_at(place, begin, stop), stop_at) for place, stop_at in stop.places.items()}
        return [SlicePartition(each) for each in slices(ranges, stop.created_ms, self._options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        return read_slice(self._options, self._schema, partition.slice)

    def stop(self) -> None:
        if self._kept_places is not None:
            self._kept_places.close()

    def _offsets(self, places: dict[PartitionKey, int], there: list[PartitionPlace]) -> StreamOffsets:
        return StreamOffsets(
            places,
            {each.topic: each.created_ms for each in there},
            self._options.group_id,
            self._options.url if self._options.group_id is not None else "",
        )

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_lost(text)
        _log.warning("%s; going on without it", text)


def _is_new(place: PartitionKey, before: StreamOffsets, after: StreamOffsets) -> bool:
    """Whether a partition came between the two, or its topic was made anew."""
    created_ms = after.created_ms[place[0]]
    return place not in before.places or before.created_ms.get(place[0], created_ms) != created_ms


def _began(known: StreamOffsets, reached: StreamOffsets, begin: dict[PartitionKey, int]) -> dict[PartitionKey, int]:
    """Where each partition was begun, now or before."""
    return {
        place: begin[place] if _is_new(place, known, reached) else known.began.get(place, begin[place])
        for place in reached.places
    }


def _begins_at(place: PartitionKey, begin: StreamOffsets, stop: StreamOffsets) -> int:
    """Where a partition is read from in the batch between the two.

    Its first batch says so itself: when that is run again, by a query that was started again, the partition may be
    another one, or be gone, and the end of a topic be elsewhere. Without it, as in a checkpoint that was not written
    by this version, what the topic had is asked for from its start, and whoever reads tells what is missing.
    """
    if _is_new(place, begin, stop):
        return stop.began.get(place, 0)
    if place in begin.began:
        return begin.places[place]
    return stop.began.get(place, begin.places[place])
