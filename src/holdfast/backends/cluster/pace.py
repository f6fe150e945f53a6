"""How often a node looks after its groups, and how soon it acts on what it sees of other nodes."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """In seconds. Only tests change these, so that they wait less."""

    # Between two looks after the groups.
    upkeep_s: float = 1.0
    # The same while a node comes or goes: each group takes several steps.
    change_s: float = 0.2
    # The same for the nodes of a pair: one that is not let in yet cannot take over.
    pair_s: float = 0.1
    # How long a node must be up before others hand it a lead: one that has just come back may go again.
    steady_s: float = 3.0
    # Between two tries to connect to a node that refuses this one.
    refused_retry_s: float = 5.0


USUAL_PACE = Pace()
