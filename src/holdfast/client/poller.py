"""Reading one partition ahead, from its position on, through whatever happens to the broker.

A position only moves behind what was put into the buffer, and what a batch holds before the position is
left out: nothing is delivered twice and nothing is skipped. What the broker itself cannot give any more,
because it expired or is damaged, is reported as lost and reading goes on behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.client.api import Api, read_request
from holdfast.client.buffer import Buffer, RawBatch
from holdfast.client.connection import Response
from holdfast.client.errors import AttemptFailed
from holdfast.client.limits import POLL_GRACE_S, RETRIED_STATUSES
from holdfast.client.pool import Pool
from holdfast.client.refusals import ErrorBody, error_body, is_foreign, remote_error
from holdfast.client.retry import Patience
from holdfast.client.scout import Scout
from holdfast.model.errors import BadBatch, RemoteError
from holdfast.model.ids import PartitionId
from holdfast.wire.record_batch import crc_matches, header, split_batches

# A broker that is stopping answers long polls at once; asking again at once would be a busy loop.
_EMPTY_PAUSE_S = 0.05

_log = logging.getLogger("holdfast.client")


class Poller:
    """One reader of one partition. `run` ends only by an error or by being cancelled; it can run again."""

    def __init__(
        self,
        api: Api,
        pool: Pool,
        partition: PartitionId,
        position: int,
        buffer: Buffer,
        *,
        read_bytes: int,
        wait_s: float,
        scout: Scout | None,
        on_gap: Callable[[int, int, int], None],
    ) -> None:
        self.position = position
        self._api = api
        self._pool = pool
        self._partition = partition
        self._buffer = buffer
        self._read_bytes = read_bytes
        self._wait_s = wait_s
        self._scout = scout
        self._on_gap = on_gap

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._buffer.room()
            if self._scout is not None:
                await self._scout.news(self._partition.number, self.position)
            asked_at = loop.time()
            batches, next_offset = await self._read()
            for batch in batches:
                self._take(batch)
            if next_offset > self.position:
                self._skip_to(next_offset, "are missing from the log")
            if not batches and loop.time() - asked_at < _EMPTY_PAUSE_S:
                await asyncio.sleep(_EMPTY_PAUSE_S)

    def _take(self, batch: memoryview) -> None:
        head = header(batch)
        if head.base_offset > self.position:
            self._skip_to(head.base_offset, "are missing from the log")
        if head.next_offset > self.position:
            count = head.next_offset - self.position
            self._buffer.put(RawBatch(self._partition.number, self.position, count, batch))
            self.position = head.next_offset

    async def _read(self) -> tuple[list[memoryview], int]:
        """What stands at the position, or nothing if nothing came in time; and where to go on."""
        patience: Patience | None = None
        while True:
            topic, number = self._partition
            request = read_request(topic, number, self.position, self._read_bytes, self._wait_s)
            failure: AttemptFailed | RemoteError
            try:
                response = await self._pool.attempt(request, self._wait_s + POLL_GRACE_S)
                if response.status == 200:
                    return self._checked(response), int(response.headers.get(b"holdfast-next-offset", b"0"))
                failure = remote_error(response)
                if response.status not in RETRIED_STATUSES and not is_foreign(failure):
                    await self._go_on_behind(error_body(response), failure)
                    continue
            except AttemptFailed as lost:
                failure = lost
            if patience is None:
                patience = Patience(f"reading {self._partition}", self._api.timeout_s, self._pool.addresses)
            await patience.failed(failure)

    def _checked(self, response: Response) -> list[memoryview]:
        """Whole batches with the right sums; bytes that were bent on the way are asked for again."""
        try:
            batches = split_batches(response.body)
            if all(crc_matches(batch, header(batch)) for batch in batches):
                return batches
            problem = "a batch does not match its CRC32C"
        except BadBatch as error:
            problem = error.message
        raise AttemptFailed(str(self._pool.addresses), f"sent damaged bytes: {problem}", sent=True)

    async def _go_on_behind(self, error: ErrorBody, failure: RemoteError) -> None:
        """Move behind what the broker has lost, or raise if that is not the trouble."""
        if error.code == "damaged_data" and error.next_offset is not None and error.next_offset > self.position:
            self._skip_to(error.next_offset, "are damaged on the broker's disk")
            return
        if error.code != "offset_out_of_range":
            raise failure
        topic, number = self._partition
        start = await self._api.offset_at(topic, number, "earliest")
        if start <= self.position:
            # Above the end: this is not the log that the position was in.
            raise failure
        self._skip_to(start, "expired before they were read")

    def _skip_to(self, offset: int, why: str) -> None:
        _log.warning(
            "%s: %d messages, from offset %d on, %s", self._partition, offset - self.position, self.position, why
        )
        self._on_gap(self._partition.number, self.position, offset)
        self.position = offset
