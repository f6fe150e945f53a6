"""Holdfast as a cluster: three brokers on this machine, each with its own data, which can be killed and started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.load import http
from benchmarks.load.pipeline import Pipeline
from benchmarks.load.wire import LoadFailed
from benchmarks.peers.holdfast import Holdfast, binary
from benchmarks.process import HOST, STOP_TIMEOUT_S, Server, ServerFailed, scratch, start, stop_all
from holdfast.testing.ports import free_port

Found = TypeVar("Found")

NODES = 3
LEADER_TIMEOUT_S = 30.0
CAUGHT_UP_TIMEOUT_S = 600.0
POLL_S = 0.02


@dataclass(slots=True)
class Node:
    """One broker of the cluster; `server` is what runs for it now."""

    name: str
    directory: Path
    peer_port: int = field(default_factory=free_port)
    text_port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    server: Server | None = None

    @property
    def running(self) -> Server:
        if self.server is None:
            raise ServerFailed(f"{self.name} does not run")
        return self.server

    def ask(self, path: str) -> Any:
        return http.ask(self.http_port, http.get(path))

    @property
    def broker(self) -> Holdfast:
        """This node as somebody sees it who knows no other."""
        return Holdfast(self.running, self.text_port, self.http_port)

    def batches_pipeline(
        self, request: bytes, messages: int, connections: int, depth: int, seconds: float, messages_max: int = 1 << 62
    ) -> Pipeline:
        """Prebuilt requests with record batches, `depth` of them under way on each connection."""
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
class HoldfastCluster:
    nodes: tuple[Node, ...]
    # Flags beside those of every node, by its name.
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sync: str = "group"

    def cpu_s(self) -> float:
        return sum(node.running.cpu_s() for node in self.nodes)

    def start(self, node: Node) -> None:
        """Start the process; it is not ready yet. One that is none of the nodes joins them."""
        _ready_path(node).unlink(missing_ok=True)
        peers = ",".join(f"{one.name}={HOST}:{one.peer_port}" for one in self.nodes)
        others = ("--peers", peers) if node in self.nodes else ("--join", f"{HOST}:{self.nodes[0].peer_port}")
        command = [
            binary() or "holdfast",
            "serve",
            *("--data", str(node.directory / "data")),
            *("--node", node.name),
            *("--peer", f"{HOST}:{node.peer_port}"),
            *others,
            *("--text", f"{HOST}:{node.text_port}"),
            *("--http", f"{HOST}:{node.http_port}"),
            *("--sync", self.sync),
            *self.flags.get(node.name, ()),
            *("--ready-file", str(_ready_path(node))),
        ]
        node.server = start(command, node.directory)

    def wait_until_ready(self, node: Node) -> None:
        node.running.wait_until(lambda: _is_ready(node))

    def end(self, node: Node, how: signal.Signals) -> float:
        """Send the signal; when it was sent, by the monotonic clock. `reap` waits for the end."""
        sent_s = time.monotonic()
        os.kill(node.running.pid, how)
        return sent_s

    def reap(self, node: Node) -> None:
        """Wait for the end of a process that has its signal: a second one would not be part of the measurement."""
        with suppress(subprocess.TimeoutExpired):
            node.running.process.wait(STOP_TIMEOUT_S)
        node.running.stop()
        node.server = None

    def create(self, topic: str, partitions: int = 1) -> None:
        http.ask(self.nodes[0].http_port, http.create_topic(topic, partitions))
        self.leader(topic)

    def leader(self, topic: str) -> Node:
        """Who leads the topic's first partition, as soon as the nodes that run agree on it."""

        def agreed() -> Node | None:
            named = {
                node.ask(f"/v1/topics/{topic}")["partitions"][0]["leader"]
                for node in self.nodes
                if node.server is not None
            }
            # Who follows may name a leader for a moment that is dead already.
            return next((node for node in self.nodes if node.server is not None and named == {node.name}), None)

        return wait_for(agreed, f"a leader of {topic}", LEADER_TIMEOUT_S)

    def follower(self, topic: str) -> Node:
        leader = self.leader(topic)
        return next(node for node in self.nodes if node is not leader)

    def stored(self, topic: str) -> int:
        return self.leader(topic).broker.stored(topic)

    def wait_until_caught_up(self, node: Node, topic: str) -> int:
        """Until the node has what the leader had a moment before; how many messages that are.

        Publishers may go on meanwhile: then it is as far as the leader was when it was asked last.
        """
        others = [other for other in self.nodes if other is not node and other.server is not None]

        def has_all() -> int | None:
            wanted = max(other.broker.stored(topic) for other in others)
            return wanted or 1 if node.broker.stored(topic) >= wanted else None

        return wait_for(has_all, f"{node.name} to have everything", CAUGHT_UP_TIMEOUT_S)

    @contextmanager
    def newcomer(self) -> Iterator[Node]:
        """One more node, which is not started yet; it is ended in any case."""
        name = f"n{len(self.nodes) + 1}"
        node = Node(name, self.nodes[0].directory.parent / name)
        node.directory.mkdir()
        try:
            yield node
        finally:
            if node.server is not None:
                stop_all([node.server])

    def wait_until_it_votes(self, node: Node) -> None:
        """Until it is a member like the others, in every group."""

        def votes() -> bool | None:
            members = self.nodes[0].ask("/v1/cluster/members")["members"]
            return any(each["node"] == node.name and each["state"] == "voter" for each in members) or None

        wait_for(votes, f"{node.name} to vote", CAUGHT_UP_TIMEOUT_S)


def wait_for(look: Callable[[], Found | None], what: str, timeout_s: float) -> Found:
    """Look again and again, also past refusals of nodes that are not there yet."""
    deadline = time.monotonic() + timeout_s
    problem = ""
    while time.monotonic() < deadline:
        try:
            found = look()
        except (LoadFailed, OSError) as error:
            found, problem = None, f": {error}"
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise ServerFailed(f"waited {timeout_s:.0f} s for {what}{problem}")


def _ready_path(node: Node) -> Path:
    return node.directory / "ready.json"


def _is_ready(node: Node) -> bool:
    """Raises when the node has ended: the others would wait for it for ever."""
    node.running.check()
    path = _ready_path(node)
    return path.exists() and bool(path.read_text().strip())


@contextmanager
def serve(parent: Path | None) -> Iterator[HoldfastCluster]:
    """Three nodes that know each other and are ready."""
    with scratch(parent) as directory:
        nodes = tuple(Node(f"n{number}", directory / f"n{number}") for number in range(1, NODES + 1))
        cluster = HoldfastCluster(nodes)
        try:
            for node in nodes:
                node.directory.mkdir()
                cluster.start(node)
            nodes[0].running.wait_until(lambda: sum(map(_is_ready, nodes)) == NODES)
            yield cluster
        finally:
            stop_all([node.server for node in nodes if node.server is not None])


@contextmanager
def serve_pair(
    parent: Path | None, *, sync: str = "group", heartbeat_ms: int = 1000, compute_ms: str | None = None
) -> Iterator[HoldfastCluster]:
    """A primary and a backup that has everything."""
    more = ("--heartbeat-ms", str(heartbeat_ms), *(("--compute-ms", compute_ms) if compute_ms is not None else ()))
    with scratch(parent) as directory:
        nodes = tuple(Node(name, directory / name) for name in ("a", "b"))
        pair = HoldfastCluster(nodes, {"a": ("--pair", "primary", *more), "b": ("--pair", "backup", *more)}, sync)
        try:
            for node in nodes:
                node.directory.mkdir()
                pair.start(node)
            nodes[0].running.wait_until(lambda: all(map(_is_ready, nodes)))
            wait_until_together(pair)
            yield pair
        finally:
            stop_all([node.server for node in nodes if node.server is not None])


def wait_until_together(pair: HoldfastCluster) -> None:
    """Until one is the primary, and the other one counts."""

    def are_together() -> bool | None:
        stands = [node.ask("/v1/cluster")["pair"] for node in pair.nodes]
        roles = sorted(each["role"] for each in stands)
        return True if roles == ["backup", "primary"] and not any(each["is_alone"] for each in stands) else None

    wait_for(are_together, "both to be there", LEADER_TIMEOUT_S)
