"""Which messages of one request are new to one partition, and which were sent before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.broker.dedupe import DedupeWindow
from holdfast.broker.results import Gathered, failure, refuse, then
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, Published


class Recognised:
    """Messages of one request: looked at part by part, and then appended together.

    Where others go on between two parts, the ids of the first are reserved: who sends one of them meanwhile waits for
    this append, and gets the offset that it gives.
    """

    def __init__(
        self,
        messages: Sequence[NewMessage],
        gathered: Gathered,
        number: int,
        window: DedupeWindow | None,
        is_void: Callable[[Offset], bool],
    ) -> None:
        self._messages = messages
        self._gathered = gathered
        self._number = number
        self._window = window
        self._is_void = is_void
        # Places in the request of those that are new.
        self.fresh: list[int] = []
        # By id, the places in the batch; and the messages that come twice in the request.
        self._fresh_ids: dict[str, int] = {}
        self._repeats: list[tuple[int, int]] = []
        self._unreserved: dict[str, int] = {}
        # The append, for those who have to wait for it before it is begun.
        self._awaited: asyncio.Future[Offset] | None = None

    def look_at(self, places: Sequence[int], steady_ms: int) -> None:
        """Settle those that are stored, or being stored, already."""
        window, fresh, fresh_ids = self._window, self.fresh, self._fresh_ids
        for place in places:
            message_id = self._messages[place].id
            if message_id is None:
                fresh.append(place)
                continue
            assert window is not None, "ids are only admitted once the window is there"
            offset = window.stored_offset(message_id, steady_ms)
            if offset is not None and not self._is_void(offset):
                self._gathered.settle(place, Published(partition=self._number, offset=offset, duplicate=True))
            elif message_id in fresh_ids:
                self._repeats.append((place, fresh_ids[message_id]))
            elif (pending := window.pending(message_id)) is not None:
                self._gathered.settle_with(pending[0], [(place, pending[1])], self._number, duplicate=True)
            else:
                fresh_ids[message_id] = self._unreserved[message_id] = len(fresh)
                fresh.append(place)

    def reserve(self) -> None:
        """Others go on before the append is begun."""
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().create_future()
        if self._window is not None:
            self._window.reserve(self._unreserved, self._awaited)
        self._unreserved = {}

    def appended(self, appended: asyncio.Future[Offset], steady_ms: int) -> None:
        """The append of those that are new has begun."""
        if self._fresh_ids:
            assert self._window is not None
            self._window.storing(self._fresh_ids, appended, steady_ms)
        if self._awaited is not None:
            then(appended, self._awaited, lambda offset: offset)
            self._awaited.add_done_callback(failure)  # it may be that nobody waits, and nobody asks why it failed
        self._gathered.settle_run(appended, self.fresh, self._number)
        self._gathered.settle_with(appended, self._repeats, self._number, duplicate=True)

    def give_up(self, error: BaseException) -> None:
        """Those that are new are not appended."""
        if self._awaited is not None:
            if self._window is not None:
                self._window.release(self._fresh_ids)
            refuse(self._awaited, error)
        self._gathered.fail(len(self.fresh) + len(self._repeats), error)
