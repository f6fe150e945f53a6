"""All loads and all troubles of long runs: whatever is added stands here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.mixed import troubles, troubles_disk, troubles_members, troubles_network
from chaos.mixed.callbacks import Callbacks
from chaos.mixed.flood import Flood
from chaos.mixed.loads import Load
from chaos.mixed.queues import Queues
from chaos.mixed.troubles import Trouble

LOADS: Final[Mapping[str, type[Load]]] = {load.name: load for load in (Flood, Queues, Callbacks)}
TROUBLES: Final[Mapping[str, type[Trouble]]] = {
    trouble.name: trouble
    for trouble in (
        troubles.KillLeader,
        troubles.KillMajority,
        troubles.KillAll,
        troubles.PauseLeader,
        troubles.PauseSome,
        troubles.RollingRestart,
        troubles.ClockJump,
        troubles_network.Halves,
        troubles_network.Ring,
        troubles_network.Bridge,
        troubles_network.OneWay,
        troubles_network.LeaderCutOff,
        troubles_network.SlowWays,
        troubles_network.SlowNetwork,
        troubles_disk.PowerLoss,
        troubles_disk.PowerLossOfAll,
        troubles_disk.FullDisk,
        troubles_disk.FailingSync,
        troubles_disk.StalledDisk,
        troubles_disk.LostDisk,
        troubles_members.LeaveAndJoin,
        troubles_members.Replace,
        troubles_members.Drain,
    )
}


def possible(names: Mapping[str, type[Trouble]]) -> tuple[dict[str, type[Trouble]], dict[str, str]]:
    """What can be brought about on this machine, and why the rest cannot."""
    reasons = {name: reason for name, kind in names.items() if (reason := kind.why_not()) is not None}
    return {name: kind for name, kind in names.items() if name not in reasons}, reasons
