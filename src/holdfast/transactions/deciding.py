"""Commits and aborts, on whichever node they come to: checked, appended as one record, and waited for.

The record is the decision. Before it is durable nothing has happened, and afterwards the coordinator does it, whether
or not anybody is left who asked. Where the answer to the append is lost it is appended again: of two decisions for one
number the first one counts. What a commit needs is checked before; whether the writer has that number already, or has
dropped what it names, is looked at again by the coordinator, in the order of the decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from holdfast.broker.broker import Broker
from holdfast.model import names
from holdfast.model.errors import (
    BadReceipt,
    BadValue,
    CommitPending,
    StagedExpired,
    TooLarge,
    TopicNotFound,
    WriterNotFound,
)
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName, WriterName
from holdfast.model.limits import RECEIPTS_PER_COMMIT_MAX
from holdfast.model.transactions import CommitResult, Contents
from holdfast.transactions.settings import Settings
from holdfast.transactions.staging import Staging, check_is_placed, check_number
from holdfast.transactions.sweeping import staged_from
from holdfast.transactions.writers import Writers, WriterState
from holdfast.wire import batch_builder
from holdfast.wire.transactions import (
    DECISIONS,
    STAGED,
    Abort,
    Commit,
    Decision,
    Forget,
    Part,
    Receipt,
    Target,
    decode_receipt,
    encode_decision,
    partition_of,
)

T = TypeVar("T")

# It stands in a log line.
_REASON_CHARACTERS_MAX: Final = 200
# Targets that are asked at a time where they end.
_CATCHING_UP_MAX: Final = 64


class Deciding:
    """Puts decisions into the log and says what became of them."""

    def __init__(
        self,
        broker: Broker,
        staging: Staging,
        writers: Writers,
        settings: Settings,
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._staging = staging
        self._writers = writers
        self._settings = settings
        self._now_ms = now_ms

    async def commit(
        self, writer: str, number: int, receipts: Sequence[str], contents: Contents | None = None
    ) -> CommitResult:
        """Show what these receipts stand for, all of it; on return it is visible."""
        checked = names.writer_name(writer)
        check_number(number)
        if len(receipts) > RECEIPTS_PER_COMMIT_MAX:
            raise TooLarge(f"{len(receipts)} receipts; a commit takes {RECEIPTS_PER_COMMIT_MAX}: stage more at a time")
        await self._staging.ensure_topics()
        await self._backend.catch_up_cursors()
        state = self._writers.state(checked)
        if number <= state.number:
            return _result(checked, number, state, is_duplicate=True)
        self._staging.check_has_room(checked)
        await self._backend.catch_up(PartitionId(STAGED, partition_of(checked)))
        commit = await self._commit(checked, number, receipts, state, contents)
        decision = await self._append(commit)
        decided = self._writers.until_decided(checked, decision, number)
        state = await self._outcome(decided, f"{number} of {checked}")
        if not state.is_known:
            raise WriterNotFound(
                f"{number} of {checked} was decided, and the writer was forgotten right behind it: whether what it "
                "names was still there to be committed is not known any more. Look into the topics before you write "
                "it again"
            )
        if state.number < number:
            raise StagedExpired(
                f"what {number} of {checked} names was dropped, also where the writer was forgotten since, was lost or "
                "has expired: nothing was committed"
            )
        return _result(checked, number, state, is_duplicate=(state.number, state.committed) != (number, decision))

    async def abort(self, writer: str, reason: str = "") -> None:
        """Drop everything that the writer has staged and not committed."""
        checked = names.writer_name(writer)
        if len(reason) > _REASON_CHARACTERS_MAX or (reason and not reason.isprintable()):
            raise BadValue(f"reason has at most {_REASON_CHARACTERS_MAX} printable characters")
        if self._backend.topic(DECISIONS) is None:
            await self._backend.catch_up_cursors()
            if self._backend.topic(DECISIONS) is None:
                return  # nobody has ever staged anything
        self._staging.check_has_room(checked)
        staged = PartitionId(STAGED, partition_of(checked))
        await self._backend.catch_up(staged)
        decision = await self._append(Abort(checked, self._now_ms(), self._backend.end_offset(staged), reason))
        await self._outcome(self._writers.until_decided(checked, decision), f"the abort of {checked}")

    async def forget(self, writer: WriterName) -> None:
        """Forget a writer's number, behind everything that was decided for it before, and drop what it has staged."""
        staged = PartitionId(STAGED, partition_of(writer))
        await self._backend.catch_up(staged)
        decision = await self._append(Forget(writer, self._now_ms(), self._backend.end_offset(staged)))
        await self._outcome(self._writers.until_done(writer, decision), f"the forgetting of {writer}")

    async def _commit(
        self,
        writer: WriterName,
        number: int,
        receipts: Sequence[str],
        state: WriterState,
        contents: Contents | None,
    ) -> Commit:
        key = self._staging.key()
        targets: dict[tuple[TopicName, str, int], int] = {}
        parts: list[Part] = []
        named: set[Offset] = set()
        oldest_ms = self._now_ms() - self._settings.expiry_ms
        kept_from = max(state.dropped_below, staged_from(self._backend, partition_of(writer)))
        end = self._backend.end_offset(PartitionId(STAGED, partition_of(writer)))
        for text in receipts:
            receipt = decode_receipt(text, key)
            if (receipt.writer, receipt.number) != (writer, number):
                raise BadReceipt(f"a receipt is for {receipt.number} of {receipt.writer}, not for {number} of {writer}")
            if receipt.offset in named:
                raise BadReceipt(f"the receipt {text[:40]!a} stands there twice")
            if receipt.staged_ms < oldest_ms or not kept_from <= receipt.offset < end:
                raise StagedExpired(
                    f"the receipt {text[:40]!a} has expired, or what it stands for was committed before, lost, or "
                    "dropped by an abort or when its writer was forgotten; if it was not committed, stage it again"
                )
            named.add(receipt.offset)
            self._check_topic(receipt)
            target = targets.setdefault((receipt.topic, receipt.token, receipt.partition), len(targets))
            parts.append(Part(receipt.offset, target, receipt.batches, receipt.nonce))
        places = [PartitionId(topic, number) for topic, _, number in targets]
        # A node that is behind would have the targets' leaders read all that it lacks.
        for first in range(0, len(places), _CATCHING_UP_MAX):
            await asyncio.gather(*map(self._backend.catch_up, places[first : first + _CATCHING_UP_MAX]))
        return Commit(
            writer,
            number,
            self._now_ms(),
            [
                # Nothing of this can stand below what is there before it is decided.
                Target(place.topic, token, place.number, self._backend.end_offset(place))
                for place, (_, token, _) in zip(places, targets, strict=True)
            ],
            parts,
            contents,
        )

    def _check_topic(self, receipt: Receipt) -> None:
        topic = self._backend.topic(receipt.topic)
        if topic is None or topic.token != receipt.token:
            raise TopicNotFound(f"topic {receipt.topic} was deleted since this was staged for it; stage it again")

    async def _append(self, decision: Decision) -> Offset:
        place = PartitionId(DECISIONS, partition_of(decision.writer))
        batch = batch_builder.build_values([encode_decision(decision)], self._now_ms())
        published = await asyncio.shield(self._broker.publisher.publish_own(place, batch))
        check_is_placed(published)
        return published.base_offset

    async def _outcome(self, outcome: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._settings.commit_wait_ms / 1000):
                return await outcome
        except TimeoutError:
            raise CommitPending(
                f"{what} is decided and will be done, but is not yet after {self._settings.commit_wait_ms} ms: "
                "ask again, with the same number"
            ) from None


def _result(writer: WriterName, number: int, state: WriterState, *, is_duplicate: bool) -> CommitResult:
    return CommitResult(
        writer=writer, number=number, duplicate=is_duplicate, last_number=state.number, contents=state.contents
    )
