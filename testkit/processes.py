"""A broker as users run it: `holdfast serve` in a process of its own, killed, stopped and started at will."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from holdfast.testing.ports import free_port
from testkit.batches import ForeignRecord, foreign_records
from testkit.http_client import Client
from testkit.text_client import TextClient
from testkit.wait import PATIENCE_S, wait_until

BATCHES = "application/vnd.holdfast.batches"


class BrokerProcess:
    """One broker over one data directory. Used as a context it is killed when the block ends.

    Each start takes free ports, unless ports are given: those stay the same over restarts.
    """

    def __init__(
        self,
        data: Path,
        *flags: str,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        text_port: int = 0,
        http_port: int = 0,
        files: Path | None = None,
    ) -> None:
        self.data = data
        self.flags = flags
        self.wrapper = list(wrapper)
        self.environment = dict(environment or {})
        self.text_port, self.http_port = text_port, http_port
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._runs = 0
        # Beside the data and not in it: what is on a disk that fails must not keep a test from looking.
        self._files = Path(tempfile.mkdtemp(prefix=f"{data.name}-", dir=files or data.parent))

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        assert not self.is_running, "it runs already"
        self._runs += 1
        ready = self._files / f"ready-{self._runs}.json"
        command = [*self.wrapper, sys.executable, "-W", "error", "-m", "holdfast.cli", "serve"]
        command += ["--data", str(self.data), "--ready-file", str(ready)]
        command += ["--text", f"127.0.0.1:{self.text_port}", "--http", f"127.0.0.1:{self.http_port}", *self.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {"HOLDFAST_QUIET": "1", **self.environment}
        with self._log_file().open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        process = self._process
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, "the broker starts")
        except BaseException:
            self.kill()
            raise
        if not ready.exists():
            self.kill()
            raise AssertionError(f"the broker did not start: {self.log()}")
        told = json.loads(ready.read_bytes())
        self.pid = told["pid"]
        self.text_address = _address(told["text"])
        self.http_address = _address(told["http"])
        return self

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory is short."""
        self._end(signal.SIGKILL)

    def terminate(self, *, wait: bool = True) -> None:
        """SIGTERM, and it must leave by itself with 0."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGTERM)
        if wait:
            self.wait_gone()

    def wait_gone(self) -> None:
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self.log()
        self._process = None

    def restart(self) -> Self:
        """Start again on the same data, and on the same ports if they were given."""
        assert self._process is None, "stop it first"
        return self.start()

    def pause(self) -> None:
        """As a machine that hangs: connections stay open and nothing is answered. Returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        if not self.wrapper:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it runs and says that it serves; a node of a cluster serves when it knows a leader."""
        return self.is_running and self.http.get("/ready").status == 200

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self.pid and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        if number == signal.SIGKILL and (not self.wrapper or not self.pid):
            process.kill()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
        self.pid = 0

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        # A broker that is killed leaves a database of its own running, for the next one; here none comes.
        self._end(signal.SIGTERM if (self.data / "postgres").is_dir() else signal.SIGKILL)

    # --- looking at it ------------------------------------------------------------------------------

    def _log_file(self) -> Path:
        return self._files / f"log-{self._runs}.txt"

    def log(self) -> str:
        """What it wrote since its last start."""
        return self._log_file().read_text("utf-8", "replace")

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("this system does not tell how much memory a process has")

    # --- talking to it ------------------------------------------------------------------------------

    def connect(self, **options: Any) -> TextClient:
        """A text client that has been greeted."""
        return TextClient(self.text_address, **options)

    @property
    def server(self) -> str:
        """Its HTTP address, as `--server` takes it."""
        return f"{self.http_address[0]}:{self.http_address[1]}"

    @property
    def text(self) -> str:
        """Its text address, as `--text` takes it."""
        return f"{self.text_address[0]}:{self.text_address[1]}"

    @property
    def url(self) -> str:
        """What `holdfast.connect` takes."""
        return f"holdfast://{self.server}"

    @property
    def http(self) -> Client:
        return Client(self.http_address[1])

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        answer = self.http.call(method, path, body, headers)
        return answer.status, answer.body

    def json(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.call(method, path, body)
        assert status < 300, (status, answer)
        return json.loads(answer) if answer else None

    def publish_http(self, topic: str, *values: bytes) -> None:
        messages = [{"base64": base64.b64encode(value).decode()} for value in values]
        self.json("POST", f"/v1/topics/{topic}/messages", {"messages": messages})

    def topics(self) -> dict[str, dict[str, Any]]:
        return {topic["topic"]: topic for topic in self.json("GET", "/v1/topics")["topics"]}

    def metric(self, name: str) -> float:
        status, answer = self.call("GET", "/metrics", headers={"Accept": "text/plain"})
        assert status == 200
        found = [line for line in answer.decode().splitlines() if line.split("{")[0].split(" ")[0] == name]
        assert found, f"there is no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def stored(self, topic: str, partition: int = 0) -> list[ForeignRecord]:
        """Every message of a partition, fetched as stored batches and read by aiokafka; checks the offsets."""
        found: list[ForeignRecord] = []
        offset = 0
        path = f"/v1/topics/{topic}/partitions/{partition}/messages"
        while True:
            status, body = self.call("GET", f"{path}?offset={offset}&max_bytes=4000000", headers={"Accept": BATCHES})
            assert status == 200, (status, body)
            if not body:
                return found
            found += [record for record in foreign_records(body) if record.offset >= offset]
            assert [record.offset for record in found] == list(range(len(found))), "offsets have a gap"
            offset = found[-1].offset + 1

    def stored_values(self, topic: str, partition: int = 0) -> list[bytes]:
        return [record.value or b"" for record in self.stored(topic, partition)]


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and waits for its parent to notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started and that are still there."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, path.read_text("ascii").split())
    return found


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def _address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


@contextlib.contextmanager
def traced(data: Path, inject: str, *flags: str) -> Iterator[BrokerProcess]:
    """A broker under strace, whose system calls fail as `inject` says."""
    wrapper = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync,fsync,syncfs", "-e", f"inject={inject}"]
    with BrokerProcess(data, *flags, wrapper=wrapper) as broker:
        yield broker


def cluster_nodes(
    root: Path, names: Sequence[str], *flags: str, environment: Mapping[str, str] | None = None
) -> dict[str, BrokerProcess]:
    """The brokers of one cluster by name, not yet started, on ports that stay the same."""
    ports = {name: free_port() for name in names}
    peers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in ports.items())
    return {
        name: BrokerProcess(
            root / name,
            *("--node", name, "--peer", f"127.0.0.1:{port}", "--peers", peers, *flags),
            environment=environment,
            http_port=free_port(),
        )
        for name, port in ports.items()
    }


def start_together(brokers: Iterable[BrokerProcess]) -> None:
    """Start those that are not running, and wait until all serve.

    They start side by side, because a new cluster begins when all of its nodes are there.
    """
    brokers = list(brokers)
    with ThreadPoolExecutor(len(brokers)) as threads:
        list(threads.map(BrokerProcess.start, [broker for broker in brokers if not broker.is_running]))
    wait_until(lambda: all(broker.is_ready for broker in brokers), "all brokers are ready")


@contextlib.contextmanager
def cluster(
    root: Path, names: Sequence[str], *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, BrokerProcess]]:
    """A cluster that runs in the block; its nodes by name."""
    with contextlib.ExitStack() as stack:
        nodes = cluster_nodes(root, names, *flags, environment=environment)
        for node in nodes.values():
            stack.push(node)
        start_together(nodes.values())
        yield nodes
