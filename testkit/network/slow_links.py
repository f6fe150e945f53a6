"""The network of a long run: ways between nodes can be cut, and they can be slow and lossy.

A way that is slow has a route of its own, to the device of `router`. One that is cut is cut, slow or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from testkit.machine import CannotBreak, call, missing
from testkit.network.namespaces import Network
from testkit.network.router import DEVICE

_ROUTER_S: Final = 20.0
Way = tuple[int, int]


def why_not_slow() -> str | None:
    """Why ways cannot be made slow here; `None` if they can."""
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    if (reason := missing(["ip", "nsenter"], root=True)) is not None:
        return reason
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"needs /dev/net/tun: {error.strerror}"
    return None


class SlowLinks(Network):
    """All methods may be called from any thread."""

    def __init__(self, nodes: int) -> None:
        self._slow: set[Way] = set()
        self._lock = threading.RLock()
        self._router: subprocess.Popen[bytes] | None = None
        super().__init__(nodes)

    def _ways(self) -> list[Way]:
        return [(one, other) for one in range(self._count) for other in range(self._count) if one != other]

    # --- cut ------------------------------------------------------------------------------------------

    def cut(self, sender: int, receiver: int) -> None:
        with self._lock:
            if (sender, receiver) in self._slow:
                self._route(sender, receiver, is_slow=False)
            super().cut(sender, receiver)

    def keep_only(self, ways: Iterable[Way]) -> None:
        """Cut everything else, both ways: a pair is joined if either of its ways is named."""
        joined = {frozenset(way) for way in ways}
        for way in self._ways():
            if frozenset(way) not in joined:
                self.cut(*way)

    def heal(self) -> None:
        with self._lock:
            was_cut = set(self._cut)
            super().heal()
            for sender, receiver in sorted(was_cut & self._slow):
                self._route(sender, receiver, is_slow=True)

    # --- slow -----------------------------------------------------------------------------------------

    def slow_down(self, ways: Iterable[Way], *, delay_ms: float, jitter_ms: float, loss: float, seed: int) -> None:
        """From now on these ways have a delay of so much, give or take, and lose this share of all packets."""
        with self._lock:
            self._tell_router({"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss, "seed": seed})
            for sender, receiver in sorted(set(ways) - self._slow):
                if (sender, receiver) not in self._cut:
                    self._route(sender, receiver, is_slow=True)
                self._slow.add((sender, receiver))

    def speed_up(self) -> None:
        """Ways are as fast as they are; what is under way arrives."""
        with self._lock:
            for sender, receiver in sorted(self._slow - self._cut):
                self._route(sender, receiver, is_slow=False)
            self._slow.clear()

    def _route(self, sender: int, receiver: int, *, is_slow: bool) -> None:
        what = [f"{self.host(receiver)}/32", "dev", DEVICE]
        verb = ["replace", *what, "src", self.host(sender)] if is_slow else ["del", *what]
        call("ip", "-n", self.namespace(sender), "route", *verb)

    # --- the process ----------------------------------------------------------------------------------

    def _tell_router(self, settings: dict[str, float]) -> None:
        if self._router is None:
            self._start_router()
        assert self._router is not None and self._router.stdin is not None
        self._router.stdin.write(json.dumps(settings).encode() + b"\n")
        self._router.stdin.flush()
        self._expect(b"set\n")

    def _start_router(self) -> None:
        targets = [f"{self.namespace(index)}={self.host(index)}" for index in range(self._count)]
        self._router = subprocess.Popen(
            [sys.executable, "-m", "testkit.network.router", *targets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._expect(b"ready\n")
        for index in range(self._count):
            call("ip", "-n", self.namespace(index), "link", "set", DEVICE, "up")

    def _expect(self, answer: bytes) -> None:
        assert self._router is not None and self._router.stdout is not None and self._router.stderr is not None
        if self._router.stdout.readline() != answer:
            said = self._router.stderr.read().decode("utf-8", "replace")
            raise CannotBreak(f"the router of slow ways ended: {said.strip()[-300:]}")

    def close(self) -> None:
        if self._router is not None:
            assert self._router.stdin is not None
            with contextlib.suppress(OSError):
                self._router.stdin.close()
            try:
                self._router.wait(_ROUTER_S)
            except subprocess.TimeoutExpired:
                self._router.kill()
            with self._router:
                pass  # waits, and closes what was read from it
        super().close()
