"""Clients that know every address of a cluster and publish one message at a time while nodes come and go.

Every message has an id and is sent again, to the next address, until it is acknowledged. Times are of the
monotonic clock, which all processes of a machine share: the driver knows when it killed, the generator when it
was answered.
"""

import asyncio
import logging
import socket
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import holdfast
from benchmarks.load import text
from benchmarks.load.background import Told
from benchmarks.load.wire import LoadFailed, connect, payload, read_until
from benchmarks.process import HOST

# A node that holds a publish back waits for a leader; who waits longer than this asks another node.
ATTEMPT_TIMEOUT_S = 5.0
PUBLISH_TIMEOUT_S = 30.0
ALL_REFUSED_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Addresses:
    topic: str
    text_ports: tuple[int, ...]
    http_ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Publishes:
    """When each publish began and when it was acknowledged, in order."""

    began_s: "array[float]" = field(default_factory=lambda: array("d"))
    acknowledged_s: "array[float]" = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.acknowledged_s)

    def add(self, began_s: float, acknowledged_s: float) -> None:
        self.began_s.append(began_s)
        self.acknowledged_s.append(acknowledged_s)

    def next_after(self, moment_s: float) -> float:
        """Seconds from then until a publish that began later was acknowledged.

        One that began before may have been answered already, its answer only waits to be read.
        """
        position = bisect_left(self.began_s, moment_s)
        if position == len(self.began_s):
            raise LoadFailed("nothing was acknowledged any more")
        return self.acknowledged_s[position] - moment_s

    def longest_silence(self, from_s: float, until_s: float) -> float:
        """The longest time between two acknowledgements, of what lies between the two moments."""
        return max(self._silences(from_s, until_s), default=until_s - from_s)

    def _silences(self, from_s: float, until_s: float) -> Iterator[float]:
        first = max(0, bisect_left(self.acknowledged_s, from_s) - 1)
        for one, other in pairwise(self.acknowledged_s[first:]):
            if one >= until_s:
                return
            yield other - max(one, from_s)


class TextClient:
    """The least a client can do: on any trouble, the next address, at once."""

    def __init__(self, addresses: Addresses) -> None:
        self._ports = addresses.text_ports
        self._turn = 0
        self._connection: socket.socket | None = None

    def publish(self, line: bytes) -> None:
        deadline = time.monotonic() + PUBLISH_TIMEOUT_S
        tries = 0
        while not self._try(line):
            tries += 1
            if time.monotonic() > deadline:
                raise LoadFailed(f"not acknowledged in {PUBLISH_TIMEOUT_S:.0f} s and {tries} tries")
            if tries % len(self._ports) == 0:
                time.sleep(ALL_REFUSED_PAUSE_S)

    def _try(self, line: bytes) -> bool:
        try:
            if self._connection is None:
                self._connection = _dial(self._ports[self._turn])
            self._connection.sendall(line)
            if read_until(self._connection, b"\n") == text.PUBACK:
                return True
        except (OSError, LoadFailed):
            pass  # lost or silent: the message is sent again
        self.close()
        self._turn = (self._turn + 1) % len(self._ports)
        return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _dial(port: int) -> socket.socket:
    connection = connect(port)
    connection.settimeout(ATTEMPT_TIMEOUT_S)
    if read_until(connection, b"\n") != text.GREETING:
        connection.close()
        raise LoadFailed("not a Holdfast text port")
    return connection


def by_text(addresses: Addresses, told: Told) -> Publishes:
    """PUBLISH_ID lines on a bare socket."""
    publishes, client = Publishes(), TextClient(addresses)
    try:
        while not told.to_stop:
            line = text.publish_id(addresses.topic, f"m{len(publishes)}", payload(len(publishes)))
            began_s = time.monotonic()
            client.publish(line)
            publishes.add(began_s, time.monotonic())
            if len(publishes) == 1:
                told.say_ready()
    finally:
        client.close()
    return publishes


def by_python_client(addresses: Addresses, told: Told) -> Publishes:
    """The client that people import."""
    # It tells of every lost connection, and here they are lost on purpose.
    logging.getLogger("holdfast.client").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(_by_python_client(addresses, told))
    except holdfast.HoldfastError as error:
        raise LoadFailed(f"{type(error).__name__}: {error}") from error


async def _by_python_client(addresses: Addresses, told: Told) -> Publishes:
    publishes = Publishes()
    url = "holdfast://" + ",".join(f"{HOST}:{port}" for port in addresses.http_ports)
    async with holdfast.connect(url, timeout_s=PUBLISH_TIMEOUT_S) as broker:
        while not told.to_stop:
            number = len(publishes)
            began_s = time.monotonic()
            await broker.publish(addresses.topic, payload(number), id=f"m{number}")
            publishes.add(began_s, time.monotonic())
            if number == 0:
                told.say_ready()
    return publishes
