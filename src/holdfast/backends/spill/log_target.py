"""Storing what was spilled in a backend that cannot count lines itself: a cluster, or a pair.

Such a backend recognises ids for a while only. So every message has one before it is first tried, and how far a file
is stored stands in `failover_<UUID of the file>.progress` beside it, whatever kind of file it is::

    {"done": lines stored, "trying": lines that a step was about to store, "ends": where partitions ended before it}

It is written, synced and renamed before a step and after it. Crash case: `trying` is more than `done`. Then nobody
knows how much of the step was stored, so the partitions are read from those ends on, and messages whose ids are there
are left out. The same is done, with the mark of the push, for one whose first try was not answered. A log says what is
in it, however late it is asked. A step that was refused, and of which nothing was stored, is taken back in the file, so
that the next try does not read what the log got since.

A progress file that is damaged says nothing. Then the partitions are read from their beginning, and `is_lost` notes
that until the whole file is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import structlog

from holdfast.backends.spill.events import message_of
from holdfast.backends.spill.files import FAILOVER
from holdfast.backends.spill.ports import Batch
from holdfast.broker.backend import Backend
from holdfast.model.errors import CallerError, DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished
from holdfast.model.spill import Chunk, Others, Rank
from holdfast.storage.durable import replace_file, sync_directory
from holdfast.wire import batch_builder, push_batch, record_batch

log = structlog.get_logger("holdfast.spill")

_READ_BYTES: Final = 4 * MIB
# More lines than any file has.
_UNKNOWN: Final = 1 << 53
# Of batches that become one.
_JOINED_BYTES_MAX: Final = 1 * MIB


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a progress file."""

    done: int = 0
    trying: int = 0
    ends: dict[str, int] = {}
    # The file was damaged: nobody knows what was stored, nor where partitions ended before.
    is_lost: bool = False


class LogTarget:
    """Keeps the promises of `ports.Target` with progress files and ids."""

    needs_ids = True

    def __init__(self, inner: Backend, directory: Path) -> None:
        self._inner = inner
        self._directory = directory

    def mark(self, partition: PartitionId) -> str | None:
        return f"{partition}@{self._inner.end_offset(partition)}"

    def abandon(self) -> dict[asyncio.Future[BatchPublished], str | None]:
        """What is on its way to other nodes cannot be called back: its mark tells later.

        What was not sent yet is not sent any more, as its future is cancelled.
        """
        return {}

    async def reach(self) -> None:
        """Nodes connect to each other by themselves."""

    async def probe(self) -> None:
        await self._inner.catch_up_cursors()

    async def committed(self, marks: Iterable[str], ids: dict[str, list[str]]) -> set[str]:
        found: set[str] = set()
        for mark in marks:
            place, _, end = mark.rpartition("@")
            found |= await self._ids_from(_partition(place), Offset(int(end)), set(ids[mark]))
        return found

    async def progress(self, file: UUID) -> int:
        return (await asyncio.to_thread(self._noted, file)).done

    async def unsettled(self, file: UUID) -> int:
        noted = await asyncio.to_thread(self._noted, file)
        return noted.trying if noted.trying > noted.done else 0

    async def store(
        self, file: UUID, number: int, batches: Sequence[Batch], others: Sequence[tuple[UUID, int, int]] = ()
    ) -> int:
        return await self._store(
            file, number, [(partition, push_batch.as_batch(batch)) for partition, batch in batches]
        )

    async def _store(self, file: UUID, number: int, batches: Sequence[tuple[PartitionId, bytearray]]) -> int:
        before = await asyncio.to_thread(self._noted, file)
        given = _count(batches)
        if before.trying > before.done:
            batches = await self._without_stored(batches, before)
        repeated = given - _count(batches)
        ends = {str(partition): int(self._inner.end_offset(partition)) for partition, _ in batches}
        trying = Progress(before.done, max(number, before.trying), {**ends, **_open_ends(before)}, before.is_lost)
        await asyncio.to_thread(self._note, file, trying)
        joined = _joined(batches)
        runs = [self._forward_in_order(partition, run) for partition, run in joined.items()]
        done = await asyncio.gather(*runs, return_exceptions=True)
        # Trouble of the moment first: what is wrong with a message is said again when it is tried again.
        failures = sorted(
            (each for each in done if isinstance(each, BaseException)), key=lambda each: isinstance(each, CallerError)
        )
        if failures:
            are_refused = len(failures) == len(done) and all(isinstance(each, CallerError) for each in failures)
            if are_refused and all(len(run) == 1 for run in joined.values()):
                await asyncio.to_thread(self._note, file, before)
            raise failures[0]
        after = msgspec.structs.replace(trying, done=number) if trying.trying > number else Progress(number)
        await asyncio.to_thread(self._note, file, after)
        return repeated + sum(each for each in done if isinstance(each, int))

    async def _forward_in_order(self, partition: PartitionId, run: Sequence[bytearray]) -> int:
        """How many were there already. One at a time: a leader may refuse a batch and take the one behind it."""
        repeated = 0
        for batch in run:
            repeated += (await self._inner.forward(partition, batch, has_ids=True)).duplicates
        return repeated

    async def forget(self, files: Sequence[UUID]) -> None:
        for file in files:
            self._path(file).unlink(missing_ok=True)

    def announce(self, oldest_ms: int | None) -> None:
        """Other nodes keep what they are given themselves."""

    @property
    def rank(self) -> Rank:
        return "", ""

    async def others(self, file: UUID) -> Others:
        return Others(is_known=True)

    async def offer(self, chunk: Chunk, lines: bytes, oldest_ms: int, done: int) -> None:
        raise AssertionError("there is nobody to offer it to")

    async def withdraw(self) -> None:
        """Nothing is offered."""

    async def offered(self, rank: Rank, chunk: Chunk) -> bytes | None:
        raise AssertionError("nobody offers anything")

    async def held_up_by(self) -> str:
        return "nobody"

    # --- what a log has ---------------------------------------------------------------------------------

    async def _without_stored(
        self, batches: Sequence[tuple[PartitionId, bytearray]], before: Progress
    ) -> list[tuple[PartitionId, bytearray]]:
        left: list[tuple[PartitionId, bytearray]] = []
        for partition, batch in batches:
            end = 0 if before.is_lost else before.ends.get(str(partition))
            if end is None:
                left.append((partition, batch))
                continue
            records = record_batch.decode_records(batch)
            wanted = {message_id for record in records if (message_id := record_batch.record_id(record)) is not None}
            stored = await self._ids_from(partition, Offset(end), wanted)
            fresh = [record for record in records if record_batch.record_id(record) not in stored]
            if len(fresh) == len(records):
                left.append((partition, batch))
            elif fresh:
                base_ms = record_batch.header(batch).base_timestamp_ms
                messages = [message_of(record, record_batch.record_id(record)) for record in fresh]
                times_ms = [base_ms + record.timestamp_delta for record in fresh]
                left.append((partition, batch_builder.build_timed(messages, times_ms)))
        return left

    async def _ids_from(self, partition: PartitionId, offset: Offset, wanted: set[str]) -> set[str]:
        """Those of the wanted ids that messages from `offset` on have."""
        if not wanted or self._inner.topic(partition.topic) is None:
            return set()
        await self._inner.catch_up(partition)
        found: set[str] = set()
        offset = max(offset, self._inner.start_offset(partition))
        while offset < self._inner.end_offset(partition):
            try:
                batches = await self._inner.read(partition, offset, _READ_BYTES)
            except OffsetOutOfRange:
                break  # retention was faster: what expired was stored
            except DamagedData as damage:
                # What is lost there is stored again: that is what the spill is for.
                offset = Offset(damage.next_offset)
                continue
            for batch in batches:
                if record_batch.has_ids(batch):
                    found |= wanted & {record_batch.record_id(each) for each in record_batch.decode_records(batch)}
                offset = record_batch.header(batch).next_offset
            if not batches:
                break
        return found

    # --- the file ---------------------------------------------------------------------------------------

    def _path(self, file: UUID) -> Path:
        return progress_path(self._directory, file)

    def _noted(self, file: UUID) -> Progress:
        try:
            return msgspec.json.decode(self._path(file).read_bytes(), type=Progress)
        except FileNotFoundError:
            return Progress()
        except msgspec.MsgspecError as error:
            log.error("spill_progress_damaged", file=self._path(file).name, problem=str(error))
            return Progress(trying=_UNKNOWN, is_lost=True)

    def _note(self, file: UUID, progress: Progress) -> None:
        replace_file(self._path(file), msgspec.json.encode(progress) + b"\n")
        sync_directory(self._directory)


def progress_path(directory: Path, file: UUID) -> Path:
    return directory / f"{FAILOVER}_{file}.progress"


def _joined(batches: Sequence[tuple[PartitionId, bytearray]]) -> dict[PartitionId, list[bytearray]]:
    """The batches of each partition, in order; many small ones become few, since each waits for the one before."""
    runs: dict[PartitionId, list[bytearray]] = {}
    for partition, batch in batches:
        runs.setdefault(partition, []).append(batch)
    for run in runs.values():
        run[:] = [batch for some in _parted(run) for batch in (some if len(some) == 1 else [_one_of(some)])]
    return runs


def _parted(run: Iterable[bytearray]) -> Iterator[list[bytearray]]:
    """Those that may be one batch together."""
    some: list[bytearray] = []
    size = 0
    for batch in run:
        if some and size + len(batch) > _JOINED_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(batch)
        size += len(batch)
    if some:
        yield some


def _one_of(some: Iterable[bytearray]) -> bytearray:
    """One batch that has the messages of all, each with its time."""
    messages, times_ms = [], []
    for batch in some:
        base_ms = record_batch.header(batch).base_timestamp_ms
        for record in record_batch.decode_records(batch):
            messages.append(message_of(record, record_batch.record_id(record)))
            times_ms.append(base_ms + record.timestamp_delta)
    return batch_builder.build_timed(messages, times_ms)


def _count(batches: Sequence[tuple[PartitionId, bytearray]]) -> int:
    return sum(record_batch.header(batch).record_count for _, batch in batches)


def _open_ends(progress: Progress) -> dict[str, int]:
    return progress.ends if progress.trying > progress.done else {}


def _partition(text: str) -> PartitionId:
    topic, _, number = text.rpartition("/")
    return PartitionId(TopicName(topic), int(number))
