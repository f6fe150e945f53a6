"""The cable between the two of a pair: connections that keep their order, stall, break, and are refused.

Unlike `network`, this is TCP: what is sent on one connection arrives in order or not at all. A direction that is
blocked holds everything back until it is free again, a process that is gone answers with a reset, and a machine that
is gone answers nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from simulation.world import World

Packet = tuple[Any, ...]
Handler = Callable[[Packet], None]

FIN: Packet = ("fin",)
CALM_DELAY_MS = 1.0


class Wire:
    """What is true of the way between two machines; `frozen_until_ms` is when a process reads on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocked: Counter[tuple[int, int]] = Counter()
        self.delay_ms = CALM_DELAY_MS
        self.frozen_until_ms = [0.0, 0.0]
        self.is_off = [False, False]
        self._streams: list[Stream] = []

    def delay(self) -> float:
        return 0.05 + self.delay_ms * self.world.dice.random() ** 2

    def is_open(self, sender: int, receiver: int) -> bool:
        return self.blocked[sender, receiver] <= 0 and not self.is_off[receiver] and not self.is_off[sender]

    def can_shake_hands(self) -> bool:
        return self.is_open(0, 1) and self.is_open(1, 0)

    def connect(self, dialer: int, acceptor: int) -> Stream:
        self._streams = [stream for stream in self._streams if not stream.is_over]
        stream = Stream(self, dialer, acceptor)
        self._streams.append(stream)
        return stream

    def block(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.blocked[pair] += 1

    def unblock(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.blocked[pair] -= 1
        self.resume()

    def resume(self) -> None:
        """Something is open again: what waited is sent again soon."""
        for stream in self._streams:
            stream.resume()

    def break_all(self) -> None:
        """A device in between forgets every connection: both sides hear of it when they next look."""
        for stream in list(self._streams):
            stream.reset()

    def calm(self) -> None:
        self.blocked.clear()
        self.delay_ms = CALM_DELAY_MS
        self.is_off = [False, False]
        self.resume()


class Stream:
    """One connection. Each end has a handler while its process has the connection open."""

    def __init__(self, wire: Wire, dialer: int, acceptor: int) -> None:
        self._wire = wire
        self.dialer, self.acceptor = dialer, acceptor
        self._handlers: dict[int, Handler | None] = {dialer: None, acceptor: None}
        self._queues: dict[int, deque[tuple[float, Packet]]] = {dialer: deque(), acceptor: deque()}
        self._is_planned = {dialer: False, acceptor: False}
        self._stalled_since_ms: dict[int, float] = {}

    @property
    def is_over(self) -> bool:
        return all(handler is None for handler in self._handlers.values())

    def open(self, end: int, handler: Handler) -> None:
        self._handlers[end] = handler

    def is_open_at(self, end: int) -> bool:
        return self._handlers[end] is not None

    def send(self, sender: int, packet: Packet) -> None:
        queue = self._queues[sender]
        queue.append((self._wire.world.now_ms + self._wire.delay(), packet))
        self._plan(sender, queue[0][0] - self._wire.world.now_ms)

    def close(self, end: int) -> None:
        """The other side reads what was sent, then the end of it."""
        if self._handlers[end] is not None:
            self._handlers[end] = None
            self.send(end, FIN)

    def vanish(self, end: int) -> None:
        """The machine is off: nobody is told."""
        self._handlers[end] = None
        self._queues[end].clear()

    def reset(self) -> None:
        """What is under way is lost; each side hears it at once."""
        for end, queue in self._queues.items():
            queue.clear()
            if self._handlers[end] is not None:
                queue.append((self._wire.world.now_ms, FIN))
                self._plan(end, self._wire.delay())

    def stalled_ms(self, sender: int) -> float:
        """How long something that was sent has had no answer of the other machine."""
        since = self._stalled_since_ms.get(sender)
        return 0.0 if since is None else self._wire.world.now_ms - since

    def resume(self) -> None:
        for sender in list(self._stalled_since_ms):
            self._plan(sender, 0.1 + self._wire.world.dice.random() * 20.0)

    def _plan(self, sender: int, delay_ms: float) -> None:
        if not self._is_planned[sender]:
            self._is_planned[sender] = True
            self._wire.world.after(max(0.0, delay_ms), self._deliver, sender)

    def _deliver(self, sender: int) -> None:
        self._is_planned[sender] = False
        wire, queue = self._wire, self._queues[sender]
        receiver = self.acceptor if sender == self.dialer else self.dialer
        now_ms = wire.world.now_ms
        if not queue:
            return
        if not wire.is_open(sender, receiver):
            self._stalled_since_ms.setdefault(sender, now_ms)
            return
        self._stalled_since_ms.pop(sender, None)
        if wire.frozen_until_ms[receiver] > now_ms and self._handlers[receiver] is not None:
            self._plan(sender, wire.frozen_until_ms[receiver] - now_ms + wire.world.dice.random())
            return
        _, packet = queue.popleft()
        if queue:
            self._plan(sender, queue[0][0] - now_ms)
        handler = self._handlers[receiver]
        if handler is not None:
            if packet is FIN:
                self._handlers[receiver] = None
            handler(packet)
        elif packet is not FIN and self._handlers[sender] is not None:
            self.send(receiver, FIN)
