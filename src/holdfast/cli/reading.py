"""Printing a topic's messages as they come, and acknowledging what was printed.

Raw values go out in the batches they were stored in, so that a topic can be copied into a file at the speed
of the disk. What was written and flushed is acknowledged, never earlier.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.cli import output, recording
from holdfast.client import connect
from holdfast.client.limits import RETRIED_STATUSES
from holdfast.client.records import received_line
from holdfast.model.errors import ConnectionLost, RemoteError
from holdfast.model.member_errors import NodeRemoved

if TYPE_CHECKING:
    from holdfast.client import Message, Subscription
    from holdfast.client.records import RecordFile

_TAKE_MESSAGES_MAX: Final = 1000


class Reader:
    """One reading of one topic, until the count, the timeout, a signal or a closed pipe."""

    def __init__(
        self,
        topic: str,
        name: str | None,
        *,
        count: int | None,
        timeout_s: float | None,
        as_json: bool,
        records: RecordFile | None = None,
    ) -> None:
        self.printed = 0
        self.terminated = False
        self._topic = topic
        self._name = name
        self._count = count
        self._timeout_s = timeout_s
        self._as_json = as_json
        self._records = records
        self._receiver = recording.receiver(name)
        self._server = ""

    async def run(self, server: str, start: str | int) -> None:
        self._server = server
        task = asyncio.current_task()
        assert task is not None
        # As Ctrl-C: leave in order, with what was printed acknowledged.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate, task)
        try:
            async with (
                connect(server) as broker,
                broker.subscribe(self._topic, self._name, start=start) as subscription,
            ):
                if sys.stdin.isatty() and sys.stderr.isatty():
                    output.note(f"reading {self._topic}; Ctrl-C leaves")
                while self._count is None or self.printed < self._count:
                    if not await self.print_some(subscription):
                        break
        except asyncio.CancelledError:
            if not self.terminated:
                raise

    def _terminate(self, task: asyncio.Task[Any]) -> None:
        self.terminated = True
        task.cancel()

    async def print_some(self, subscription: Subscription) -> bool:
        """Print the next messages and acknowledge them; `False` if none came in time."""
        while True:
            try:
                if self._count is None and not self._as_json and self._records is None:
                    return await self._print_batch(subscription)
                return await self._print_messages(subscription)
            except (ConnectionLost, RemoteError) as error:
                # The client has tried for a while; somebody who follows a topic wants to go on.
                if self._timeout_s is not None or not _may_pass(error):
                    raise

    async def _print_batch(self, subscription: Subscription) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                batch = await subscription.take_batch()
        except TimeoutError:
            return False
        values = batch.values
        _write(b"\n".join((*values, b"")))
        self.printed += len(values)
        batch.ack_soon()
        return True

    async def _print_messages(self, subscription: Subscription) -> bool:
        left = _TAKE_MESSAGES_MAX if self._count is None else self._count - self.printed
        messages = await subscription.take(min(left, _TAKE_MESSAGES_MAX), self._timeout_s)
        _write(b"".join([(as_json(message) if self._as_json else message.value) + b"\n" for message in messages]))
        self.printed += len(messages)
        if self._records is not None:
            self._records.write(self._received(message) for message in messages)
            # What is acknowledged does not come again: it has to be in the file before.
            self._records.flush()
        for message in messages:
            message.ack_soon()
        return bool(messages)

    def _received(self, message: Message) -> dict[str, Any]:
        place = {"partition": message.partition, "offset": message.offset}
        return received_line(self._topic, message.id, self._server, self._receiver, **place)


def _may_pass(error: ConnectionLost | RemoteError) -> bool:
    """Whether a broker is away, or the others are whom it needs; one that was taken out stays out."""
    if isinstance(error, RemoteError):
        return error.http_status in RETRIED_STATUSES and error.code != NodeRemoved.code
    return True


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def as_json(message: Message) -> bytes:
    """The message as the HTTP interface shows it, with its partition."""
    described: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "id": message.id,
        **text_or_base64("key", "key_base64", message.key),
        **text_or_base64("value", "base64", message.value),
        "headers": {name: content.decode("utf-8", "replace") for name, content in message.stored.headers},
    }
    return msgspec.json.encode(described)


def text_or_base64(name: str, base64_name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    with contextlib.suppress(UnicodeDecodeError):
        return {name: content.decode()}
    return {base64_name: base64.b64encode(content).decode("ascii")}
