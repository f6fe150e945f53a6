"""NATS JetStream: one file-backed stream, on one server or on several with a replica each.

Every publish asks for an acknowledgement.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from benchmarks.load import nats as wire
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import Marker
from benchmarks.peers import wait_for
from benchmarks.process import HOST, Server, ServerFailed, listening, scratch, start, stop_all
from holdfast.testing.ports import free_port

NAME = "nats"
BINARY = "nats-server"
HINT = "apt install nats-server"

NODES = 3
# Servers find each other and choose who keeps the list of streams before the first stream can be made.
FORMED_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0

NO_SYNC_INTERVAL: Final = "this version has no sync_interval"
# An fsync before every acknowledgement; the same where the version knows it; in the server's own time.
Sync = Literal["always", "always if known", "default"]


def missing() -> str | None:
    return None if shutil.which(BINARY) else HINT


def version() -> str:
    answer = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d\S*)", answer)
    return found[1] if found else "unknown"


@dataclass(frozen=True, slots=True)
class Nats:
    servers: tuple[Server, ...]
    port: int
    """Of the server that leads the stream: publishes need no second hop."""
    is_synced: bool

    @property
    def durability(self) -> str:
        return "sync_interval always" if self.is_synced else NO_SYNC_INTERVAL

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self.servers)

    def stored(self, _topic: str = "") -> int:
        """There is one stream."""
        return wire.stored(self.port)

    def pipeline(self, window: int, messages_per_request: int, seconds: float) -> Pipeline:
        """One connection: several would share the inbox and see each other's acknowledgements."""
        return Pipeline(
            port=self.port,
            dial=wire.dial,
            replies=partial(Marker, wire.REPLY_MARKER),
            request=b"".join(wire.publish(number) for number in range(messages_per_request)),
            messages_per_request=messages_per_request,
            window=window,
            connections=1,
            seconds=seconds,
        )


def _configured(directory: Path, ports: dict[str, int], is_synced: bool) -> list[Path]:
    """A file for every server, each with the addresses of all; none where this version does not understand it."""
    cluster_ports = {name: free_port() for name in ports} if len(ports) > 1 else {}
    routes = ", ".join(f'"nats://{HOST}:{port}"' for port in cluster_ports.values())
    sync = ", sync_interval: always" if is_synced else ""
    paths = []
    for name, port in ports.items():
        folder = directory / name
        folder.mkdir(exist_ok=True)
        # Pings are for finding dead clients; ours do not answer them.
        lines = [f'listen: "{HOST}:{port}"', 'ping_interval: "1h"']
        lines.append(f'jetstream {{ store_dir: "{folder / "store"}"{sync} }}')
        if cluster_ports:
            lines.append(f'server_name: "{name}"')
            listen = f"{HOST}:{cluster_ports[name]}"
            lines.append(f'cluster {{ name: "bench", listen: "{listen}", routes: [{routes}] }}')
        paths.append(folder / "nats.conf")
        paths[-1].write_text("\n".join(lines) + "\n")
        check = subprocess.run([BINARY, "-t", "-c", str(paths[-1])], capture_output=True, check=False)
        if check.returncode:
            return []
    return paths


def _leader(port: int, ports: dict[str, int]) -> int | None:
    """The port of the server that leads, once every replica follows it."""
    cluster = wire.stream(port)["cluster"]
    current = [one for one in cluster.get("replicas", []) if one.get("current")]
    return ports.get(cluster.get("leader")) if len(current) == len(ports) - 1 else None


def _created(port: int, replicas: int) -> bool:
    wire.create_stream(port, replicas, ASK_TIMEOUT_S)
    return True


@contextmanager
def serve(parent: Path | None, sync: Sync, nodes: int = 1) -> Iterator[Nats]:
    with scratch(parent) as directory:
        ports = {f"s{number}": free_port() for number in range(1, nodes + 1)}
        is_synced = sync != "default"
        paths = _configured(directory, ports, is_synced)
        if not paths and sync == "always if known":
            is_synced = False
            paths = _configured(directory, ports, is_synced)
        if not paths:
            raise ServerFailed(NO_SYNC_INTERVAL if is_synced else f"{BINARY} refuses its configuration")
        servers: list[Server] = []
        try:
            for path in paths:
                servers.append(start([BINARY, "-c", str(path)], path.parent))
            for server, port in zip(servers, ports.values(), strict=True):
                server.wait_until(partial(listening, port))
            leader = some = next(iter(ports.values()))
            wait_for(partial(_created, some, nodes), f"a stream with {nodes} replicas", FORMED_TIMEOUT_S)
            if nodes > 1:
                leader = wait_for(partial(_leader, some, ports), "all replicas to be current", FORMED_TIMEOUT_S)
            yield Nats(tuple(servers), leader, is_synced)
        finally:
            stop_all(servers)
