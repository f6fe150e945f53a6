"""Redis: one stream, written through the append-only file with the chosen fsync policy."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import resp
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.read import entry_id
from benchmarks.load.wire import LoadFailed, Marker, payload, read_exactly
from benchmarks.process import HOST, Server, listening, running, scratch
from holdfast.testing.ports import free_port

NAME = "redis"
BINARY = "redis-server"
BENCHMARK = "redis-benchmark"
HINT = "apt install redis-server"

STREAM = b"s"
DEPTH = 200
FILL_COMMANDS = 2_000
BENCHMARK_TIMEOUT_S = 120.0


def missing() -> str | None:
    return None if shutil.which(BINARY) and shutil.which(BENCHMARK) else HINT


def version() -> str:
    answer = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", answer)
    return found[1] if found else "unknown"


def _entries(numbers: range) -> bytes:
    return b"".join(resp.xadd(STREAM, number, entry_id(number)) for number in numbers)


@dataclass(frozen=True, slots=True)
class Redis:
    server: Server
    port: int

    def flush(self) -> None:
        resp.ask(self.port, b"FLUSHALL", b"SYNC")

    def stored(self, stream: bytes = STREAM) -> int:
        return int(resp.ask(self.port, b"XLEN", stream))

    def pipeline(self, connections: int, seconds: float, depth: int = DEPTH) -> Pipeline:
        """Raw sockets: `depth` commands, all their replies, the next `depth`."""
        return Pipeline(
            port=self.port,
            dial=resp.dial,
            replies=partial(Marker, resp.REPLY_MARKER),
            request=resp.xadds(STREAM, depth),
            messages_per_request=depth,
            window=depth,
            connections=connections,
            seconds=seconds,
        )

    def fill(self, messages: int, stream: bytes = STREAM, commands: Callable[[range], bytes] = _entries) -> None:
        """Entries with ids of one length, which a reader can work out for itself."""
        with resp.dial(self.port) as connection:
            for first in range(0, messages, FILL_COMMANDS):
                numbers = range(first, min(first + FILL_COMMANDS, messages))
                connection.sendall(commands(numbers))
                answer_bytes = len(numbers) * len(b"$%d\r\n%s\r\n" % (len(entry_id(0)), entry_id(0)))
                read_exactly(connection, answer_bytes)
        if self.stored(stream) != messages:
            raise LoadFailed(f"{self.stored(stream)} of {messages} entries are stored")

    def benchmark(self, connections: int, messages: int) -> float:
        """Messages a second by Redis's own load generator, written in C.

        It sends whole pipelines only, so `messages` must be a multiple of the depth.
        """
        load = ["-n", str(messages), "-c", str(connections), "-P", str(DEPTH), "--csv"]
        entry = ["XADD", STREAM.decode(), "*", "v", payload(1).decode()]
        command = [BENCHMARK, "-h", HOST, "-p", str(self.port), *load, *entry]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BENCHMARK_TIMEOUT_S)
        if done.returncode != 0 or not done.stdout.strip():
            raise LoadFailed(f"{BENCHMARK}: {done.stderr.strip() or done.stdout.strip()}")
        # "test","rps",...: the command stands first, quoted.
        return float(done.stdout.strip().splitlines()[-1].rsplit('","', 7)[1])


@contextmanager
def serve(parent: Path | None, fsync: str) -> Iterator[Redis]:
    """`fsync` is Redis's own word: always, everysec or no.

    Snapshots and rewrites of the append-only file are off: they would only cost Redis time.
    """
    with scratch(parent) as directory:
        port = free_port()
        options = {
            "--port": str(port),
            "--bind": HOST,
            "--dir": str(directory),
            "--save": "",
            "--appendonly": "yes",
            "--appendfsync": fsync,
            "--auto-aof-rewrite-percentage": "0",
            "--daemonize": "no",
        }
        command = [BINARY, *(part for option in options.items() for part in option)]
        with running(command, directory) as server:
            server.wait_until(lambda: listening(port))
            yield Redis(server, port)
