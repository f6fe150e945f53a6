"""Writing to topics: `df.write` and `df.writeStream.format("holdfast")`, exactly once.

Tasks stage their rows where nobody sees them and give the driver their receipts; the driver commits the receipts of the
tasks that won under the query's id and the batch's number (docs/transactions.md), or under a name that was given,
where the number says the query, too. A task that runs twice stages twice, and one of the two is named. A driver that
dies and comes back commits the same number: if that was decided, what it staged again is dropped. The brokers keep with
the number what the batch holds (`batch_contents`): another batch under the same number is refused.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.model.errors import BadValue, HoldfastError, StagedExpired, TooLarge
from holdfast.model.limits import NUMBER_MAX, QUERY_BITS, RECEIPTS_PER_COMMIT_MAX
from holdfast.spark.batch_contents import NO_ROWS, Place, RowSum, contents, differs, is_same, place_of, summed
from holdfast.spark.errors import TooManyDead, WriterAhead, with_code
from holdfast.spark.sink_options import DeadMax, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.spark.sink_calls import SinkCalls, Standing

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
# What is left behind otherwise does no harm: nobody waits for it as long as for the rows.
_CLEANING_S_MAX: Final = 10.0

# What a message has of its own. Where it goes may change, as when tasks are cut anew.
_SUMMED: Final = ("value", "key", "id", "headers")

_BATCHES_MAX: Final = NUMBER_MAX >> QUERY_BITS

_log = logging.getLogger("holdfast.spark")


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged, and for whom."""

    writer: str
    number: int
    receipts: list[str]
    # A task that was told that the number is committed already stages nothing, and only sums its rows.
    is_done: bool = False
    rows: RowSum = NO_ROWS
    # Dead letters among them, and what the first one says.
    dead: int = 0
    such_as: str = ""


class BatchWriter(DataSourceArrowWriter):
    """A job: one transaction of a writer that is not used again, or of one whose jobs are numbered."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = options.writer or f"spark-{uuid.uuid4()}"
        self._number = options.writer_batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._options, self._writer, self._number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        place = None if self._options.writer_batch is None else place_of(self._options.checkpoint, self._number)
        is_new = _commit(self._options, self._writer, self._number, messages, place)
        if self._options.writer is None:
            # The rows are there: a job that failed now would be run again, and they would be there twice.
            _clean_up(self._options, lambda calls: calls.forget(self._writer), f"forget the writer {self._writer}")
        elif not is_new:
            _log.warning(
                "a job of the writer %s was committed before as number %d: its rows are not written again",
                self._writer,
                self._number,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.writer_batch is not None:
            return  # as with a query: another driver may be at it, and what it staged goes when the number is committed

        def drop(calls: SinkCalls) -> None:
            calls.abort(self._writer, "the job failed")
            if self._options.writer is None:
                calls.forget(self._writer)

        _clean_up(self._options, drop, f"drop what {self._writer} has staged, which will expire")


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query: a transaction for each of its batches."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options._replace(is_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None and batch is not None, "a task of a streaming query knows its query and its batch"
        if self._options.writer is None:
            return stage_rows(self._options, f"spark-{query}", int(batch), iterator)
        return stage_rows(self._options, self._options.writer, batch_number(query, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # One writer: all tasks are of one query. Spark has a task even for a batch without rows; without any task there
        # would be nothing to commit.
        for writer, number in {(each.writer, each.number) for each in messages if isinstance(each, Staged)}:
            if self._options.writer is not None:
                _check_is_ours(self._options, writer, number)
            if not _commit(self._options, writer, number, messages, place_of(self._options.checkpoint, batchId)):
                _log.warning("batch %s of %s was committed before: it is not written again", batchId, writer)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was staged is dropped when the batch is written again, or expires: another driver may be at it."""


def batch_number(query: str, batch: int) -> int:
    """The number of a batch under a name that was given: no two queries have the same one, whoever took the name.

    So a number that is committed already was committed by this very query, and no rows of another are taken for its
    own. What is compared is part of the query's id, which lives in the checkpoint.
    """
    if not 0 <= batch < _BATCHES_MAX:
        raise with_code(
            BadValue,
            f"batch {batch} of a query with a writer: its batches are numbered up to {_BATCHES_MAX - 1}. Start the "
            "query with a new checkpoint and another writer",
        )
    digest = hashlib.sha256(query.encode()).digest()
    return batch << QUERY_BITS | int.from_bytes(digest[:8], "big") >> (64 - QUERY_BITS)


def _check_is_ours(options: SinkOptions, writer: str, number: int) -> None:
    """Refuse a batch under a name that somebody else has used last: a query of another checkpoint, or a job.

    Two that begin at the same moment may both get through here. Their numbers differ, so neither is taken for the
    other: the lower one is refused when it is committed, or else both are written, and one is refused next time.
    """
    with closing(_calls(options)) as calls:
        last = calls.last_number(writer)
    if last is not None and (last ^ number) % (1 << QUERY_BITS):
        raise with_code(
            WriterAhead,
            f"somebody else has committed under the writer {writer} last, {_told(last)}, and this is batch "
            f"{number >> QUERY_BITS} of another query: it is not written now. The checkpoint is a new one, or two "
            "queries have the same writer. Should this query have used the name before, this very batch may have been "
            f"written then: look into the topic before you go on. {_what_to_do(writer)}",
        )


def _commit(
    options: SinkOptions,
    writer: str,
    number: int,
    messages: Sequence[WriterCommitMessage | None],
    place: Place | None,
) -> bool:
    """Whether it was new.

    A query's batches come in order, so only its last one comes again. A number below the writer's last is of somebody
    else, and so is the last number where it holds something else: taken for done, the rows would be missing.
    """
    staged = [message for message in messages if isinstance(message, Staged)]
    receipts = [receipt for message in staged for receipt in message.receipts]
    holds = None if _is_used_once(options) else contents(sum((each.rows for each in staged), NO_ROWS), place)
    if len(receipts) > RECEIPTS_PER_COMMIT_MAX:
        raise with_code(
            TooLarge,
            f"the tasks staged {len(receipts)} pieces, and a commit takes {RECEIPTS_PER_COMMIT_MAX}. Each task stages "
            "one or more for each partition that it writes to: write with fewer tasks (coalesce), or with the rows of "
            "a partition in one task (repartition by crc32(key) % partitions); a stream can have smaller batches",
        )
    with closing(_calls(options)) as calls:
        is_done = any(message.is_done for message in staged)
        if options.dead_max is not None and not is_done:
            _check_dead(calls, options.dead_max, writer, number, staged, place)
        if is_done:
            last, before = _standing_of_done(calls, writer, number)
            is_new = False
        else:
            committed = calls.commit(writer, number, receipts, holds)
            last, before = committed.last_number, committed.contents
            # Where the brokers took the rows, the number was not done yet, and a commit that was sent again has met
            # itself.
            is_new = not committed.is_duplicate or (committed.was_sent_again and bool(receipts))
        if last == number and holds is not None and before is not None and not is_same(before, holds):
            raise differs(before, holds, f"{_told(number)} of the writer {writer}", _where_it_is(calls, options, place))
    if last > number:
        raise with_code(
            WriterAhead,
            f"the writer {writer} has committed up to {_told(last)}, and this is {_told(number)}: its rows are not "
            "written, unless both came in the same moment. The checkpoint was emptied or set back, or somebody else "
            f"has the same writer. {_what_to_do(writer)}",
        )
    return is_new


def _check_dead(
    calls: SinkCalls, limit: DeadMax, writer: str, number: int, staged: Sequence[Staged], place: Place | None
) -> None:
    """Refuse a batch with too many dead letters, unless it is committed already."""
    dead = sum(each.dead for each in staged)
    messages = None if place is None else place.messages
    if limit.allows(dead, messages):
        return
    last = calls.last_number(writer)
    if last is not None and last >= number:
        return
    of = "" if messages is None else f" of {messages}"
    told = _told(number) if place is None else place.told
    such_as = next((each.such_as for each in staged if each.such_as), "")
    unknown = ""
    if messages is None and limit.text.endswith("%"):
        unknown = " The checkpoint does not say here how many messages the batch has: give dead-max as a number."
    raise with_code(
        TooManyDead,
        f"{dead}{of} messages in the batch ({told}) would become dead letters, such as {such_as}. dead-max allows "
        f"{limit.text}.{unknown} Nothing of the batch is written. Correct what raises, or allow more, and start it "
        "again with the same checkpoint",
    )


def _is_used_once(options: SinkOptions) -> bool:
    """Whether the writer is of one job only, of which nothing can come again."""
    return options.writer is None and not options.is_stream


def _where_it_is(calls: SinkCalls, options: SinkOptions, place: Place | None) -> str:
    """Where the batch and its groups' cursors stand, and what to do."""
    if options.writer is not None and options.writer_batch is None and not options.is_stream:
        return "For other rows choose another writer"
    told = "Where the batch begins and ends stands under offsets in the checkpoint, which cannot be read from here. "
    if place is not None:
        told = f"The batch is {place.told} now"
        for topic, group in sorted(place.cursors):
            at = calls.cursor(topic, group)
            if at:
                stands = ", ".join(f"{topic}/{number} {offset}" for number, offset in at.items())
                told += f"; the cursor {group} says that what was written ends at {stands}"
        told += ". "
    writer = " and another writer" if options.writer is not None else ""
    return (
        f"{told}The checkpoint was set back or has lost files. Start the query with a new checkpoint{writer}: with the "
        "same groupId it goes on where the group's cursor stands, else give startingOffsets"
    )


def _standing_of_done(calls: SinkCalls, writer: str, number: int) -> Standing:
    """Where the writer stands, where a task was told that this number is done, and has staged nothing.

    It must not be committed then: the rows of that task would be missing, if somebody forgot the writer meanwhile.
    """
    standing = calls.standing(writer)
    if standing is None or standing.last_number < number:
        raise with_code(
            StagedExpired,
            f"{_told(number)} of the writer {writer} was committed before, and the writer was forgotten while it was "
            "written again: nothing is committed. Start the query or the job again",
        )
    return standing


def _told(number: int) -> str:
    """A number for people: those of a query with a name of its own say its batch in their upper half."""
    batch = number >> QUERY_BITS
    return f"number {number} (batch {batch})" if batch else f"number {number}"


def _what_to_do(writer: str) -> str:
    return (
        "Start a query with a new checkpoint and another writer, or with none, and a job with another writer; where "
        "nobody writes under that name "
        f"any more, holdfast transactions forget {writer} sets it free"
    )


def _clean_up(options: SinkOptions, clean: Callable[[SinkCalls], None], what: str) -> None:
    """Leave nothing behind, as far as brokers can be reached: how the job ended is decided already."""
    patience_s = min(_CLEANING_S_MAX, options.broker_timeout_s)
    try:
        with closing(_calls(options._replace(broker_timeout_s=patience_s))) as calls:
            clean(calls)
    except HoldfastError as error:
        _log.warning("could not %s: %s", what, error)


def _calls(options: SinkOptions, turn: int = 0) -> SinkCalls:
    from holdfast.spark.sink_calls import SinkCalls

    return SinkCalls(options.servers, options.broker_timeout_s, turn)


def stage_rows(options: SinkOptions, writer: str, number: int, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage all rows of a task, and sum them up, unless nothing can come again."""
    from pyspark import TaskContext

    from holdfast.spark.sink_pieces import pieces

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    attempt = "" if context is None else f"task {context.taskAttemptId()}, try {context.attemptNumber()}"
    receipts: list[str] = []
    counted = batches if _is_used_once(options) else _Counted(batches, options)
    with closing(_calls(options, task)) as calls:
        for piece in pieces(iter(counted), options.topic, calls.partitions, task):
            receipt = calls.stage(writer, number, piece.topic, piece.partition, piece.batches, attempt)
            if receipt is None:
                for _ in counted:
                    pass  # all rows are summed
                return Staged(writer, number, [], True, _rows(counted))
            receipts.append(receipt)
    dead, such_as = (counted.dead, counted.such_as) if isinstance(counted, _Counted) else (0, "")
    return Staged(writer, number, receipts, False, _rows(counted), dead, such_as)


class _Counted:
    """Batches on their way, and the sum of the rows that went by."""

    def __init__(self, batches: Iterator[pa.RecordBatch], options: SinkOptions) -> None:
        self._batches = batches
        self._columns = _SUMMED if options.topic is not None else (*_SUMMED, "topic")
        self._dead_topic = None if options.dead_max is None else options.dead_max.topic
        self.rows = NO_ROWS
        self.dead = 0
        self.such_as = ""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += summed(batch, self._columns)
            if self._dead_topic is not None:
                self._look_for_dead(batch)
            yield batch

    def _look_for_dead(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        dead = batch.filter(pc.equal(batch["topic"], self._dead_topic))
        if dead.num_rows and not self.dead:
            self.such_as = _said(dead["headers"][0].as_py() or [])
        self.dead += dead.num_rows


def _said(headers: Sequence[Mapping[str, Any]]) -> str:
    """Where a dead letter's message stands, and what was raised."""
    told = {each["key"]: bytes(each["value"] or b"").decode("utf-8", "replace") for each in headers}
    place = "/".join(told.get(f"holdfast-dead-{name}", "?") for name in ("topic", "partition", "offset"))
    return f"{place}: {told.get('holdfast-dead-error', 'no reason')}"


def _rows(batches: _Counted | Iterator[pa.RecordBatch]) -> RowSum:
    return batches.rows if isinstance(batches, _Counted) else NO_ROWS
