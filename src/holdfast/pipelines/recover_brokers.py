"""Recovering through brokers, whatever their store is: each step of a stream is a transaction of its own writer.

A transaction's number is how many messages of the stream are done with it. The broker keeps the last number of each
writer and stores what is committed under a number once, so a step that is repeated, by whomever, is recognised as a
whole (docs/transactions.md). The recovery itself is a writer, too: 1 when it has begun, 2 when all is stored, and 3
when no directory has a note of it any more. A task may wake up late, with a step that is stored long since: so writers
are forgotten an hour behind that, and tasks ask whether their recovery goes on when a step is staged, and before it is
committed. A task that is frozen in front of that question is told that it is over. One that is frozen behind it, for
however long, has a receipt that is worth nothing by then: staged messages go with their writer, and after an hour.

A broker compares no number but the last. That is enough because all tasks cut a stream in the same places
(`steps`), as long as brokers refuse the same messages today and tomorrow. Should one refuse a message that another
takes, the pieces of two tasks may overlap: so a task also asks before each piece whether it stands where the stream
is. What is left is a task that sleeps between that answer and its commit, while another one stores a part of the same
piece because it was refused the whole.

Brokers do not compare the ids of messages in transactions. So what stands in the topics since shortly before the
backlog is read by Spark, and takes part in the search for copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

from holdfast.model.errors import (
    BadBatch,
    BadMessage,
    BadMessageId,
    HoldfastError,
    RemoteError,
    TooLarge,
    WriterNotFound,
)
from holdfast.recovery.backlog import noted_lines
from holdfast.recovery.errors import RecoveryChanged
from holdfast.recovery.steps import Events, Overtaken, Stream
from holdfast.spark.options import parse_servers
from holdfast.spark.sink_calls import SinkCalls
from holdfast.wire import batch_builder

_PREFIX: Final = "recover-"
_BEGUN: Final = 1
_DONE: Final = 2
_GIVEN_BACK: Final = 3
# How long after the end a task that slept may still come with a step.
_LATE_MS_MAX: Final = 3_600_000
# What a broker has against a message, and not against the moment.
_REFUSED: Final = (BadMessage.code, BadMessageId.code, BadBatch.code, TooLarge.code)
# How long no broker may answer before a task gives up.
_AWAY_S_MAX: Final = 120.0


def _writer(recovery: UUID) -> str:
    return f"{_PREFIX}{recovery.hex}"


def _stream_writer(stream: Stream) -> str:
    return f"{_writer(stream.recovery)}.{uuid5(stream.recovery, str(stream)).hex}"


class BrokersLedger:
    """Knows how far recoveries are (`backlog.Ledger`)."""

    def __init__(self, servers: str, now_s: Callable[[], float] = time.time) -> None:
        import holdfast

        self._now_s = now_s
        self.broker = holdfast.connect_blocking(f"holdfast://{servers}")
        try:
            self.store_id = self.broker.cluster().cluster
        except BaseException:
            self.broker.close()
            raise

    def topics(self) -> dict[str, int]:
        return {topic.topic: len(topic.partitions) for topic in self.broker.topics()}

    def make_topics(self, partitions: Mapping[str, int]) -> None:
        for topic, count in partitions.items():
            self.broker.create_topic(topic, partitions=count, exist_ok=True)

    def stored_lines(self, files: Mapping[UUID, Path]) -> dict[UUID, int]:
        return {file: noted_lines(file, path) for file, path in files.items()}

    def has_begun(self, recovery: UUID) -> bool:
        return self._number(recovery) >= _BEGUN

    def is_done(self, recovery: UUID) -> bool:
        return self._number(recovery) >= _DONE

    def begin(self, recovery: UUID) -> None:
        self._forget_old()
        self.broker.transaction(_writer(recovery), _BEGUN).commit()

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        self.broker.transaction(_writer(recovery), _DONE).commit()

    def forget(self, recovery: UUID) -> None:
        """Not at once: whoever sleeps over the end would store its step again."""
        self.broker.transaction(_writer(recovery), _GIVEN_BACK).commit()
        self._forget_old()

    def _forget_old(self) -> None:
        """The recovery itself is the last of its writers: as long as it is known, no task goes on without it."""
        until_ms = self._now_s() * 1000 - _LATE_MS_MAX
        known = [each for each in self.broker.writers() if each.writer.startswith(_PREFIX)]
        for ended in known:
            if ended.last_number == _GIVEN_BACK and "." not in ended.writer and (ended.committed_ms or 0) < until_ms:
                streams = [each.writer for each in known if each.writer.startswith(f"{ended.writer}.")]
                for writer in (*streams, ended.writer):
                    self.broker.forget_writer(writer)

    def _number(self, recovery: UUID) -> int:
        try:
            return self.broker.writer(_writer(recovery)).last_number or 0
        except HoldfastError as error:
            if error.code != WriterNotFound.code:
                raise
            return 0

    def close(self) -> None:
        self.broker.close()


class BrokersStore:
    """One task's calls (`steps.Store`)."""

    def __init__(self, servers: str) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        turn = 0 if context is None else context.partitionId()
        self._calls = SinkCalls(parse_servers(servers), _AWAY_S_MAX, turn)

    def reached(self, stream: Stream) -> int:
        return self._calls.last_number(_stream_writer(stream)) or 0

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        self._check_goes_on(stream)
        if self.reached(stream) != before:
            raise Overtaken
        writer = _stream_writer(stream)
        receipts = []
        if events:
            batch = batch_builder.build_timed([event.message() for event in events], [event.time for event in events])
            try:
                receipt = self._calls.stage(writer, after, stream.queue, stream.number, bytes(batch), "recover")
            except RemoteError as error:
                if error.code not in _REFUSED:
                    raise
                raise BadMessage(error.message) from error
            if receipt is None:
                raise Overtaken
            receipts.append(receipt)
            self._check_goes_on(stream)
        self._calls.commit(writer, after, receipts)
        return len(events)

    def _check_goes_on(self, stream: Stream) -> None:
        if self._calls.last_number(_writer(stream.recovery)) != _BEGUN:
            raise RecoveryChanged("this recovery is over: another run has stored everything")

    def close(self) -> None:
        self._calls.close()
