"""All nodes of a cluster on this machine: started together, broken one by one, gone at the end of the block."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.model.names import path_part
from holdfast.testing import ports
from holdfast.testing.asking import Answer, ask
from holdfast.testing.errors import ClusterFailed
from holdfast.testing.node_process import NodeProcess, Setting, was_removed
from holdfast.testing.temporary import TemporaryDirectory

if TYPE_CHECKING:
    from holdfast.client import BlockingClient, Client

START_S: Final = 60.0
LEADER_S: Final = 10.0
_RECORD: Final = "cluster.json"
_POLL_S: Final = 0.02

# A node by its id (`n2`), by its index (1), or itself.
Which = str | int | NodeProcess


class LocalCluster:
    """A cluster of real processes: `with LocalCluster(nodes=3) as cluster`.

    The nodes are called n1, n2, n3, …; methods take the id or the index, and those that take several mean all nodes
    where none is named. Each node has its directory below `data`, which is a temporary one unless given; a cluster
    that is started again on a directory goes on with what is stored there, on the same ports. `base_port` gives the
    ports as `holdfast.testing.ports` says; without it free ones are chosen. They stay the same over restarts.
    A node that was taken out of the cluster is not started again: it is in `removed`, and `add_node` has it back.
    `settings` are those of docs/configuration.md, the same for all nodes: `{"sync": "none", "auto_create": False}`.

    Methods block until what they say has happened, so in async code call those that wait with `asyncio.to_thread`.
    Nothing is left behind: no process, also when this one is killed (on Linux), and no file unless `data` is given.
    """

    def __init__(
        self,
        nodes: int = 3,
        data: Path | str | None = None,
        base_port: int | None = None,
        settings: Mapping[str, Setting] | None = None,
        *,
        start_timeout_s: float = START_S,
    ) -> None:
        if not 1 <= nodes <= ports.NODES_MAX:
            raise ValueError(f"nodes must be 1 to {ports.NODES_MAX}, not {nodes}")
        if base_port is not None and not 1 <= base_port <= ports.BASE_PORT_MAX:
            raise ValueError(f"base_port must be 1 to {ports.BASE_PORT_MAX}, not {base_port}")
        self.nodes: list[NodeProcess] = []
        # Those that were taken out before: they are not started, and stay known by their names.
        self.removed: list[NodeProcess] = []
        self._count = nodes
        self._names: list[str] = []
        self._data = None if data is None else Path(data).absolute()
        self._base_port = base_port
        self._settings = dict(settings or {})
        self._start_timeout_s = start_timeout_s
        self._temporary: TemporaryDirectory | None = None
        self._mark: socket.socket | None = None
        # The kernel ends a process on a leash when the thread that started it ends: this one lives as long as the
        # cluster, whichever threads use it.
        self._starter: ThreadPoolExecutor | None = None

    def __enter__(self) -> LocalCluster:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life -------------------------------------------------------------------------------------

    def open(self, *, wait: bool = True) -> None:
        """Start all nodes and wait until they serve and have a leader. Raises `ClusterFailed`."""
        assert not self.nodes, "a cluster is opened once"
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="holdfast-cluster")
        try:
            self._make_nodes()
            self._spawn(self.nodes)
            if wait:
                self.wait_until_ready(self._start_timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all nodes; in order where their data stays, at once where it does not."""
        try:
            if self._temporary is None:
                self.stop()
        finally:
            for node in self.nodes:
                node.kill()
            if self._starter is not None:
                self._starter.shutdown()
            if self._mark is not None:
                self._mark.close()
            if self._temporary is not None:
                self._temporary.remove()
                self._temporary = None

    def start(self, *nodes: Which) -> None:
        """Start nodes that do not run, and wait until they serve."""
        chosen = self._chosen(nodes)
        self._spawn(chosen)
        deadline = time.monotonic() + self._start_timeout_s
        for node in chosen:
            node.wait_until_serving(deadline)

    def spawn(self, node: Which) -> None:
        """Start a node without waiting for anything."""
        self._spawn([self.node(node)])

    def kill(self, *nodes: Which) -> None:
        """SIGKILL: as a crash, or as the kernel does it when memory is short. Returns when they are gone."""
        for node in self._chosen(nodes):
            node.kill()

    def stop(self, *nodes: Which) -> None:
        """SIGTERM, and wait until they have left by themselves."""
        chosen = self._chosen(nodes)
        for node in chosen:
            node.tell_to_stop()
        for node in chosen:
            node.wait_stopped()

    def restart(self, *nodes: Which) -> None:
        """Stop nodes in order, one after the other, and start each again."""
        for node in self._chosen(nodes):
            self.stop(node)
            self.start(node)

    def pause(self, *nodes: Which) -> None:
        """SIGSTOP: as a machine that hangs. Connections stay open, and nothing is answered until `resume`."""
        for node in self._chosen(nodes):
            node.pause()

    def resume(self, *nodes: Which) -> None:
        """SIGCONT: it goes on where it was, and does not know how long it was away."""
        for node in self._chosen(nodes):
            node.resume()

    # --- nodes that come and go -------------------------------------------------------------------

    def add_node(self, id: str | None = None, *, wait: bool = True, timeout_s: float = START_S) -> str:
        """Start one more node, which joins the cluster, and wait until it votes; returns its id.

        With the id of one that was removed, that one comes back with what it has on its disk.
        """
        taken = {node.id for node in self.nodes}
        id = id or next(name for number in range(ports.NODES_MAX + 1) if (name := f"n{number + 1}") not in taken)
        index = int(id.removeprefix("n")) - 1
        if id in taken or not 0 <= index < ports.NODES_MAX:
            raise ValueError(f"a node to add is called n1 to n{ports.NODES_MAX}, and not like one that is there: {id}")
        others = self._answering()
        if not others:
            raise ClusterFailed("a node joins through another one that runs; start one first")
        node = NodeProcess(id, self.data, ports.of_node(self.base_port, index))
        node.write_settings((), {**self._settings, "join": others[0].peer})
        self.nodes.append(node)
        self.removed = [other for other in self.removed if other.id != id]
        self._spawn([node])
        self._record()
        if wait:
            deadline = time.monotonic() + timeout_s
            node.wait_until_serving(deadline)
            self._wait_for_place(node, lambda place: place == (True, False), f"{id} did not join", deadline)
        return id

    def remove_node(self, which: Which, *, timeout_s: float = START_S) -> None:
        """Take a node out of the cluster, wait until it has left, and end its process. Its files stay."""
        node = self.node(which)
        deadline = time.monotonic() + timeout_s
        while True:
            others = [other for other in self._answering() if other is not node]
            answer = Answer(0, "no other node runs")
            if others:
                answer = ask(others[0].http, f"/v1/cluster/members/{node.id}", 10.0, send={"change": "remove"})
            if answer.status == 202:
                break
            if answer.status == 409 or time.monotonic() > deadline:
                raise self._failed(f"{node.id} cannot be removed: {answer.content}")
            time.sleep(_POLL_S)
        self._wait_for_place(node, lambda place: place is None, f"{node.id} did not leave", deadline)
        if node.is_running:
            self.stop(node)
        self.nodes.remove(node)
        self._record()

    def _wait_for_place(
        self, node: NodeProcess, is_there: Callable[[tuple[bool, bool] | None], bool], what: str, deadline: float
    ) -> None:
        """Until another node says so; a place is whether it votes everywhere, and whether it comes or goes."""
        while True:
            for other in self._answering():
                answer = ask(other.http, "/v1/cluster/members") if other is not node else Answer(0, "")
                if answer.status == 200 and is_there(_place_of(answer.content, node.id)):
                    return
            if time.monotonic() > deadline:
                raise self._failed(what)
            time.sleep(_POLL_S)

    # --- where it is ------------------------------------------------------------------------------

    def node(self, which: Which) -> NodeProcess:
        if isinstance(which, NodeProcess):
            return which
        if isinstance(which, int):
            return self.nodes[which]
        for node in self.nodes:
            if node.id == which:
                return node
        raise ClusterFailed(f"there is no node {which}; there are {', '.join(node.id for node in self.nodes)}")

    @property
    def data(self) -> Path:
        """Where the nodes have their directories, settings and logs."""
        found = self._data if self._temporary is None else self._temporary.path
        assert found is not None, "a cluster with a temporary directory has none before it is opened"
        return found

    @property
    def base_port(self) -> int:
        assert self._base_port is not None, "ports are chosen when the cluster is opened"
        return self._base_port

    @property
    def url(self) -> str:
        """All nodes, for a client: `holdfast://127.0.0.1:…,127.0.0.1:…`."""
        return f"holdfast://{','.join(self.http_addresses)}"

    @property
    def http_addresses(self) -> list[str]:
        return [node.http for node in self.nodes]

    @property
    def text_addresses(self) -> list[str]:
        return [node.text for node in self.nodes]

    def connect(self, through: Which | None = None, *, timeout_s: float = 30.0) -> Client:
        """`holdfast.connect` to all nodes, or to one of them only."""
        from holdfast.client import connect

        return connect(self.url if through is None else self.node(through).http, timeout_s=timeout_s)

    def connect_blocking(self, through: Which | None = None, *, timeout_s: float = 30.0) -> BlockingClient:
        """`holdfast.connect_blocking` to all nodes, or to one of them only."""
        from holdfast.client import connect_blocking

        return connect_blocking(self.url if through is None else self.node(through).http, timeout_s=timeout_s)

    # --- how it is --------------------------------------------------------------------------------

    def leader(self, topic: str = "orders", partition: int = 0) -> str:
        """The id of the node that leads a partition; waits until there is one."""
        return self.wait_for_leader(topic, partition=partition)

    def wait_for_leader(
        self,
        topic: str = "orders",
        other_than: Which | None = None,
        timeout_s: float = LEADER_S,
        *,
        partition: int = 0,
    ) -> str:
        """The id of the leader, once more than half of all nodes name the same one, and it is there."""
        return self._agreed(
            f"{topic}/{partition}",
            f"/v1/topics/{path_part(topic)}",
            lambda answer: _leader_of(answer, partition),
            other_than,
            timeout_s,
        )

    def control_leader(self, other_than: Which | None = None, timeout_s: float = LEADER_S) -> str:
        """The id of the node that leads the control group, which decides on topics and cursors."""
        return self._agreed(
            "the control group", "/v1/cluster", lambda answer: answer.get("leader"), other_than, timeout_s
        )

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """Wait until every node that runs serves and hears a leader."""
        deadline = time.monotonic() + timeout_s
        for node in self._answering():
            node.wait_until_serving(deadline)
        answer: Answer | None = None
        for node in self._answering():
            while (answer := ask(node.http, "/ready")).status != 200:
                if time.monotonic() > deadline or not node.is_running:
                    raise self._failed(f"{node.id} was not ready within {timeout_s:g} s: {answer.content}")
                time.sleep(_POLL_S)

    def log_of(self, node: Which) -> str:
        """All that a node wrote to its log, over all its runs."""
        return self.node(node).log()

    # --- inner ------------------------------------------------------------------------------------

    def _make_nodes(self) -> None:
        if self._data is None:
            self._temporary = TemporaryDirectory("holdfast-cluster-")
        else:
            self._data.mkdir(parents=True, exist_ok=True)
            self._recall()
        if self._base_port is None:
            self._base_port, self._mark = ports.choose(self._count)
        names = self._names or first_names(self._count)
        indices = {name: int(name.removeprefix("n")) - 1 for name in names}
        found = [NodeProcess(name, self.data, ports.of_node(self._base_port, indices[name])) for name in names]
        nodes = [node for node in found if not node.was_removed]
        taken = [] if self._mark else ports.in_use(self._base_port, [indices[node.id] for node in nodes])
        if taken:
            raise ClusterFailed(f"ports are in use: {', '.join(taken)}; end what uses them, or give another base port")
        self._record()
        self.nodes, self.removed = nodes, [node for node in found if node not in nodes]
        peers = [f"{node.id}={node.peer}" for node in self.nodes]
        for node in self.nodes:
            node.write_settings(peers, self._settings)

    def _recall(self) -> None:
        """Go on as what the directory was made by: with as many nodes, and on its ports unless others are given."""
        recorded = recorded_cluster(self.data)
        if recorded is None:
            return
        self._names, base_port = recorded
        nodes = len(self._names)
        if self._count not in (nodes, len(recorded.left(self.data))):
            raise ClusterFailed(
                f"{self.data} holds a cluster of {nodes} nodes, not {self._count}; start it with {nodes}, and have "
                "nodes come and go while it runs (`holdfast cluster`), or give another directory"
            )
        self._count = nodes
        self._base_port = self._base_port or base_port

    def _record(self) -> None:
        if self._data is not None:
            self._names = [node.id for node in (*self.nodes, *self.removed)] or self._names
            content: dict[str, object] = {"nodes": len(self._names) or self._count, "base_port": self._base_port}
            if self._names:
                content["names"] = self._names
            (self._data / _RECORD).write_text(json.dumps(content) + "\n", "utf-8")

    def _spawn(self, nodes: list[NodeProcess]) -> None:
        assert self._starter is not None, "open the cluster first"
        for node in nodes:
            self._starter.submit(node.spawn).result()

    def _chosen(self, nodes: tuple[Which, ...]) -> list[NodeProcess]:
        return [self.node(each) for each in nodes] if nodes else list(self.nodes)

    def _answering(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.is_running and not (node.is_paused or node.was_removed)]

    def _agreed(
        self,
        what: str,
        path: str,
        leader_in: Callable[[Any], str | None],
        other_than: Which | None,
        timeout_s: float,
    ) -> str:
        """Nodes that were cut off name the leader of before: only what more than half of them say is so."""
        deadline = time.monotonic() + timeout_s
        unwanted = None if other_than is None else self.node(other_than).id
        while True:
            majority = sum(not node.was_removed for node in self.nodes) // 2 + 1
            answers = {node.id: ask(node.http, path) for node in self._answering()}
            named = Counter(leader_in(each.content) for each in answers.values() if each.status == 200)
            for leader, votes in named.most_common(1):
                if leader is not None and leader != unwanted and votes >= majority:
                    node = self.node(leader)
                    if node.is_running and not node.is_paused:
                        return leader
            if time.monotonic() > deadline:
                but = f" other than {unwanted}" if unwanted else ""
                said = {id: answer.content for id, answer in answers.items() if answer.status != 200}
                raise self._failed(
                    f"{what} had no leader{but} within {timeout_s:g} s; the nodes name {dict(named)}, and say {said}"
                )
            time.sleep(_POLL_S)

    def _failed(self, text: str) -> ClusterFailed:
        return ClusterFailed("\n".join((text, *(node.log_tail() for node in self.nodes))))


class Recorded(NamedTuple):
    """What a directory was made for: all nodes, with those that were taken out, and the base port."""

    names: list[str]
    base_port: int

    def left(self, data: Path) -> list[str]:
        """The nodes that were not taken out."""
        return [name for name in self.names if not was_removed(data / name)]


def recorded_cluster(data: Path) -> Recorded | None:
    """`None` where there is no cluster yet. Raises `ClusterFailed`."""
    try:
        recorded = json.loads((data / _RECORD).read_bytes())
        names = list(recorded.get("names", ())) or first_names(int(recorded["nodes"]))
        return Recorded(names, int(recorded["base_port"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterFailed(f"{data / _RECORD} is damaged ({error}); delete it and give the base port") from error


def first_names(nodes: int) -> list[str]:
    """The nodes of a new cluster."""
    return [f"n{index + 1}" for index in range(nodes)]


def _place_of(described: Any, node: str) -> tuple[bool, bool] | None:
    found = next((each for each in described["members"] if each["node"] == node and each["state"] != "removed"), None)
    if found is None:
        return None
    votes = found["votes_in"] == found["groups"]
    return votes and not found["is_leaving"], found["is_joining"] or found["is_leaving"]


def _leader_of(described: Any, partition: int) -> str | None:
    return next((each["leader"] for each in described["partitions"] if each["partition"] == partition), None)
