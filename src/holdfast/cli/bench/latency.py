"""One message at a time: how long until it is acknowledged, and until a reader who waits has it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from holdfast.cli.bench import wires
from holdfast.cli.bench.pump import STALL_S, OnProgress
from holdfast.cli.bench.report import Flow, Histogram
from holdfast.cli.bench.via import Via
from holdfast.cli.bench.wires import BenchFailed, HttpReplies, LineReplies, Replies, received
from holdfast.client.addresses import Address

# The first rounds fill caches; they are not counted.
WARM_UP: Final = 20
_POLL_MS: Final = 30_000


class Probe:
    """A connection that publishes and one that waits for the message."""

    def __init__(
        self,
        publisher: socket.socket,
        reader: socket.socket,
        new_replies: Callable[[], Replies],
        request: bytes,
        before: Callable[[int], None],
    ) -> None:
        self._publisher = publisher
        self._reader = reader
        self._replies = {publisher: new_replies(), reader: new_replies()}
        self._request = request
        self._before = before

    def round(self, number: int) -> tuple[float, float]:
        """Publish one message; seconds until the acknowledgement and until the delivery."""
        self._before(number)
        times: dict[socket.socket, float] = {}
        started = time.perf_counter()
        self._publisher.sendall(self._request)
        while len(times) < len(self._replies):
            waiting = [each for each in self._replies if each not in times]
            ready, _, _ = select.select(waiting, (), (), STALL_S)
            now = time.perf_counter()
            if not ready:
                raise BenchFailed(f"message {number + 1} was not answered and delivered within {STALL_S:.0f} s")
            for connection in ready:
                if self._replies[connection].feed(received(connection)):
                    times[connection] = now - started
        return times[self._publisher], times[self._reader]


def measure(probe: Probe, messages: int, on_progress: OnProgress) -> tuple[Flow, dict[str, Histogram]]:
    for number in range(WARM_UP):
        probe.round(number)
    acknowledged, delivered = Histogram(), Histogram()
    started = time.perf_counter()
    for number in range(messages):
        acknowledged_s, delivered_s = probe.round(WARM_UP + number)
        acknowledged.add(acknowledged_s)
        delivered.add(delivered_s)
        on_progress(number + 1)
    flow = Flow(messages, time.perf_counter() - started)
    return flow, {"acknowledged": acknowledged, "delivered": delivered}


def text_probe(stack: contextlib.ExitStack, address: Address, topic: str, value: bytes) -> Probe:
    publisher = stack.enter_context(wires.dial_text(address))
    reader = stack.enter_context(wires.dial_text(address))
    wires.ask_text(reader, f"SUBSCRIBE|{topic}\n".encode())
    return Probe(publisher, reader, LineReplies, wires.text_publish(topic, [value]), lambda number: None)


def http_probe(stack: contextlib.ExitStack, address: Address, via: Via, topic: str, value: bytes) -> Probe:
    """The topic is empty and nobody else's, so message `number` gets that offset."""
    publisher = stack.enter_context(wires.dial(address))
    reader = stack.enter_context(wires.dial(address))
    accept = "application/json"
    if via is Via.HTTP:
        request = wires.http_publish(address, topic, [value])
    else:
        accept = "application/vnd.holdfast.batches"
        request = wires.batches_publish(address, topic, [value], time.time_ns() // 1_000_000)

    def poll(number: int) -> None:
        reader.sendall(wires.http_read(address, topic, number, messages_max=1, wait_ms=_POLL_MS, accept=accept))

    return Probe(publisher, reader, HttpReplies, request, poll)
