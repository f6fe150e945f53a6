"""All faults that campaigns bring about, by name; a new one is a class that follows `Fault` and a line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from testkit.nemesis import disk, members, network, process
from testkit.nemesis.fault import Fault

FAULTS: Final[Mapping[str, type[Fault]]] = {
    fault.name: fault
    for fault in (
        process.KillLeader,
        process.KillAny,
        process.KillMajority,
        process.KillAll,
        process.PauseLeader,
        process.PauseFollower,
        process.PauseSome,
        process.PauseOneKillAnother,
        process.RollingRestart,
        process.Transfer,
        process.NoMajority,
        process.Storm,
        process.ClockJump,
        disk.PowerLoss,
        disk.PowerLossOfAll,
        disk.FullDisk,
        disk.FailingSync,
        disk.StalledDisk,
        disk.LostDisk,
        disk.Newcomer,
        disk.FlippedByte,
        disk.RottenByte,
        network.Halves,
        network.Ring,
        network.Bridge,
        network.MuteOrDeaf,
        network.OneLink,
        network.OneWay,
        network.LeaderCutOff,
        network.SlowWays,
        network.SlowNetwork,
        network.NetworkStorm,
        members.LeaveAndJoin,
        members.Replace,
        members.Drain,
    )
}


def possible(names: Iterable[str], nodes: int) -> tuple[dict[str, type[Fault]], dict[str, str]]:
    """What can be brought about on this machine with so many nodes, and why the rest cannot."""
    kinds = {name: FAULTS[name] for name in names}
    reasons = {name: reason for name, kind in kinds.items() if (reason := kind.why_not(nodes)) is not None}
    return {name: kind for name, kind in kinds.items() if name not in reasons}, reasons
