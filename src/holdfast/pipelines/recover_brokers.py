"""Recovering through brokers, whatever their store is: each step of a stream is a transaction of its own writer.

A transaction's number is how many messages of the stream are done with it. The broker keeps the last number of each
writer and stores what is committed under a number once, so a step that is repeated, by whomever, is recognised as a
whole (docs/transactions.md). The recovery itself is a writer, too: 1 when it has begun, and 2 when all is stored.

Brokers do not compare the ids of messages in transactions. So what stands in the topics since shortly before the
backlog is read by Spark, and takes part in the search for copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

from holdfast.model.errors import HoldfastError, WriterNotFound
from holdfast.recovery.backlog import noted_lines
from holdfast.recovery.steps import Events, Overtaken, Stream
from holdfast.spark.options import parse_servers
from holdfast.spark.sink_calls import SinkCalls
from holdfast.wire import batch_builder

_BEGUN: Final = 1
_DONE: Final = 2
# How long no broker may answer before a task gives up.
_AWAY_S_MAX: Final = 120.0


def _writer(recovery: UUID) -> str:
    return f"recover-{recovery.hex}"


def _stream_writer(stream: Stream) -> str:
    return f"{_writer(stream.recovery)}.{uuid5(stream.recovery, str(stream)).hex}"


class BrokersLedger:
    """Knows how far recoveries are (`backlog.Ledger`)."""

    def __init__(self, servers: str) -> None:
        import holdfast

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
        self.broker.transaction(_writer(recovery), _BEGUN).commit()

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        self.broker.transaction(_writer(recovery), _DONE).commit()

    def forget(self, recovery: UUID) -> None:
        """The recovery itself is the last: as long as it is known, nobody begins it again."""
        name = _writer(recovery)
        streams = [each.writer for each in self.broker.writers() if each.writer.startswith(f"{name}.")]
        for writer in (*streams, name):
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
        writer = _stream_writer(stream)
        receipts = []
        if events:
            batch = batch_builder.build_timed([event.message() for event in events], [event.time for event in events])
            receipt = self._calls.stage(writer, after, stream.queue, stream.number, bytes(batch), "recover")
            if receipt is None:
                raise Overtaken
            receipts.append(receipt)
        self._calls.commit(writer, after, receipts)
        return len(events)

    def close(self) -> None:
        self._calls.close()
