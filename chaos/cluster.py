"""A local cluster on disks and, where wanted, on a network that can be broken."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testkit.disks import SIZE_BYTES, Disk, DiskKind
from testkit.network.namespaces import Network

from holdfast.testing import LocalCluster, NodeProcess
from holdfast.testing import ports as port_scheme
from holdfast.testing.asking import ask
from holdfast.testing.node_process import Setting

# Small segments, so that logs have sealed ones; leaders come and go quickly enough as they are.
SETTINGS: Final[Mapping[str, Setting]] = {"segment_bytes": 60_000, "drain_ms": 3000, "log_level": "info"}
# Inside a namespace all are free.
_PORTS: Final = 21_000
_PORTS_KEPT: Final = range(21_700, 21_800)
_BLOCK: Final = 40


def _free_ports(nodes: int) -> tuple[int, socket.socket]:
    """As a local cluster chooses them, but for those that this machine keeps for something else."""
    refused: list[socket.socket] = []
    try:
        while True:
            base_port, mark = port_scheme.choose(nodes)
            if not any(port in _PORTS_KEPT for port in range(base_port, base_port + _BLOCK)):
                return base_port, mark
            refused.append(mark)
    finally:
        for each in refused:
            each.close()


class ChaosCluster(LocalCluster):
    """Use it with `with`: processes, mounts, namespaces and files are gone at the end, whatever happened."""

    def __init__(
        self,
        nodes: int = 3,
        disks: DiskKind = "plain",
        *,
        has_network: bool = False,
        settings: Mapping[str, Setting] | None = None,
        disk_bytes: int = SIZE_BYTES,
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
        super().__init__(nodes, data=self.place / "cluster", settings={**SETTINGS, **(settings or {})})
        self.disk_kind = disks
        self.disk_bytes = disk_bytes
        self.has_network = has_network
        self.disks: list[Disk] = []
        self.network: Network | None = None
        self._tracers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ChaosCluster:
        self.open()
        return self

    def _make_nodes(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        for index in range(self._count):
            self.disks.append(Disk(self.data / f"n{index + 1}", self.disk_kind, self.disk_bytes))
        if not self.has_network:
            self._base_port, self._mark = _free_ports(self._count)
            super()._make_nodes()
            return
        self.network = self._make_network(self._count)
        self.nodes = [self._namespaced(self.network, index) for index in range(self._count)]
        peers = [f"{node.id}={node.peer}" for node in self.nodes]
        for node in self.nodes:
            node.write_settings(peers, self._settings)

    def _namespaced(self, network: Network, index: int) -> NodeProcess:
        """A node in a network namespace of its own, on an address of its own."""
        id = f"n{index + 1}"
        ports = port_scheme.of_node(_PORTS, index)
        return NodeProcess(
            id,
            self.data,
            ports,
            host=network.host(index),
            wrapper=network.entering(index),
            environment=self._environment_of(id),
        )

    def _environment_of(self, id: str) -> Mapping[str, str]:
        """What a node finds in its environment beside what everybody does."""
        return {}

    def _make_network(self, nodes: int) -> Network:
        return Network(nodes)

    def close(self) -> None:
        """At once: nothing of this is kept."""
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.place, ignore_errors=True)
            for disk in self.disks:
                undo.callback(disk.close)
            if self.network is not None:
                undo.callback(self.network.close)
            undo.callback(super().close)
            for node in self.nodes:
                undo.callback(node.kill)
            undo.callback(self.stop_tracing)

    def disk(self, node: str) -> Disk:
        return self.disks[self.index(node)]

    def index(self, node: str) -> int:
        return self.nodes.index(self.node(node))

    def is_ready(self, node: str) -> bool:
        return self.node(node).is_running and ask(self.node(node).http, "/ready").status == 200

    # --- system calls that fail -----------------------------------------------------------------------

    def fail_syncs(self, node: str) -> None:
        """From now on every sync of a running node fails with EIO. Returns when that is so."""
        pid = self.node(node).pid
        calls = "fdatasync,fsync,syncfs"
        command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
        tracer = subprocess.Popen([*command, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._tracers.append(tracer)
        assert tracer.stderr is not None
        tracer.stderr.readline()  # "Process … attached"

    def stop_tracing(self) -> None:
        for tracer in self._tracers:
            tracer.send_signal(signal.SIGTERM)
            tracer.communicate()
        self._tracers.clear()
