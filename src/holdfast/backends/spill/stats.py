"""What a spill counts, for metrics and for people."""

from __future__ import annotations

import msgspec


class SpillStats(msgspec.Struct, kw_only=True):
    """Everything since the start, but for what says otherwise."""

    spilled_events: int = 0
    spilled_bytes: int = 0
    replayed_events: int = 0
    # Of those that were spilled: the store had them all the same.
    already_stored_events: int = 0
    # Lines in `failed`, those of earlier broker processes included.
    failed_events: int = 0
    refused_pushes: int = 0
    outages: int = 0
    # Pushes that were under way when the store went away and whose fate had to be found out later.
    unknown_fates: int = 0
    qos0_lost_events: int = 0
