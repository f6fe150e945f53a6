"""The cluster of a long run: on disks that fail, wires that are slow, and clocks that jump."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from testkit.commands import CannotBreak, missing
from testkit.network.namespaces import Network
from testkit.network.slow_links import SlowLinks

from chaos.cluster import ChaosCluster
from chaos.mixed.clocks import Clock, forget
from holdfast.testing import NodeProcess
from holdfast.testing.node_process import Setting

# What no run of an hour fills; the files below the disks have holes, and are as large as what is on them.
_DISK_BYTES: Final = 4 << 30
_SETTINGS: Final[Mapping[str, Setting]] = {"segment_bytes": 1_000_000}


def why_not() -> str | None:
    """Why there can be no such cluster on this machine; `None` if there can."""
    return missing(["ip", "nsenter", "mount", "umount", "mkfs.ext4"], root=True)


class MixedCluster(ChaosCluster):
    """Use it with `with`. Raises `CannotBreak` where this machine cannot do it."""

    def __init__(self, nodes: int, settings: Mapping[str, Setting] | None = None) -> None:
        if (reason := why_not()) is not None:
            raise CannotBreak(reason)
        super().__init__(
            nodes,
            "power",
            has_network=True,
            settings={**_SETTINGS, **(settings or {})},
            disk_bytes=_DISK_BYTES,
        )
        self.clocks: list[Clock] = []
        self._pids: set[int] = set()

    def __enter__(self) -> MixedCluster:
        self.open()
        return self

    def _make_network(self, nodes: int) -> Network:
        return SlowLinks(nodes)

    @property
    def wires(self) -> SlowLinks:
        assert isinstance(self.network, SlowLinks)
        return self.network

    def _environment_of(self, id: str) -> Mapping[str, str]:
        self.clocks.append(Clock(self.data / f"{id}.clock"))
        return self.clocks[-1].environment

    def _spawn(self, nodes: list[NodeProcess]) -> None:
        super()._spawn(nodes)
        self._pids.update(node.pid for node in nodes if node.pid is not None)

    def let_join(self, node: str, through: str) -> None:
        """When it is started next, it is told of one node of the cluster, and of nobody else."""
        self.node(node).write_settings((), {**self._settings, "join": self.node(through).peer})

    def clock(self, node: str) -> Clock:
        return self.clocks[self.index(node)]

    def close(self) -> None:
        # A process that waits for a frozen disk cannot be killed.
        with contextlib.ExitStack() as undo:
            for pid in self._pids:
                undo.callback(forget, pid)
            undo.callback(super().close)
            for disk in self.disks:
                undo.callback(disk.thaw)
