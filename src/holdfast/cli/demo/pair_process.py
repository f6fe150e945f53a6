"""The two brokers of a pair as processes: `holdfast primary` and `holdfast backup` on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from holdfast.cli import http
from holdfast.cli.demo.process import BrokerFailed
from holdfast.model.errors import ConnectionLost
from holdfast.testing import ports

_START_DEADLINE_S: Final = 30.0
_STOP_DEADLINE_S: Final = 10.0
_POLL_S: Final = 0.01
_ANSWER_S: Final = 5.0
ROLES: Final = ("primary", "backup")


def command(role: str, port: int, other: str, directory: Path) -> list[str]:
    """How one broker of the pair is started; it ends with whoever starts it."""
    arguments = [role, str(port), other, "--data", str(directory / role)]
    arguments += ["--ready-file", str(directory / f"{role}.ready.json")]
    return [sys.executable, "-m", "holdfast.testing.leash", str(os.getpid()), *arguments]


class PairProcesses:
    """Both brokers, below one directory. To be started from the main thread: they end with the thread that does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        base_port, self._mark = ports.choose(len(ROLES))
        text_ports = {role: ports.of_node(base_port, index).text for index, role in enumerate(ROLES)}
        self.addresses = {role: f"localhost:{port}" for role, port in text_ports.items()}
        self._commands = {
            role: command(role, text_ports[role], self.addresses[other], directory)
            for role, other in (ROLES, ROLES[::-1])
        }

    def start(self) -> None:
        """Start both and wait until they serve and are a pair."""
        for role in ROLES:
            self.spawn(role)
        deadline = time.monotonic() + _START_DEADLINE_S
        for role in ROLES:
            while not self._ready_file(role).exists():
                if self._processes[role].poll() is not None or time.monotonic() > deadline:
                    said = self._log(role).read_text("utf-8", "replace")[-2000:]
                    raise BrokerFailed(f"the {role} did not start: {said}")
                time.sleep(_POLL_S)
        while not self.are_together():
            if time.monotonic() > deadline:
                raise BrokerFailed("primary and backup did not find each other in time")
            time.sleep(_POLL_S)

    def spawn(self, role: str) -> None:
        """Start one, without waiting for anything; also one that was killed, on the same port and directory."""
        self._ready_file(role).unlink(missing_ok=True)
        # Settings of the one who watches are not the demo's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        with self._log(role).open("ab") as log:
            self._processes[role] = subprocess.Popen(
                self._commands[role],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "HOLDFAST_QUIET": "1"},
                start_new_session=True,
            )

    def are_together(self) -> bool:
        """Whether either could carry on alone now: both are there, and the backup has everything."""
        standing = {role: self._standing(role) for role in ROLES}
        roles = {described.get("role") for described in standing.values()}
        return roles == set(ROLES) and not any(described.get("is_alone") for described in standing.values())

    def _standing(self, role: str) -> dict[str, Any]:
        """How a broker says that it stands in its pair; nothing while it does not answer."""
        try:
            address = json.loads(self._ready_file(role).read_text("utf-8"))["http"]
            host, _, port = address.rpartition(":")
            described: dict[str, Any] = http.get(host, int(port), "/v1/cluster", _ANSWER_S).content["pair"] or {}
        except (OSError, ConnectionLost):
            return {}
        return described

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def kill(self, role: str) -> None:
        """As a power cut would: no goodbye."""
        self._processes[role].kill()
        self._processes[role].wait()

    def stop(self) -> None:
        """Those that still run, in order; killed if it takes too long."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._mark.close()

    def _ready_file(self, role: str) -> Path:
        return self._directory / f"{role}.ready.json"

    def _log(self, role: str) -> Path:
        return self._directory / f"{role}.log"
