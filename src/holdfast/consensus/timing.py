"""How long members wait for each other, in ticks: how long a tick is, the driver decides."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Everything is counted in ticks; a follower waits for a leader one to two times `election_ticks`."""

    heartbeat_ticks: int = 2
    election_ticks: int = 10
    # A leader whose node is known to be gone is not waited for any longer than this, at random.
    suspicion_ticks: int = 4
    # So long after the last news a group goes to sleep.
    idle_ticks: int = 20
    # Whether followers hear of a commit at once, or with the next entries or heartbeat, whichever comes first.
    tells_commits_at_once: bool = True


DEFAULT_TIMING = Timing()
