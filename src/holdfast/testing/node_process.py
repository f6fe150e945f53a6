"""One node as a process: `holdfast serve` with a settings file of its own, on ports that stay the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.testing import ports as port_scheme
from holdfast.testing.errors import ClusterFailed
from holdfast.testing.ports import Ports

_LOG_TAIL_LINES: Final = 12
_WRITTEN_ANEW: Final = "# Written anew at each start of the cluster: changes made here are lost.\n"
# What a node leaves in its directory that was taken out of its cluster; gone when it comes back.
_REMOVED: Final = "removed.json"
# A node hands over what it leads and answers what it has received; then it leaves.
_STOP_S: Final = 30.0

Setting = str | int | bool | Sequence[str] | None


class NodeProcess:
    """A node of a `LocalCluster`, running or not. Beside its data directory stand `<id>.toml` and `<id>.log`."""

    def __init__(
        self,
        id: str,
        directory: Path,
        ports: Ports,
        *,
        host: str = port_scheme.HOST,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`wrapper` is a command that runs the node's own, such as `nsenter`; `environment` is added to ours."""
        self.id = id
        self.data = directory / id
        self.log_file = directory / f"{id}.log"
        self.text, self.http, self.peer = port_scheme.addresses(ports, host)
        self.is_paused = False
        self._wrapper = tuple(wrapper)
        self._environment = dict(environment or {})
        self._settings_file = directory / f"{id}.toml"
        self._ready_file = directory / f"{id}.ready.json"
        self._arguments: Sequence[str] = ("serve", "--config", str(self._settings_file))
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"paused, pid {self.pid}" if self.is_paused else f"pid {self.pid}" if self.is_running else "not running"
        return f"<node {self.id}: {state}, text {self.text}, http {self.http}, peer {self.peer}>"

    @property
    def pid(self) -> int | None:
        """Of the running process; of the last one where none runs."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process; a paused one counts."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the last process ended, negative for a signal; `None` while it runs and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def is_serving(self) -> bool:
        """Whether it has said since its last start that it takes connections."""
        return self.is_running and self._ready_file.exists()

    @property
    def was_removed(self) -> bool:
        """Whether it was taken out of its cluster, and knows it."""
        return was_removed(self.data)

    def write_settings(self, peers: Sequence[str], settings: Mapping[str, Setting]) -> None:
        """The file that this node is started with; one like it is what a node on a machine of its own has."""
        values = {
            "node": self.id,
            "data": str(self.data),
            "text": self.text,
            "http": self.http,
            "peer": self.peer,
            "peers": list(peers),
            **settings,
        }
        lines = [f"{name} = {_toml(value)}\n" for name, value in values.items() if value is not None]
        self._settings_file.write_text(_WRITTEN_ANEW + "".join(lines), "utf-8")

    def start_with(self, *arguments: str) -> None:
        """From the next start on, run another command than `serve`, such as `backup`, and without the settings file."""
        self._arguments = arguments

    # --- life -------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the process, without waiting for anything. Only for `LocalCluster`: see there from which thread."""
        if self.is_running:
            raise ClusterFailed(f"{self.id} runs already, as process {self.pid}")
        self._ready_file.unlink(missing_ok=True)
        command = [*self._wrapper, sys.executable, "-m", "holdfast.testing.leash", str(os.getpid()), *self._arguments]
        command += ["--ready-file", str(self._ready_file)]
        # Settings of the one who tests are not the cluster's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "HOLDFAST_QUIET": "1", **self._environment},
                start_new_session=True,
            )
        self.is_paused = False

    def kill(self) -> None:
        """As a crash would: no goodbye. Returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._gone()

    def tell_to_stop(self) -> None:
        if self.is_running:
            self.resume()
            self._running().send_signal(signal.SIGTERM)

    def wait_stopped(self) -> int:
        """Returns its exit code; killed if it takes too long."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterFailed(f"{self.id} did not stop within {_STOP_S:g} s\n{self.log_tail()}") from None
        self._gone()
        return code

    def pause(self) -> None:
        """As a machine that hangs: connections stay open, nothing is answered. Returns when it stands still."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ClusterFailed(f"{self.id} does not run; start it first")
        return self._process

    def _gone(self) -> None:
        self.is_paused = False
        self._ready_file.unlink(missing_ok=True)

    # --- looking at it ----------------------------------------------------------------------------

    def wait_until_serving(self, deadline: float) -> None:
        """Wait until it takes connections, to `deadline` of the monotonic clock. Raises `ClusterFailed`."""
        while not self.is_serving:
            if not self.is_running:
                raise ClusterFailed(f"{self.id} ended with code {self.exit_code} while it started\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{self.id} did not start in time\n{self.log_tail()}")
            time.sleep(0.01)

    def log(self) -> str:
        """All it wrote, over all its runs."""
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def log_tail(self) -> str:
        """The last lines, under a heading, for errors."""
        lines = self.log().splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join((f"--- {self.log_file.name} ends with", *(lines or ["(nothing)"])))


def was_removed(data: Path) -> bool:
    return (data / _REMOVED).exists()


def _toml(value: Setting) -> str:
    """Text, numbers, switches and lists of text are written in TOML as they are in JSON."""
    return json.dumps(value if isinstance(value, str | int) else list(value or ()), ensure_ascii=False)
