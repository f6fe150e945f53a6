"""RabbitMQ: private nodes (own names, cookie, epmd, ports, directories), a quorum queue; on one node also a stream."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import amqp, rabbit_stream
from benchmarks.load.pipeline import Pipeline
from benchmarks.process import HOST, Server, ServerFailed, listening, running, scratch, start, stop_all
from holdfast.testing.ports import free_port

NAME = "rabbitmq"
EPMD = "epmd"
HINT = "apt install rabbitmq-server"

# Debian's `rabbitmq-server` in the path switches to a system user and writes into /var; the script behind
# it takes everything from its environment.
_SCRIPTS = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"),)

STARTUP_TIMEOUT_S = 90.0
CONTROL_TIMEOUT_S = 60.0
NODES = 3
COOKIE = "holdfast-bench"


def script() -> Path:
    """What starts a node."""
    found = next((path for path in _SCRIPTS if path.exists()), None)
    if found is None:
        raise ServerFailed(HINT)
    return found


def missing() -> str | None:
    return None if any(path.exists() for path in _SCRIPTS) and shutil.which(EPMD) else HINT


def version() -> str:
    for name in sorted(script().parent.parent.glob("lib/rabbitmq_server-*")):
        return name.name.removeprefix("rabbitmq_server-")
    return "unknown"


@dataclass(frozen=True, slots=True)
class RabbitMq:
    amqp_port: int
    """Of the node where the queue is declared, which leads it."""
    stream_port: int

    def stream_pipeline(self, window: int, seconds: float, messages_per_request: int = 500) -> Pipeline:
        return Pipeline(
            port=self.stream_port,
            dial=rabbit_stream.dial,
            replies=rabbit_stream.Confirms,
            request=rabbit_stream.publish(messages_per_request),
            messages_per_request=messages_per_request,
            window=window,
            connections=1,
            seconds=seconds,
        )

    def quorum_pipeline(self, window: int, seconds: float, connections: int = 1) -> Pipeline:
        messages_per_request = min(100, window)
        return Pipeline(
            port=self.amqp_port,
            dial=amqp.dial,
            replies=amqp.Acks,
            request=b"".join(amqp.publish(number) for number in range(messages_per_request)),
            messages_per_request=messages_per_request,
            window=window,
            connections=connections,
            seconds=seconds,
        )


def environment(directory: Path, epmd_port: int, node: str = "epmd") -> dict[str, str]:
    """Everything a node would otherwise take from the system; `directory` is the node's own."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": f"{node}@localhost",
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-such-file"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        # The node's own links stay on loopback, and it uses our epmd.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
    }


@contextmanager
def port_mapper(directory: Path) -> Iterator[int]:
    """An epmd of our own; its port."""
    port = free_port()
    epmd_directory = directory / "epmd"
    epmd_directory.mkdir()
    command = [EPMD, "-port", str(port), "-address", HOST]
    with running(command, epmd_directory, environment(epmd_directory, port)) as epmd:
        epmd.wait_until(lambda: listening(port))
        yield port


def _prepare(folder: Path, names: Sequence[str], amqp_port: int, stream_port: int) -> None:
    """The directory of a node, with its configuration and the cookie all of them share."""
    folder.mkdir()
    cookie = folder / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
    lines = [f"listeners.tcp.1 = {HOST}:{amqp_port}"]
    if len(names) > 1:
        lines.append("cluster_formation.peer_discovery_backend = classic_config")
        lines += [
            f"cluster_formation.classic_config.nodes.{number} = {name}@localhost"
            for number, name in enumerate(names, start=1)
        ]
    else:
        lines.append(f"stream.listeners.tcp.1 = {HOST}:{stream_port}")
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    (folder / "enabled_plugins").write_text("[].\n" if len(names) > 1 else "[rabbitmq_stream].\n")


def _members(variables: dict[str, str]) -> int:
    """On how many nodes the queue lives, as the cluster itself says."""
    command = [str(script().with_name("rabbitmqctl")), "-q", "list_queues", "name", "members", "--formatter", "json"]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=CONTROL_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ServerFailed(f"list_queues: {done.stderr}")
    queues = {queue["name"]: queue["members"] for queue in json.loads(done.stdout)}
    return len(queues.get(amqp.QUEUE, []))


@contextmanager
def serve(parent: Path | None, nodes: int = 1) -> Iterator[RabbitMq]:
    """The first node is there before the others start: they find it and join."""
    with scratch(parent) as directory, port_mapper(directory) as epmd_port:
        names = [f"holdfast-bench-{number}" for number in range(1, nodes + 1)]
        amqp_ports, stream_port = {name: free_port() for name in names}, free_port()
        variables = {name: environment(directory / name, epmd_port, name) for name in names}
        servers: list[Server] = []
        try:
            for group in (names[:1], names[1:]):
                started = []
                for name in group:
                    _prepare(directory / name, names, amqp_ports[name], stream_port)
                    started.append(start([str(script())], directory / name, variables[name]))
                    servers.append(started[-1])
                for name, server in zip(group, started, strict=True):
                    server.wait_until(partial(listening, amqp_ports[name]), STARTUP_TIMEOUT_S)
            if nodes == 1:
                servers[0].wait_until(partial(listening, stream_port), STARTUP_TIMEOUT_S)
            else:
                amqp.dial(amqp_ports[names[0]]).close()
                members = _members(variables[names[0]])
                if members != nodes:
                    raise ServerFailed(f"the quorum queue has {members} members, not {nodes}")
            yield RabbitMq(amqp_ports[names[0]], stream_port)
        finally:
            stop_all(servers)
