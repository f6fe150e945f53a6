"""When an acknowledgement is given: after the disk has it, or earlier, and what that gives up."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import ConfigError

_INTERVAL = re.compile(r"interval:(\d{1,6})\Z")
INTERVAL_MS_MAX = 60_000


class SyncPolicy(NamedTuple):
    """`group`: sync, then acknowledge. `interval`: sync every so often. `none`: leave it to the system."""

    name: str
    interval_ms: int = 0

    @property
    def acknowledges_after_sync(self) -> bool:
        return self.name == "group"

    @property
    def gives_up(self) -> str | None:
        """What may be lost although it was acknowledged, in a sentence for logs and `holdfast check`."""
        if self.name == "interval":
            return f"a power loss may take acknowledged messages of the last {self.interval_ms} ms"
        if self.name == "none":
            return "a power loss may take acknowledged messages of the last half minute or more"
        return None

    def __str__(self) -> str:
        return f"interval:{self.interval_ms}" if self.name == "interval" else self.name


def parse_sync_policy(text: str) -> SyncPolicy:
    """Understand `group`, `interval:MS` or `none`."""
    if text in ("group", "none"):
        return SyncPolicy(text)
    match = _INTERVAL.match(text)
    if match and 1 <= int(match[1]) <= INTERVAL_MS_MAX:
        return SyncPolicy("interval", int(match[1]))
    raise ConfigError(f"sync is {text!a}; write group, interval:MS (1 to {INTERVAL_MS_MAX}) or none")
