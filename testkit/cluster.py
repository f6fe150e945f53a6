"""A local cluster on disks that can fail, on a network that can be cut and slow, and with clocks that can jump."""

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

from holdfast.testing import LocalCluster, NodeProcess
from holdfast.testing import ports as port_scheme
from holdfast.testing.asking import ask
from holdfast.testing.node_process import Setting
from testkit.clocks import Clock, forget
from testkit.disks import SIZE_BYTES, Disk, DiskKind
from testkit.network.slow_links import SlowLinks

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


class BreakableCluster(LocalCluster):
    """Use it with `with`: processes, mounts, namespaces and files are gone at the end, whatever happened.

    With `founders` only the first nodes found the cluster, and the others are told to join when they are started.
    Raises `CannotBreak` where this machine cannot make such disks or networks.
    """

    def __init__(
        self,
        nodes: int = 3,
        disks: DiskKind = "plain",
        *,
        has_network: bool = False,
        has_clocks: bool = False,
        founders: int | None = None,
        settings: Mapping[str, Setting] | None = None,
        disk_bytes: int = SIZE_BYTES,
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
        super().__init__(nodes, data=self.place / "cluster", settings={**SETTINGS, **(settings or {})})
        self.disk_kind = disks
        self.disk_bytes = disk_bytes
        self.has_network = has_network
        self.disks: list[Disk] = []
        self.network: SlowLinks | None = None
        self.clocks: list[Clock] = []
        self._has_clocks = has_clocks
        self._founders = founders or nodes
        self._tracers: list[subprocess.Popen[bytes]] = []
        self._pids: set[int] = set()

    def __enter__(self) -> BreakableCluster:
        self.open()
        return self

    def _make_nodes(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        ids = [f"n{index + 1}" for index in range(self._count)]
        for id in ids:
            self.disks.append(Disk(self.data / id, self.disk_kind, self.disk_bytes))
        if self._has_clocks:
            self.clocks = [Clock(self.data / f"{id}.clock") for id in ids]
        if self.has_network:
            self.network = SlowLinks(self._count)
        else:
            self._base_port, self._mark = _free_ports(self._count)
        self.nodes = [self._made(id, index) for index, id in enumerate(ids)]
        founders = self.nodes[: self._founders]
        peers = [f"{node.id}={node.peer}" for node in founders]
        for node in founders:
            node.write_settings(peers, self._settings)
        for node in self.nodes[self._founders :]:
            self.let_join(node.id, founders[0].id)

    def _made(self, id: str, index: int) -> NodeProcess:
        environment = self.clocks[index].environment if self.clocks else {}
        if self.network is None:
            ports = port_scheme.of_node(self.base_port, index)
            return NodeProcess(id, self.data, ports, environment=environment)
        host, wrapper = self.network.host(index), self.network.entering(index)
        ports = port_scheme.of_node(_PORTS, index)
        return NodeProcess(id, self.data, ports, host=host, wrapper=wrapper, environment=environment)

    def _spawn(self, nodes: list[NodeProcess]) -> None:
        # At first only those that found the cluster are there.
        super()._spawn(nodes[: self._founders] if len(nodes) == self._count else nodes)
        self._pids.update(node.pid for node in nodes if node.pid is not None)

    def let_join(self, node: str, through: str) -> None:
        """When it is started next, it is told of one node of the cluster, and of nobody else."""
        self.node(node).write_settings((), {**self._settings, "join": self.node(through).peer})

    def close(self) -> None:
        """At once: nothing of this is kept."""
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.place, ignore_errors=True)
            for pid in self._pids:
                undo.callback(forget, pid)
            for disk in self.disks:
                undo.callback(disk.close)
            if self.network is not None:
                undo.callback(self.network.close)
            undo.callback(super().close)
            for node in self.nodes:
                undo.callback(node.kill)
            undo.callback(self.stop_tracing)
            # A process that waits for a frozen disk cannot be killed.
            for disk in self.disks:
                undo.callback(disk.thaw)

    # --- one node -------------------------------------------------------------------------------------

    @property
    def links(self) -> SlowLinks:
        assert self.network is not None, "this cluster was made without a network of its own"
        return self.network

    def disk(self, node: str) -> Disk:
        return self.disks[self.index(node)]

    def clock(self, node: str) -> Clock:
        return self.clocks[self.index(node)]

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
