"""A slow and lossy network in user space: `python -m testkit.network.router NAMESPACE=ADDRESS…`, driven by stdin.

In each namespace it has a TUN device, `slow0`. A packet that a route sends there is read here, held in a heap for as
long as the dice say, and written into the namespace that has its target's address; or it is lost. Packets may overtake
each other, as they do on such networks. Each line on stdin is JSON, `{"delay_ms", "jitter_ms", "loss", "seed"}`, and
is answered with a line; when stdin ends, so does the process, and its devices go with it. What is held is bounded: a
queue that is full drops what comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

DEVICE: Final = "slow0"
# From <linux/if_tun.h> and <sched.h>.
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_CLONE_NEWNET: Final = 0x40000000
_PACKET_BYTES_MAX: Final = 1 << 16
_HELD_MAX: Final = 20_000
_TARGET: Final = slice(16, 20)
_IPV4: Final = 4


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(fd)


def _device() -> int:
    """A TUN device in the namespace this process is in."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    # What comes from here may be answered by another way.
    for which in ("all", DEVICE):
        Path(f"/proc/sys/net/ipv4/conf/{which}/rp_filter").write_text("0", "ascii")
    return fd


class Router:
    """Packets under way, by when they are due. `devices` are file descriptors by address."""

    def __init__(self, devices: Mapping[bytes, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._devices = devices
        self._clock = clock
        self._held: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._dice = random.Random(0)
        self._delay_s = self._jitter_s = self._loss = 0.0

    def set(self, *, delay_ms: float, jitter_ms: float, loss: float, seed: int) -> None:
        self._delay_s, self._jitter_s, self._loss = delay_ms / 1000, jitter_ms / 1000, loss
        self._dice.seed(seed)

    def take(self, packet: bytes) -> None:
        if packet[0] >> 4 != _IPV4 or len(self._held) >= _HELD_MAX or self._dice.random() < self._loss:
            return
        target = self._devices.get(packet[_TARGET])
        if target is None:
            return
        delay_s = max(0.0, self._delay_s + self._dice.uniform(-self._jitter_s, self._jitter_s))
        self._number += 1
        heapq.heappush(self._held, (self._clock() + delay_s, self._number, target, packet))

    def deliver(self) -> float | None:
        """Everything that is due; how long nothing will be, `None` where nothing is held."""
        while self._held:
            wait_s = self._held[0][0] - self._clock()
            if wait_s > 0:
                return wait_s
            _, _, target, packet = heapq.heappop(self._held)
            with contextlib.suppress(OSError):  # a device that is full or down loses packets, as networks do
                os.write(target, packet)
        return None


def main() -> None:
    devices: dict[bytes, int] = {}
    for argument in sys.argv[1:]:
        namespace, _, address = argument.partition("=")
        _enter(namespace)
        devices[socket.inet_aton(address)] = _device()
    router = Router(devices)
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    for fd in devices.values():
        waiting.register(fd, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select(router.deliver()):
            if key.fd == 0:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                router.set(**json.loads(line))
                print("set", flush=True)
                continue
            with contextlib.suppress(OSError):  # nothing more to read, or a device that is down for now
                for _ in range(64):
                    router.take(os.read(key.fd, _PACKET_BYTES_MAX))


if __name__ == "__main__":
    main()
