"""One seed of a pair: faults while publishers are at work, peace, and then an exam: one is gone, the other serves."""

from __future__ import annotations

from collections.abc import Callable

from simulation.outcome import Outcome, outcome_of
from simulation.pair_cluster import PairCluster
from simulation.pair_faults import PROFILES, PairFaults
from simulation.world import Violation, World

# Longer than the longest of all waits in a row: a link that hangs, one that was refused, giving, letting in.
SETTLE_MS_MAX = 16_000.0
_STEP_MS = 50.0
_PROFILE_WEIGHTS = {
    "none": 1,
    "crashes": 4,
    "pauses": 3,
    "network": 5,
    "disks": 3,
    "moments": 5,
    "meetings": 2,
    "everything": 8,
}


def run_seed(seed: int, *, profile: str | None = None, is_traced: bool = False) -> Outcome:
    """Run the whole of it; without a profile the seed chooses one."""
    world = World(seed, is_traced=is_traced)
    # The dice are thrown also where a profile is given, so that the rest of the seed falls the same.
    chosen = world.dice.choices(list(PROFILES), [_PROFILE_WEIGHTS[name] for name in PROFILES])[0]
    return outcome_of(world, seed, profile or chosen, _live_through)


def _live_through(world: World, profile: str) -> None:
    cluster = PairCluster(world)
    dice = world.dice
    if world.chance(0.8):
        # Most pairs have come together before anything happens to them.
        _await(cluster, "both come together", cluster.checker.unsettled_members)
    if world.chance(0.3):
        cluster.add_topic()
    pause_ms = 1200.0 if profile == "meetings" else dice.choice((150.0, 400.0, 900.0))
    faults = PairFaults(cluster, profile, pause_ms)
    cluster.run_ms(dice.choice((1000.0, 2000.0, 4000.0)))
    faults.stop()
    cluster.heal()
    _settle(cluster)
    _examine(cluster)
    cluster.heal()
    _settle(cluster)
    cluster.checker.check_everything_is_there()


def _settle(cluster: PairCluster) -> None:
    """Publishers get their answers, both have everything, and the same."""
    for publisher in cluster.publishers:
        publisher.is_stopped = True
    _await(cluster, "publishers are answered", lambda: _unanswered(cluster))
    _await(cluster, "both come together", cluster.checker.unsettled)
    cluster.checker.check_everything_is_there()


def _unanswered(cluster: PairCluster) -> str | None:
    # One without ids does not try again, so it may wait in vain.
    waiting = sum(publisher.unacknowledged for publisher in cluster.publishers[:-1])
    return f"{waiting} messages wait" if waiting else None


def _examine(cluster: PairCluster) -> None:
    """Of a pair that is in order either is enough, and neither minds being away for a while."""
    world, dice = cluster.world, cluster.world.dice
    node = dice.choice(cluster.nodes)
    event = dice.choice(("kill", "power loss", "freeze", "split", "restart of both"))
    if world.is_traced:
        world.note(f"EXAM n{node.number}: {event}")
    for publisher in cluster.publishers:
        publisher.is_stopped = False
    cluster.run_ms(dice.random() * 200.0)
    match event:
        case "kill" | "power loss":
            node.crash(is_off=event == "power loss")
        case "freeze":
            node.freeze(3000.0)
        case "split":
            cluster.wire.block([(0, 1), (1, 0)])
        case "restart of both":
            for each in cluster.nodes:
                each.crash()
                each.start()
    cluster.run_ms(dice.choice((50.0, 900.0)))
    for publisher in cluster.publishers:
        publisher.is_stopped = True
    before = world.counts["messages acknowledged"]
    cluster.publishers[0].is_stopped = False
    _await(
        cluster,
        "either is enough",
        lambda: None if world.counts["messages acknowledged"] > before else f"nothing is acknowledged after {event}",
        max_ms=4000.0,
    )


def _await(
    cluster: PairCluster, invariant: str, what_lacks: Callable[[], str | None], max_ms: float = SETTLE_MS_MAX
) -> None:
    """Let time pass until nothing lacks any more."""
    for _ in range(int(max_ms / _STEP_MS)):
        if what_lacks() is None:
            return
        cluster.run_ms(_STEP_MS)
    raise Violation(invariant, f"not after {max_ms:.0f} ms: {what_lacks()}")
