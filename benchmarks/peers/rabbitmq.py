"""RabbitMQ: a private node (own name, cookie, epmd, ports, directories) with a stream and a quorum queue."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import amqp, rabbit_stream
from benchmarks.load.pipeline import Pipeline
from benchmarks.process import HOST, Server, ServerFailed, listening, running, scratch
from holdfast.testing.ports import free_port

NAME = "rabbitmq"
EPMD = "epmd"
HINT = "apt install rabbitmq-server"

# Debian's `rabbitmq-server` in the path switches to a system user and writes into /var; the script behind
# it takes everything from its environment.
_SCRIPTS = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"),)

STARTUP_TIMEOUT_S = 90.0


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
    server: Server
    amqp_port: int
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
        return quorum_pipeline(self.amqp_port, window, seconds, connections)


def quorum_pipeline(port: int, window: int, seconds: float, connections: int) -> Pipeline:
    messages_per_request = min(100, window)
    return Pipeline(
        port=port,
        dial=amqp.dial,
        replies=amqp.Acks,
        request=b"".join(amqp.publish(number) for number in range(messages_per_request)),
        messages_per_request=messages_per_request,
        window=window,
        connections=connections,
        seconds=seconds,
    )


def environment(directory: Path, epmd_port: int, node: str = "holdfast-bench") -> dict[str, str]:
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


@contextmanager
def serve(parent: Path | None) -> Iterator[RabbitMq]:
    with scratch(parent) as directory, port_mapper(directory) as epmd_port:
        amqp_port, stream_port = free_port(), free_port()
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{amqp_port}\nstream.listeners.tcp.1 = {HOST}:{stream_port}\n"
        )
        (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        with running([str(script())], directory, environment(directory, epmd_port)) as server:
            for port in (amqp_port, stream_port):
                server.wait_until(partial(listening, port), STARTUP_TIMEOUT_S)
            yield RabbitMq(server, amqp_port, stream_port)
