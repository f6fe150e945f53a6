"""A broker as a child process that can be killed and started again on the same port and directory."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from holdfast.model.errors import NotStored
from holdfast.testing.errors import ClusterFailed
from holdfast.testing.node_process import NodeProcess
from holdfast.testing.ports import HOST, Ports, free_port

_START_DEADLINE_S: Final = 30.0


class BrokerFailed(NotStored):
    """The broker did not start, or not in time."""


class BrokerProcess:
    """`holdfast serve` in a session of its own, so that Ctrl-C reaches only the one who watches."""

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.data = directory / "data"
        port = free_port()
        self.address = f"{HOST}:{port}"
        self._node = NodeProcess("broker", directory, Ports(text=0, http=port, peer=0))
        addresses = ("--http", self.address, "--text", self._node.text)
        self._node.start_with("serve", "--data", str(self.data), *addresses, *flags)

    @property
    def pid(self) -> int:
        assert self._node.pid is not None
        return self._node.pid

    def start(self) -> float:
        """Start and wait until it serves; returns how many seconds that took."""
        started = time.monotonic()
        self._node.spawn()
        try:
            self._node.wait_until_serving(started + _START_DEADLINE_S)
        except ClusterFailed as error:
            self.kill()
            raise BrokerFailed(f"the broker did not start: {error}") from error
        return time.monotonic() - started

    def kill(self) -> None:
        """As a power cut would: no goodbye."""
        self._node.kill()

    def stop(self) -> None:
        """In order; killed if it takes too long."""
        self._node.tell_to_stop()
        with contextlib.suppress(ClusterFailed):
            self._node.wait_stopped()
