"""How often a node looks after its groups, and how soon it acts on what it sees of other nodes."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """In seconds. Nobody sets this but tests, which have no time to wait."""

    # From one look after the groups to the next.
    upkeep_s: float = 1.0
    # The same while a node comes or goes: each group takes several steps.
    change_s: float = 0.2
    # The same for the nodes of a pair: one that is not let in yet cannot take over.
    pair_s: float = 0.1
    # A node that has just come back may be about to go again. So long it is there before it leads anything.
    steady_s: float = 3.0
    # From one try to connect to a node that refuses this one to the next.
    refused_retry_s: float = 5.0


USUAL_PACE = Pace()
