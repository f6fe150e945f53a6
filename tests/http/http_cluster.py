"""Three brokers that are one cluster, each in a process of its own, and plain clients for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from testkit.processes import BrokerProcess, cluster, start_together
from testkit.wait import wait_until

from tests.http.http_server import Client

NODES = ("n1", "n2", "n3")


class ClusterNode(Client):
    """One node: its process and a client for it."""

    def __init__(self, name: str, process: BrokerProcess) -> None:
        super().__init__(process.http_port)
        self.name = name
        self.process = process

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """By name and labels, the values."""
        return {
            family["name"]: {tuple(sorted(one["labels"].items())): one["value"] for one in family["samples"]}
            for family in self.get("/metrics").json["metrics"]
        }

    def metric(self, name: str) -> float:
        [value] = self.metrics()[name].values()
        return value


class Cluster:
    def __init__(self, nodes: Mapping[str, ClusterNode]) -> None:
        self.by_name = nodes
        self.nodes = list(nodes.values())

    def start(self) -> None:
        """Start those that are not running, and wait until all are ready."""
        start_together(node.process for node in self.nodes)

    def leader(self, topic: str | None = None, partition: int = 0) -> str | None:
        """Of a partition, or of the control group; `None` unless all nodes that run agree."""
        running = [node for node in self.nodes if node.process.is_running]
        if topic is None:
            named = {node.get("/v1/cluster").json["leader"] for node in running}
        else:
            answers = [node.get(f"/v1/topics/{topic}") for node in running]
            if any(answer.status != 200 for answer in answers):
                return None
            named = {answer.json["partitions"][partition]["leader"] for answer in answers}
        return named.pop() if len(named) == 1 else None

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        def are_there() -> bool:
            return all(self.leader(topic, number) is not None for number in range(partitions))

        wait_until(are_there, f"all nodes agree on who leads {topic}")


@contextmanager
def three_nodes(path: Path) -> Iterator[Cluster]:
    """A cluster in `path`, for as long as the block lasts; every node is ready."""
    with cluster(path, NODES) as processes:
        yield Cluster({name: ClusterNode(name, process) for name, process in processes.items()})
