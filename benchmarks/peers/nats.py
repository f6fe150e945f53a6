"""NATS JetStream: one file-backed stream; every publish asks for an acknowledgement."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import nats as wire
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import Marker
from benchmarks.process import HOST, Server, ServerFailed, listening, running, scratch
from holdfast.testing.ports import free_port

NAME = "nats"
BINARY = "nats-server"
HINT = "apt install nats-server"

SYNC_ALWAYS = "sync_interval always"
SYNC_DEFAULT = "this version has no sync_interval"


def missing() -> str | None:
    return None if shutil.which(BINARY) else HINT


def version() -> str:
    answer = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d\S*)", answer)
    return found[1] if found else "unknown"


@dataclass(frozen=True, slots=True)
class Nats:
    server: Server
    port: int
    durability: str

    @property
    def weaker(self) -> bool:
        return self.durability != SYNC_ALWAYS

    def stored(self) -> int:
        return wire.stored(self.port)

    def pipeline(self, window: int, seconds: float, messages_per_request: int = 100) -> Pipeline:
        """One connection: several would share the inbox and see each other's acknowledgements."""
        request = b"".join(wire.publish(number) for number in range(messages_per_request))
        return Pipeline(
            port=self.port,
            dial=wire.dial,
            replies=partial(Marker, wire.REPLY_MARKER),
            request=request,
            messages_per_request=messages_per_request,
            window=window,
            connections=1,
            seconds=seconds,
        )


def configuration(port: int, store: Path, always: bool) -> str:
    sync = ", sync_interval: always" if always else ""
    # Pings are for finding dead clients; ours do not answer them.
    return f'listen: "{HOST}:{port}"\nping_interval: "1h"\njetstream {{ store_dir: "{store}"{sync} }}\n'


def accepts(path: Path) -> bool:
    """Whether this version understands the configuration."""
    check = subprocess.run([BINARY, "-t", "-c", str(path)], capture_output=True, check=False)
    return check.returncode == 0


@contextmanager
def serve(parent: Path | None, durable: bool = True) -> Iterator[Nats]:
    """Starts with an fsync before every acknowledgement if asked to and if this version can."""
    with scratch(parent) as directory:
        port = free_port()
        path = directory / "nats.conf"
        always = durable
        path.write_text(configuration(port, directory / "store", always))
        if not accepts(path):
            always = False
            path.write_text(configuration(port, directory / "store", always))
            if not accepts(path):
                raise ServerFailed(f"{BINARY} refuses its configuration")
        with running([BINARY, "-c", str(path)], directory) as server:
            server.wait_until(lambda: listening(port))
            wire.create_stream(port)
            yield Nats(server, port, SYNC_ALWAYS if always else SYNC_DEFAULT)
