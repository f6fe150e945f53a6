"""Transactions in the client: stage from many places, commit once.

What is staged is durable and hidden. A receipt is text: a task hands its receipts to whoever commits. Everything here
may be sent again: a stage that is makes a second piece, which nobody names, and a commit is recognised by its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode
from zlib import crc32

import msgspec

from holdfast.client.api import Api
from holdfast.client.bulk import Piece, partition_pieces, plain_pieces
from holdfast.client.connection import BATCHES, Request
from holdfast.client.encoding import Value, new_message, value_bytes
from holdfast.client.errors import TransactionAborted
from holdfast.client.loop_thread import LoopThread
from holdfast.client.store import Messages, build
from holdfast.model.errors import BadMessage, BadValue
from holdfast.model.messages import NewMessage
from holdfast.model.names import topic_name, writer_name
from holdfast.model.transactions import CommitResult, StageReceipt, WriterDescription

# Pieces of one `stage` that are under way at once.
_UNDER_WAY_MAX: Final = 4
_encode = msgspec.json.encode


class _Receipts(msgspec.Struct):
    receipts: list[StageReceipt]


class Writers(msgspec.Struct):
    """`under_way`: commits that are decided and not visible in full yet."""

    writers: list[WriterDescription]
    under_way: int = 0


class Transaction:
    """One number of one writer. What is staged through it is committed by it, unless receipts are given."""

    def __init__(self, api: Api, writer: str, number: int) -> None:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadValue(f"a transaction's number is a whole number from 0 on, not {number!r}")
        self.writer = writer_name(writer)
        self.number = number
        self.receipts: list[StageReceipt] = []
        self._api = api
        self._partitions: dict[str, int] = {}
        self._turn = count()
        self._is_aborted = False
        self._is_committed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit what was staged, unless that was done or aborted; drop it where something went wrong."""
        if self._is_aborted or self._is_committed:
            return
        if kind is None:
            await self.commit()
        else:
            await self.abort(f"given up after {kind.__name__}")

    async def stage(
        self,
        topic: str,
        messages: Sequence[Value | NewMessage],
        *,
        partition: int | None = None,
        attempt: str = "",
    ) -> list[StageReceipt]:
        """Store messages where nobody sees them; values or `NewMessage` as in `publish_many`. Durable on return."""
        self._check_is_open()
        if not messages:
            return []
        ready = _encoded(messages)
        partitions = await self._partition_count(topic)
        room = asyncio.Semaphore(_UNDER_WAY_MAX)

        async def send(piece: Piece) -> StageReceipt:
            async with room:
                return await self._send(topic, piece.partition, build(piece.messages), attempt)

        pieces = _pieces(ready, partition, partitions, self._turn)
        try:
            async with asyncio.TaskGroup() as tasks:
                sent = [tasks.create_task(send(piece)) for piece in pieces]
        except BaseExceptionGroup as failed:
            # One reason is enough to know that this attempt is lost; what it staged is named by nobody.
            raise failed.exceptions[0] from None
        receipts = [each.result() for each in sent]
        self.receipts += receipts
        return receipts

    async def stage_batches(
        self, topic: str, partition: int, batches: bytes | bytearray, *, attempt: str = ""
    ) -> StageReceipt:
        """Store record batches, one behind the other, for one partition: what bulk writers use."""
        self._check_is_open()
        receipt = await self._send(topic, partition, batches, attempt)
        self.receipts.append(receipt)
        return receipt

    async def _send(self, topic: str, partition: int, batches: bytes | bytearray, attempt: str) -> StageReceipt:
        fields = {"topic": topic_name(topic), "number": self.number, "partition": partition, "attempt": attempt}
        query = urlencode({name: value for name, value in fields.items() if value != ""})
        request = Request("POST", f"{_path(self.writer)}/stage?{query}", batches, BATCHES)
        return (await self._api.ask(request, _Receipts)).receipts[0]

    async def commit(self, receipts: Sequence[StageReceipt | str] | None = None) -> CommitResult:
        """Show everything that was staged here, or what these receipts stand for; visible on return."""
        self._check_is_open()
        wanted = self.receipts if receipts is None else receipts
        named = [each if isinstance(each, str) else each.receipt for each in wanted]
        body = _encode({"number": self.number, "receipts": named})
        result = await self._api.ask(Request("POST", f"{_path(self.writer)}/commit", body), CommitResult)
        self._is_committed = True
        return result

    async def abort(self, reason: str = "") -> None:
        """Drop everything that the writer has staged and not committed, also elsewhere and for other numbers.

        This object takes nothing more afterwards: a commit of it would have nothing to show, and use up its number.
        """
        self._is_aborted = True
        request = Request("POST", f"{_path(self.writer)}/abort", _encode({"reason": reason}))
        await self._api.ask(request, type(None))
        self.receipts.clear()

    def _check_is_open(self) -> None:
        if self._is_aborted:
            raise TransactionAborted(
                f"number {self.number} of {self.writer} was aborted, and what was staged for it is dropped: begin it "
                f"again with transaction({self.writer!r}, {self.number})"
            )

    async def _partition_count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len((await self._api.describe_or_create(topic)).partitions)
        return self._partitions[topic]


class BlockingTransaction:
    """`Transaction` without `await`."""

    def __init__(self, transaction: Transaction, thread: LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))

    @property
    def receipts(self) -> list[StageReceipt]:
        return self._transaction.receipts

    def stage(
        self, topic: str, messages: Sequence[Value | NewMessage], *, partition: int | None = None, attempt: str = ""
    ) -> list[StageReceipt]:
        return self._thread.run(self._transaction.stage(topic, messages, partition=partition, attempt=attempt))

    def stage_batches(
        self, topic: str, partition: int, batches: bytes | bytearray, *, attempt: str = ""
    ) -> StageReceipt:
        return self._thread.run(self._transaction.stage_batches(topic, partition, batches, attempt=attempt))

    def commit(self, receipts: Sequence[StageReceipt | str] | None = None) -> CommitResult:
        return self._thread.run(self._transaction.commit(receipts))

    def abort(self, reason: str = "") -> None:
        self._thread.run(self._transaction.abort(reason))


async def describe_writer(api: Api, writer: str) -> WriterDescription:
    return await api.ask(Request("GET", _path(writer)), WriterDescription)


async def list_writers(api: Api) -> list[WriterDescription]:
    return (await ask_writers(api)).writers


async def ask_writers(api: Api) -> Writers:
    """All writers, and how many commits are under way. Whoever answers knows of everything that was decided before."""
    return await api.ask(Request("GET", "/v1/transactions"), Writers)


async def forget_writer(api: Api, writer: str) -> None:
    await api.ask_once(Request("DELETE", _path(writer)), done_before="writer_not_found")


def _path(writer: str) -> str:
    return f"/v1/transactions/{writer_name(writer)}"


def _pieces(messages: Messages, partition: int | None, partitions: int, turn: Iterator[int]) -> Iterator[Piece]:
    if partition is not None:
        return plain_pieces(messages, lambda: partition)
    if isinstance(messages[0], bytes):
        return plain_pieces(messages, lambda: next(turn) % partitions)
    anywhere = next(turn) % partitions
    places: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        assert isinstance(message, NewMessage)
        token = message.key if message.key is not None else message.id.encode() if message.id is not None else None
        places.setdefault(anywhere if token is None else crc32(token) % partitions, []).append(place)
    return (piece for number, some in places.items() for piece in partition_pieces(messages, some, number))


def _encoded(items: Sequence[Value | NewMessage]) -> Messages:
    """Plain values where nothing else is needed, else messages. Ids stay as they are given."""
    if isinstance(items, str | bytes | bytearray | Mapping):
        raise BadMessage(f"stage takes a list of messages, not one {type(items).__name__}")
    if not any(isinstance(item, NewMessage) for item in items):
        return [value_bytes(item) for item in items]
    return [item if isinstance(item, NewMessage) else new_message(item) for item in items]
