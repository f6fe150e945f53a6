"""Names that a proxy asks under where its clients give none: as few as a broker remembers."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from typing import Final

from holdfast.model.errors import Overloaded
from holdfast.model.limits import READERS_PER_CURSOR_MAX

# How many reads of one pointer, or creations in one group, a proxy has under way: of each, a broker remembers the 256
# readers that asked last. So what is sent again is known there, as long as no more than four proxies ask at once.
AT_ONCE_MAX: Final = READERS_PER_CURSOR_MAX // 4

# A queue and a client; or no queue and a group, of which numbers are drawn.
Pointer = tuple[int, str]


class _Line:
    """Names that are free for one pointer, and who waits for one."""

    __slots__ = ("free", "made", "waiting")

    def __init__(self) -> None:
        self.free: list[str] = []
        self.made = 0
        self.waiting: deque[asyncio.Future[str]] = deque()


class Readers:
    """Names to ask under, for each pointer one for each request under way: a broker remembers each one's last."""

    def __init__(self) -> None:
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)
        self._lines: dict[Pointer, _Line] = {}

    def take(self, pointer: Pointer) -> str | None:
        """A name to use alone; none where one has to be waited for."""
        line = self._lines.get(pointer)
        if line is None:
            line = self._lines[pointer] = _Line()
        if line.free:
            return line.free.pop()
        if line.made >= AT_ONCE_MAX:
            return None
        line.made += 1
        return f"{self._prefix}-{line.made}"

    async def wait(self, pointer: Pointer, timeout_s: float) -> str:
        """The same, in turn. Raises `Overloaded`."""
        reader = self.take(pointer)
        if reader is not None:
            return reader
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lines[pointer].waiting.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give_back(pointer, turn.result())
            if isinstance(error, TimeoutError):
                raise Overloaded(f"{AT_ONCE_MAX} requests like this are under way; try again in a moment") from None
            raise

    def request_id(self, reader: str) -> str:
        """Numbers rise over all readers, and so for each of them."""
        return f"{reader}:{next(self._numbers)}"

    def give_back(self, pointer: Pointer, reader: str) -> None:
        line = self._lines[pointer]
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(reader)
                return
        line.free.append(reader)
        if len(line.free) == line.made:
            del self._lines[pointer]
