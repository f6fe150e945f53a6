"""Holdfast itself: one broker, several nodes as a cluster, or a pair. Each process can be killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from benchmarks.load import http, text
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import FixedLength
from benchmarks.peers import wait_for
from benchmarks.process import HOST, STOP_TIMEOUT_S, Server, ServerFailed, scratch, start, stop_all
from benchmarks.version import package
from holdfast.testing import ports

NAME = "holdfast"

REQUEST_LINES = 1_000
NODES = 3
LEADER_TIMEOUT_S = 30.0
CAUGHT_UP_TIMEOUT_S = 600.0


def missing() -> str | None:
    return None


def launch(command: Sequence[str], directory: Path) -> Server:
    """Start a command of the very code that the result names, with none of the user's own settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment["PYTHONPATH"] = str(package().parent)
    return start([sys.executable, "-m", "holdfast.cli", *command], directory, environment)


def version() -> str:
    try:
        return installed_version("holdfast")
    except PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class Broker:
    """One broker with its ports and its data; `process` is what runs for it now."""

    name: str
    directory: Path
    text_port: int
    http_port: int
    peer_port: int
    process: Server | None = None

    @property
    def server(self) -> Server:
        if self.process is None:
            raise ServerFailed(f"{self.name} does not run")
        return self.process

    @property
    def ready_path(self) -> Path:
        return self.directory / "ready.json"

    def is_ready(self) -> bool:
        """Raises when the process has ended: the others would wait for it for ever."""
        self.server.check()
        return self.ready_path.exists() and bool(self.ready_path.read_text().strip())

    def ask(self, path: str) -> Any:
        return http.ask(self.http_port, http.get(path))

    def create(self, *topics: str, partitions: int = 1) -> None:
        for topic in topics:
            http.ask(self.http_port, http.create_topic(topic, partitions))

    def stored(self, topic: str) -> int:
        return int(self.ask(f"/v1/topics/{topic}")["messages"])

    def text_pipeline(
        self, topic: str, connections: int, window: int, seconds: float, messages_max: int = 1 << 62
    ) -> Pipeline:
        """Lines as fast as the window lets them go."""
        lines = min(REQUEST_LINES, window)
        return Pipeline(
            port=self.text_port,
            dial=text.dial,
            replies=partial(FixedLength, text.PUBACK),
            request=text.publishes(topic, lines),
            messages_per_request=lines,
            window=window,
            connections=connections,
            seconds=seconds,
            messages_max=messages_max,
        )

    def http_pipeline(
        self, request: bytes, messages: int, connections: int, depth: int, seconds: float, messages_max: int = 1 << 62
    ) -> Pipeline:
        """Keep-alive requests with so many messages, `depth` of them under way on each connection."""
        return Pipeline(
            port=self.http_port,
            dial=http.dial,
            replies=partial(http.PublishReplies, messages),
            request=request,
            messages_per_request=messages,
            window=depth * messages,
            connections=connections,
            seconds=seconds,
            messages_max=messages_max,
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers that know each other, or one that is alone."""

    nodes: tuple[Broker, ...]
    newcomer: Broker
    """One more, which is not started with the others."""
    sync: str
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Beside those of every node, by its name."""

    def cpu_s(self) -> float:
        return sum(node.server.cpu_s() for node in self.nodes)

    def start(self, node: Broker) -> None:
        """Start the process; it is not ready yet. The newcomer joins the others."""
        node.directory.mkdir(exist_ok=True)
        node.ready_path.unlink(missing_ok=True)
        command = [
            "serve",
            *("--data", str(node.directory / "data")),
            *("--text", f"{HOST}:{node.text_port}"),
            *("--http", f"{HOST}:{node.http_port}"),
            *("--sync", self.sync),
            *("--ready-file", str(node.ready_path)),
            *self._membership(node),
            *self.flags.get(node.name, ()),
        ]
        node.process = launch(command, node.directory)

    def _membership(self, node: Broker) -> tuple[str, ...]:
        if self.nodes == (node,):
            return ()
        peers = ",".join(f"{one.name}={HOST}:{one.peer_port}" for one in self.nodes)
        others = ("--peers", peers) if node in self.nodes else ("--join", f"{HOST}:{self.nodes[0].peer_port}")
        return ("--node", node.name, "--peer", f"{HOST}:{node.peer_port}", *others)

    def wait_until_ready(self, node: Broker) -> None:
        node.server.wait_until(node.is_ready)

    def end(self, node: Broker, how: signal.Signals) -> float:
        """Send the signal; when it was sent, by the monotonic clock. `reap` waits for the end."""
        sent_s = time.monotonic()
        os.kill(node.server.pid, how)
        return sent_s

    def reap(self, node: Broker) -> None:
        """Wait for the end of a process that has its signal: a second one would not be part of the measurement."""
        with suppress(subprocess.TimeoutExpired):
            node.server.process.wait(STOP_TIMEOUT_S)
        node.server.stop()
        node.process = None

    def stop(self) -> None:
        stop_all([node.process for node in (*self.nodes, self.newcomer) if node.process is not None])

    def create(self, *topics: str, partitions: int = 1) -> None:
        self.nodes[0].create(*topics, partitions=partitions)
        for topic in topics:
            self.leader(topic)

    def leader(self, topic: str) -> Broker:
        """Who leads the topic's first partition, as soon as the nodes that run agree on it."""

        def agreed() -> Broker | None:
            running = [node for node in self.nodes if node.process is not None]
            named = {node.ask(f"/v1/topics/{topic}")["partitions"][0]["leader"] for node in running}
            # A follower may name, for a moment, a leader that is dead already.
            return next((node for node in running if named == {node.name}), None)

        return wait_for(agreed, f"a leader of {topic}", LEADER_TIMEOUT_S)

    def follower(self, topic: str) -> Broker:
        leader = self.leader(topic)
        return next(node for node in self.nodes if node is not leader)

    def stored(self, topic: str) -> int:
        return self.leader(topic).stored(topic)

    def wait_until_caught_up(self, node: Broker, topic: str) -> int:
        """Until the node has what the leader had a moment before; how many messages that are.

        Publishers may go on meanwhile: then it is as far as the leader was when it was asked last.
        """
        others = [other for other in self.nodes if other is not node and other.process is not None]

        def has_all() -> int | None:
            wanted = max(other.stored(topic) for other in others)
            return wanted or 1 if node.stored(topic) >= wanted else None

        return wait_for(has_all, f"{node.name} to have everything", CAUGHT_UP_TIMEOUT_S)

    def wait_until_it_votes(self, node: Broker) -> None:
        """Until it is a member like the others, in every group."""

        def votes() -> bool | None:
            members = self.nodes[0].ask("/v1/cluster/members")["members"]
            return any(each["node"] == node.name and each["state"] == "voter" for each in members) or None

        wait_for(votes, f"{node.name} to vote", CAUGHT_UP_TIMEOUT_S)

    def wait_until_paired(self) -> None:
        """Until one is the primary, and the other one counts."""

        def are_together() -> bool | None:
            stands = [node.ask("/v1/cluster")["pair"] for node in self.nodes]
            roles = sorted(each["role"] for each in stands)
            return True if roles == ["backup", "primary"] and not any(each["is_alone"] for each in stands) else None

        wait_for(are_together, "both to be there", LEADER_TIMEOUT_S)


@contextmanager
def _started(
    parent: Path | None, names: Sequence[str], sync: str, flags: Mapping[str, Sequence[str]]
) -> Iterator[Cluster]:
    base_port, mark = ports.choose(len(names) + 1)
    with closing(mark), scratch(parent) as directory:
        made = [
            Broker(name, directory / name, *ports.of_node(base_port, index))
            for index, name in enumerate((*names, f"n{len(names) + 1}"))
        ]
        cluster = Cluster(tuple(made[:-1]), made[-1], sync, flags)
        try:
            for node in cluster.nodes:
                cluster.start(node)
            # All of them each time: none becomes ready without the others, and one that has ended is noticed.
            cluster.nodes[0].server.wait_until(lambda: sum(node.is_ready() for node in cluster.nodes) == len(names))
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def serve(parent: Path | None, sync: str, *flags: str) -> Iterator[Broker]:
    """One broker. `sync` is its own word: group, none or interval:MS; `flags` are any others."""
    with _started(parent, ["n1"], sync, {"n1": flags}) as cluster:
        yield cluster.nodes[0]


@contextmanager
def serve_cluster(parent: Path | None, nodes: int = NODES) -> Iterator[Cluster]:
    """Nodes that know each other and are ready."""
    with _started(parent, [f"n{number}" for number in range(1, nodes + 1)], "group", {}) as cluster:
        yield cluster


@contextmanager
def serve_pair(
    parent: Path | None, *, sync: str = "group", heartbeat_ms: int = 1000, compute_ms: str | None = None
) -> Iterator[Cluster]:
    """A primary and a backup that has everything."""
    more = ("--heartbeat-ms", str(heartbeat_ms), *(("--compute-ms", compute_ms) if compute_ms is not None else ()))
    flags = {"a": ("--pair", "primary", *more), "b": ("--pair", "backup", *more)}
    with _started(parent, list(flags), sync, flags) as pair:
        pair.wait_until_paired()
        yield pair
