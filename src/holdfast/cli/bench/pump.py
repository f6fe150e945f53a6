"""Publishing at full speed: as many messages under way as the window allows, on each connection.

What is sent was built before the clock started. Only whole requests count, and a run that gets no reply
for half a minute is over.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.cli.bench.report import Flow, Histogram
from holdfast.cli.bench.wires import BenchFailed, Replies, received

STALL_S: Final = 30.0
OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to put on: `request(n)` builds the bytes of n messages, `units(n)` says how many replies those have."""

    dial: Callable[[], socket.socket]
    replies: Callable[[], Replies]
    request: Callable[[int], bytes]
    units: Callable[[int], int]
    messages: int
    batch: int
    window: int
    connections: int = 1


class _Line:
    """One connection: what is on its way there, and what it still owes."""

    def __init__(self, connection: socket.socket, replies: Replies) -> None:
        self.connection = connection
        self.unacknowledged = 0
        self._replies = replies
        self._unsent = memoryview(b"")
        self._units = 0
        self._owed: deque[tuple[int, int, float]] = deque()

    def start(self, request: bytes, units: int, messages: int) -> None:
        self._unsent = memoryview(request)
        self._owed.append((units, messages, time.perf_counter()))
        self.unacknowledged += messages

    def send(self) -> bool:
        """Send what the socket takes; whether the request is out."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
            except BlockingIOError:
                return False
            except OSError as error:
                raise BenchFailed(f"the connection broke: {error.strerror or error}") from error
        return True

    def receive(self, latencies: Histogram) -> int:
        """How many messages are acknowledged by what has come."""
        self._units += self._replies.feed(received(self.connection))
        now = time.perf_counter()
        done = 0
        while self._owed and self._units >= self._owed[0][0]:
            units, messages, started = self._owed.popleft()
            self._units -= units
            latencies.add(now - started)
            done += messages
        self.unacknowledged -= done
        return done


class _Pump:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._left = load.messages
        # All requests are the same but for the last one.
        self._requests = {size: load.request(size) for size in {load.batch, load.messages % load.batch} if size}
        self.latencies = Histogram()

    def fill(self, line: _Line) -> bool:
        """Start requests while there is room; whether the socket is full."""
        while line.send():
            size = min(self._load.batch, self._left)
            if not size or line.unacknowledged + size > self._load.window:
                return False
            self._left -= size
            line.start(self._requests[size], self._load.units(size), size)
        return True


def pump(load: Load, on_progress: OnProgress) -> Flow:
    """Publish everything and wait until all of it is acknowledged."""
    working = _Pump(load)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(load.connections):
            connection = stack.enter_context(load.dial())
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, _Line(connection, load.replies()))
        keys = list(selector.get_map().values())
        started = last_reply = time.perf_counter()
        acknowledged = 0
        for key in keys:
            _watch(selector, key, is_full=working.fill(key.data))
        while acknowledged < load.messages:
            events = selector.select(STALL_S)
            if time.perf_counter() - last_reply > STALL_S:
                raise BenchFailed(f"{acknowledged} messages were acknowledged, then none for {STALL_S:.0f} s")
            for key, mask in events:
                line: _Line = key.data
                if mask & selectors.EVENT_READ and (done := line.receive(working.latencies)):
                    acknowledged += done
                    last_reply = time.perf_counter()
                    on_progress(acknowledged)
                _watch(selector, key, is_full=working.fill(line))
    return Flow(acknowledged, last_reply - started, working.latencies)


def _watch(selector: selectors.BaseSelector, key: selectors.SelectorKey, *, is_full: bool) -> None:
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
    if key.events != wanted:
        selector.modify(key.fileobj, wanted, key.data)
