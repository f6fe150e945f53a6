"""A pair of real brokers, and a cable between them that can be cut without either of them being told."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testkit.network.cable import Cable
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

HEARTBEAT_MS = 150
MISSES = 3


class Pair:
    """`a`, which begins as the primary, and `b`."""

    def __init__(self, root: Path, *flags: str) -> None:
        self.peer_ports = {"a": free_port(), "b": free_port()}
        self.cables = {node: Cable(port) for node, port in self.peer_ports.items()}
        self.brokers = {
            node: BrokerProcess(
                root / node,
                *("--node", node, "--pair", role, "--peer", f"127.0.0.1:{self.peer_ports[node]}"),
                *("--peers", self._peers(node)),
                *("--heartbeat-ms", str(HEARTBEAT_MS), "--misses", str(MISSES), *flags),
                text_port=free_port(),
                http_port=free_port(),
                files=root,
            )
            for node, role in (("a", "primary"), ("b", "backup"))
        }

    def _peers(self, node: str) -> str:
        other = "b" if node == "a" else "a"
        return f"{node}=127.0.0.1:{self.peer_ports[node]},{other}=127.0.0.1:{self.cables[other].port}"

    def __getitem__(self, node: str) -> BrokerProcess:
        return self.brokers[node]

    def cut(self) -> None:
        for cable in self.cables.values():
            cable.cut()

    def mend(self) -> None:
        for cable in self.cables.values():
            cable.mend()

    def status(self, node: str) -> dict[str, Any]:
        """How a broker says that it stands."""
        try:
            found: dict[str, Any] = self[node].json("GET", "/v1/cluster")["pair"]
        except (OSError, http.client.HTTPException):
            # One that was replaced stops serving for a moment.
            return {"role": "away", "is_alone": False, "lag": None}
        return found

    def wait_until_together(self) -> None:
        def are_together() -> bool:
            stands = [self.status(node) for node in self.brokers]
            return sorted(each["role"] for each in stands) == ["backup", "primary"] and not any(
                each["is_alone"] or each["lag"] for each in stands
            )

        wait_until(are_together, "one is the primary and the other has everything")

    def wait_until_alone(self, node: str) -> None:
        wait_until(lambda: bool(self.status(node)["is_alone"]), f"{node} goes on alone")

    def wait_until_both_have(self, has_everything: Callable[[str], bool]) -> None:
        wait_until(lambda: all(map(has_everything, self.brokers)), "both have everything")

    def values(self, node: str, topic: str) -> list[bytes]:
        return self[node].stored_values(topic)


@contextlib.contextmanager
def running(root: Path, *flags: str) -> Iterator[Pair]:
    pair = Pair(root, *flags)
    try:
        pair["a"].start()
        pair["b"].start()
        pair.wait_until_together()
        yield pair
    finally:
        for broker in pair.brokers.values():
            broker.__exit__()
        for cable in pair.cables.values():
            cable.close()
