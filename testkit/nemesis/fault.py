"""One kind of fault, as campaigns bring it about: by itself, or together with others."""

from __future__ import annotations

import random
from typing import ClassVar, Final, Literal

from testkit.disks import DiskKind
from testkit.machine import missing
from testkit.nemesis.stage import Stage

# Faults of one layer do not know of each other and would undo each other's work: an episode has one of each, but for
# `nodes`, whose faults take different nodes.
Layer = Literal["nodes", "leaders", "network", "weather", "clocks"]
ALL: Final = -1


class Fault:
    """`run` brings it about, stays for a while, and takes it away again.

    Where `stage.is_alone` holds, no other fault is there, and a fault checks what it must and must not do by itself.
    """

    name: ClassVar[str]
    layer: ClassVar[Layer] = "nodes"
    # How many nodes it may hurt at a time; a fault that takes all stands beside none of its layer.
    hurts: ClassVar[int] = 0
    # Whether a majority stays well and joined, so that publishing must go on.
    leaves_majority: ClassVar[bool] = True
    # Whether it is brought about alone: together with another it could break what nobody promised to survive.
    alone: ClassVar[bool] = False
    # What the cluster needs for it.
    disks: ClassVar[DiskKind] = "plain"
    has_network: ClassVar[bool] = False
    has_clocks: ClassVar[bool] = False
    nodes_min: ClassVar[int] = 3
    nodes_max: ClassVar[int] = 9
    programs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def why_not(cls, nodes: int = 5) -> str | None:
        """Why it cannot be brought about on this machine with so many nodes; `None` if it can."""
        if not cls.nodes_min <= nodes <= cls.nodes_max:
            return f"needs {cls.nodes_min} to {cls.nodes_max} nodes"
        programs = [*cls.programs]
        if cls.disks == "power":
            programs += ["mount", "umount", "mkfs.ext4"]
        if cls.has_network:
            programs += ["ip", "nsenter"]
        return missing(programs, root=cls.disks != "plain" or cls.has_network)

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        raise NotImplementedError


def listed(nodes: list[str]) -> str:
    return ", ".join(sorted(nodes))
