"""NATS JetStream as a cluster: three servers on this machine, one file-backed stream with three replicas."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import nats as wire
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import LoadFailed, Marker
from benchmarks.peers.nats import BINARY, accepts, configuration
from benchmarks.process import HOST, Server, ServerFailed, listening, scratch, start, stop_all
from holdfast.testing.ports import free_port

REPLICAS = 3
# Servers find each other and choose who keeps the list of streams before the first stream can be made.
FORMED_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class NatsCluster:
    servers: tuple[Server, ...]
    leader_port: int
    """Of the server that leads the stream: publishes need no second hop."""

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self.servers)

    def stored(self) -> int:
        return wire.stored(self.leader_port)

    def pipeline(self, window: int, messages_per_request: int, seconds: float) -> Pipeline:
        """One connection: several would share the inbox and see each other's acknowledgements."""
        return Pipeline(
            port=self.leader_port,
            dial=wire.dial,
            replies=partial(Marker, wire.REPLY_MARKER),
            request=b"".join(wire.publish(number) for number in range(messages_per_request)),
            messages_per_request=messages_per_request,
            window=window,
            connections=1,
            seconds=seconds,
        )


def _configurations(directory: Path, ports: dict[str, int], always: bool) -> dict[str, Path]:
    """A file for every server, each with the addresses of all."""
    cluster_ports = {name: free_port() for name in ports}
    routes = ", ".join(f'"nats://{HOST}:{port}"' for port in cluster_ports.values())
    paths = {}
    for name, port in ports.items():
        folder = directory / name
        folder.mkdir()
        paths[name] = folder / "nats.conf"
        paths[name].write_text(
            f'server_name: "{name}"\n{configuration(port, folder / "store", always)}'
            f'cluster {{ name: "bench", listen: "{HOST}:{cluster_ports[name]}", routes: [{routes}] }}\n'
        )
    return paths


def _create_stream(port: int) -> None:
    deadline = time.monotonic() + FORMED_TIMEOUT_S
    problem = "no answer"
    while time.monotonic() < deadline:
        try:
            return wire.create_stream(port, REPLICAS, ASK_TIMEOUT_S)
        except (LoadFailed, OSError) as error:
            problem = str(error)
            time.sleep(0.2)
    raise ServerFailed(f"no stream with {REPLICAS} replicas: {problem}")


def _leader_with_all_replicas(port: int, ports: dict[str, int]) -> int:
    """The port of the server that leads, once every replica follows it."""
    deadline = time.monotonic() + FORMED_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(LoadFailed, OSError):
            cluster = wire.stream(port)["cluster"]
            current = [one for one in cluster.get("replicas", []) if one.get("current")]
            if cluster.get("leader") in ports and len(current) == REPLICAS - 1:
                return ports[cluster["leader"]]
        time.sleep(0.2)
    raise ServerFailed(f"the stream does not have {REPLICAS} replicas that are current")


@contextmanager
def serve(parent: Path | None, always: bool) -> Iterator[NatsCluster]:
    """`always` asks for an fsync before every acknowledgement, which versions before 2.10 do not know."""
    with scratch(parent) as directory, ExitStack() as ending:
        ports = {f"s{number}": free_port() for number in range(1, REPLICAS + 1)}
        paths = _configurations(directory, ports, always)
        if not all(accepts(path) for path in paths.values()):
            raise ServerFailed("this version has no sync_interval" if always else f"{BINARY} refuses its configuration")
        servers: list[Server] = []
        ending.callback(stop_all, servers)
        for path in paths.values():
            servers.append(start([BINARY, "-c", str(path)], path.parent))
        for server, port in zip(servers, ports.values(), strict=True):
            server.wait_until(partial(listening, port))
        some_port = next(iter(ports.values()))
        _create_stream(some_port)
        yield NatsCluster(tuple(servers), _leader_with_all_replicas(some_port, ports))
