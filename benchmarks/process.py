"""Servers as child processes: started in a group of their own, watched through /proc, always ended."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"

STOP_TIMEOUT_S = 15.0
READY_TIMEOUT_S = 60.0
READY_POLL_S = 0.02
LOG_TAIL_BYTES = 2_000


class ServerFailed(RuntimeError):
    """A server did not start, or ended while it was measured."""


def _cpu_clock(pid: int) -> int:
    """The kernel's number for the clock of a whole process: its id, inverted, with the kind of clock behind it."""
    return (~pid << 3) | 2


@dataclass(slots=True)
class Server:
    """A running server process and what the kernel says about it."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_s(self) -> float:
        """User and system time of all threads so far, exactly: `/proc` counts in steps of ten milliseconds."""
        try:
            return time.clock_gettime(_cpu_clock(self.pid))
        except OSError as error:
            raise ServerFailed(f"no processor time of process {self.pid}: {error}") from error

    def memory_bytes(self, key: str = "VmRSS") -> int:
        """Resident memory now (`VmRSS`) or at its highest (`VmHWM`)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"no {key} for process {self.pid}")

    def pin(self, cores: set[int]) -> None:
        """Keep all threads on these cores; threads that start later inherit them."""
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)

    def check(self) -> None:
        if self.process.poll() is not None:
            raise ServerFailed(f"{self.log_tail()} (ended with {self.process.returncode})")

    def log_tail(self) -> str:
        with suppress(OSError):
            return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return "(no log)"

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.log_tail()} (not ready after {timeout_s:.0f} s)")
            time.sleep(READY_POLL_S)

    def stop(self) -> None:
        """Ask, wait, then end the whole group: nothing outlives the measurement."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)


def start(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> Server:
    """Start a server in its own session, its output behind what `server.log` inside `directory` holds already.

    Whoever starts it stops it. A suite that is killed cannot stop anything, so where util-linux has `setpriv`
    the kernel ends the server then.
    """
    log_path = directory / "server.log"
    leash = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*leash, *command],
            cwd=directory,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, log_path)


@contextmanager
def running(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server for the time of the context, see `start`."""
    server = start(command, directory, environment)
    try:
        yield server
    finally:
        server.stop()


def stop_all(servers: Sequence[Server]) -> None:
    """End several at once: nodes of a cluster that end one by one wait for each other."""
    for server in servers:
        with suppress(ProcessLookupError):
            server.process.terminate()
    for server in servers:
        server.stop()


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A fresh directory for one server's data, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False
