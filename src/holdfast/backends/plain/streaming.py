"""One connection of a primary to its backup: entries in their order, what of them is delivered, and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.backends.plain.journal import Entry, Journal
from holdfast.backends.plain.link import Link
from holdfast.backends.plain.marking import Marking
from holdfast.consensus.plain_sending import Sending
from holdfast.wire.replication import bare_replicate_line, clear_line, mark_line, replicate_line

# One write; heartbeats and marks have their turn after it.
_READ_BYTES: Final = 128 * 1024


class Streaming:
    """Runs from the moment the backup may be sent something until the connection is lost."""

    def __init__(
        self,
        journal: Journal,
        link: Link,
        sending: Sending,
        marking: Marking,
        *,
        mark: int,
        is_bare: bool,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._journal = journal
        self._link = link
        self._sending = sending
        self._marking = marking
        self._is_bare = is_bare
        self._work = asyncio.Event()
        self._tasks = [spawn(self._send_on()), spawn(marking.tell(mark, self._sent, self._say_delivered))]

    def look_again(self) -> None:
        self._work.set()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _sent(self) -> int:
        return self._sending.sent or 0

    async def _send_on(self) -> None:
        while True:
            self._work.clear()
            while (due := self._sending.next_to_send()) is not None:
                entries = self._journal.read(due[0], _READ_BYTES, due[1])
                self._link.write(b"".join(map(self._line, entries)))
                self._sending.sent_to(entries[-1].position + 1)
                self._marking.look_again()
                await self._link.drained()
                await asyncio.sleep(0)
            await self._work.wait()

    def _line(self, entry: Entry) -> bytes:
        if self._is_bare:
            return bare_replicate_line(entry.topic, entry.value)
        return replicate_line(entry.message_id, entry.position + 1, entry.topic, entry.value)

    async def _say_delivered(self, entries: list[Entry]) -> None:
        """A backup that does not read is waited for: it would have to be remembered for it otherwise."""
        if self._is_bare:
            self._link.write(b"".join(clear_line(entry.topic, entry.value) for entry in entries))
        else:
            self._link.write(b"".join(mark_line(entry.message_id, entry.position + 1) for entry in entries))
        await self._link.drained()
