"""RabbitMQ as a cluster: three private nodes on this machine, a quorum queue with a member on each."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import amqp
from benchmarks.load.pipeline import Pipeline
from benchmarks.peers.rabbitmq import (
    STARTUP_TIMEOUT_S,
    environment,
    port_mapper,
    quorum_pipeline,
    script,
)
from benchmarks.process import HOST, Server, ServerFailed, listening, scratch, start, stop_all
from holdfast.testing.ports import free_port

NODES = 3
CONTROL_TIMEOUT_S = 60.0
COOKIE = "holdfast-bench"


@dataclass(frozen=True, slots=True)
class RabbitMqCluster:
    amqp_port: int
    """Of the node where the queue was declared, which leads it."""

    def quorum_pipeline(self, window: int, seconds: float, connections: int = 1) -> Pipeline:
        return quorum_pipeline(self.amqp_port, window, seconds, connections)


def _prepare(directory: Path, name: str, names: list[str], amqp_port: int) -> Path:
    """The directory of a node, with its configuration and the cookie all of them share."""
    folder = directory / name
    folder.mkdir()
    cookie = folder / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
    others = "".join(
        f"cluster_formation.classic_config.nodes.{number} = {other}@localhost\n"
        for number, other in enumerate(names, start=1)
    )
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {HOST}:{amqp_port}\ncluster_formation.peer_discovery_backend = classic_config\n{others}"
    )
    (folder / "enabled_plugins").write_text("[].\n")
    return folder


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
def serve(parent: Path | None) -> Iterator[RabbitMqCluster]:
    """The first node is there before the others start: they find it and join."""
    with scratch(parent) as directory, port_mapper(directory) as epmd_port, ExitStack() as ending:
        names = [f"holdfast-bench-{number}" for number in range(1, NODES + 1)]
        ports = {name: free_port() for name in names}
        servers: list[Server] = []
        ending.callback(stop_all, servers)
        variables: dict[str, dict[str, str]] = {}

        def start_node(name: str) -> Server:
            folder = _prepare(directory, name, names, ports[name])
            variables[name] = environment(folder, epmd_port, name)
            servers.append(start([str(script())], folder, variables[name]))
            return servers[-1]

        for group in (names[:1], names[1:]):
            started = {name: start_node(name) for name in group}
            for name, server in started.items():
                server.wait_until(partial(listening, ports[name]), STARTUP_TIMEOUT_S)
        amqp.dial(ports[names[0]]).close()
        members = _members(variables[names[0]])
        if members != NODES:
            raise ServerFailed(f"the quorum queue has {members} members, not {NODES}")
        yield RabbitMqCluster(ports[names[0]])
