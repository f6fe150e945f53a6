"""Where one of a plain pair stands, and what follows for it when it hears where the other one does.

*A reign* is the time of one primary. It has an epoch, which rises with each, and an owner: the token its broker drew
once and keeps on its disk. Reigns are in a total order, so of two primaries that meet exactly one gives way, also where
both are in the same epoch. A backup is in the reign of the primary it follows.

*The journal* of a pair numbers all messages without gaps, whatever their topic. A backup's journal is a beginning of
its primary's: a primary sends only what is on its own disk. Who takes over goes on behind the last number it has
(`base`). So of the reign before, both have the same below `base`, and what the old primary has from there on, only that
one has: it gives that to the winner, with ids, cuts its journal there, and follows.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Role(Enum):
    """`ASKING`: a primary that was started and has not asked yet whether it was replaced."""

    PRIMARY = "primary"
    ASKING = "asking"
    BACKUP = "backup"


class Reign(NamedTuple):
    """Compared by epoch, then by owner."""

    epoch: int
    owner: str


NO_REIGN: Final = Reign(0, "")


class Standing(NamedTuple):
    """What one of two says of itself. Numbers below `start` are forgotten by its journal, `end` is the next to come.

    `previous` is the reign before, and `base` where that ended. Of a backup, everything below `mark` is delivered.
    """

    role: Role
    token: str
    reign: Reign
    previous: Reign
    base: int
    start: int
    end: int
    mark: int


class Verdict(Enum):
    """What one of two does next."""

    WAIT = "wait"
    SERVE = "serve"
    SEND = "send"
    GIVE_WAY = "give way"
    FOLLOW = "follow"
    TAKE_ON = "take on"
    TAKE_OVER = "take over"


def decide(own: Standing, other: Standing) -> Verdict:
    """Both ask themselves this with what they heard last; the answers fit together whoever does so first."""
    if own.token == other.token:
        return Verdict.WAIT
    if own.role is not Role.BACKUP:
        return _of_primary(own, other)
    if other.role is not Role.BACKUP:
        if other.reign > own.reign:
            return Verdict.TAKE_ON
        # One in an earlier reign than this backup has lost its way, and gives way when it hears of it.
        return Verdict.FOLLOW if other.reign == own.reign else Verdict.WAIT
    if own.reign == other.reign == NO_REIGN:
        return Verdict.WAIT
    is_ahead = (own.reign, own.end, own.token) > (other.reign, other.end, other.token)
    return Verdict.TAKE_OVER if is_ahead else Verdict.WAIT


def _of_primary(own: Standing, other: Standing) -> Verdict:
    if other.reign > own.reign:
        return Verdict.GIVE_WAY
    if other.role is not Role.BACKUP or other.reign != own.reign:
        # It gives way, or gives what it has, before it can be sent anything.
        return Verdict.SERVE
    # A backup that has more than its primary: this disk has lost something, and that one has not.
    return Verdict.GIVE_WAY if other.end > own.end else Verdict.SEND


def common_end(own: Standing, winner: Standing) -> int:
    """Below this number a broker that follows another one from now on has the same as that one, as far as it has it."""
    if own.reign == winner.reign:
        common = winner.end
    elif NO_REIGN != own.reign == winner.previous:
        common = winner.base
    elif NO_REIGN != own.previous == winner.previous:
        common = min(own.base, winner.base)
    else:
        common = 0
    return min(common, own.end)
