"""`holdfast subscribe … ADDRESS [ADDRESS]`: a line a message, which says the broker it came from."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli import output, recording
from holdfast.cli.reading import text_or_base64
from holdfast.client import PairMessage, PairSubscriber
from holdfast.client.records import received_line

if TYPE_CHECKING:
    from holdfast.client.records import RecordFile


class PairReader:
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

    async def run(self, addresses: list[str]) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate, task)
        try:
            async with PairSubscriber(self._topic, *addresses, name=self._name, on_change=_tell) as subscriber:
                if sys.stdin.isatty() and sys.stderr.isatty():
                    output.note(f"reading {self._topic} from {' and '.join(addresses)}; Ctrl-C leaves")
                while self._count is None or self.printed < self._count:
                    message = await subscriber.get(self._timeout_s)
                    if message is None:
                        break
                    self._print(message)
        except asyncio.CancelledError:
            if not self.terminated:
                raise

    def _terminate(self, task: asyncio.Task[Any]) -> None:
        self.terminated = True
        task.cancel()

    def _print(self, message: PairMessage) -> None:
        line = as_json(message) if self._as_json else as_text(message)
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        self.printed += 1
        if self._records is not None:
            self._records.write([received_line(message.topic, message.id, message.broker, self._receiver)])


def as_text(message: PairMessage) -> bytes:
    """`[localhost:8080] topicC 17`: the broker, the topic, and the payload with its bytes unchanged."""
    return f"[{message.broker}] {message.topic} ".encode() + message.value


def as_json(message: PairMessage) -> bytes:
    described = {"broker": message.broker, "topic": message.topic, "id": message.id}
    return msgspec.json.encode({**described, **text_or_base64("value", "base64", message.value)})


def _tell(change: object) -> None:
    output.note(f"holdfast: {change}")
