"""A broker as a child process that can be killed and started again on the same port and directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.model.errors import NotStored
from holdfast.testing.ports import free_port

_START_DEADLINE_S: Final = 30.0
_STOP_DEADLINE_S: Final = 30.0


class BrokerFailed(NotStored):
    """The broker did not start, or not in time."""


class BrokerProcess:
    """`holdfast serve` in a session of its own, so that Ctrl-C reaches only the one who watches."""

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._flags = flags
        self.data = directory / "data"
        self.address = f"127.0.0.1:{free_port()}"
        self._ready_file = directory / "ready.json"
        self._log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start and wait until it serves; returns how many seconds that took."""
        self._ready_file.unlink(missing_ok=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "holdfast.cli", "serve", "--data", str(self.data)]
        command += [
            "--http",
            self.address,
            "--text",
            "127.0.0.1:0",
            "--ready-file",
            str(self._ready_file),
            *self._flags,
        ]
        # Settings of the one who watches are not the demo's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        while not self._ready_file.exists():
            if process.poll() is not None or time.monotonic() - started > _START_DEADLINE_S:
                self.kill()
                raise BrokerFailed("the broker did not start: " + self._log.read_text("utf-8", "replace")[-2000:])
            time.sleep(0.01)
        return time.monotonic() - started

    def kill(self) -> None:
        """As a power cut would: no goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """In order; killed if it takes too long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_DEADLINE_S)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()
