"""What the nodes of a cluster may write for each other: only what every one of them understands.

While a cluster is upgraded its nodes run two builds, and all of them read one control log. So what goes into it has a
level. A build understands all levels up to `LEVEL`; the cluster is at a level of its own, which is a part of what the
control log has decided (`RaiseLevel`, the table `level` of `state.sqlite`). Every node announces what it understands,
to those it is linked to and in its row of `nodes`. The leader of the control group proposes to raise the level when all
members understand the next one; nobody has to ask for it, and it never falls. What the leader saw may be outdated by
the time its proposal is decided, so it counts only if the rows say the same where it stands in the log.

- What is above the cluster's level is refused (`cluster_level_too_low`) where it is proposed, so it is never in a log
  that an older build reads.
- A build that understands less than the cluster's level takes no part: it does not start on such a directory, is not
  talked to, takes no such snapshot, and leaves when it meets a `RaiseLevel` that counts in its log (`BuildTooOld`).
- Until the level is raised, an older build can be started again on the same directory: nothing was written that it
  does not know.

**To add a command** to a build whose `LEVEL` is 1: give its class in `commands.py` the next free tag, and add
``2: Level(commands=(TheCommand,), …)`` to `LEVELS`. That is all; whoever proposes it gets the refusal for nothing.

- A field is never added to a command that was released, nor to what is inside it: older builds would pass over it in
  silence. Make another command instead. `tests/cluster/test_commands.py` has the bytes of every one.
- A change of the tables in `state.sqlite` is a step in `state_schema.py`; the level names the schema it needs. The file
  is changed when the level is raised, not when the new build is started.
- A new kind of entry in a log (`model/entries.py`) is named in `entry_kinds`, and written when `allows_kind` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple, Protocol, get_args

from holdfast.backends.cluster.commands import (
    AddCallback,
    ChangeMember,
    Command,
    CreateTopic,
    CreateTopicOfBefore,
    DeleteTopic,
    DrawCursor,
    DropCursor,
    MoveCallback,
    MoveCursor,
    NoteNode,
    PreferLeader,
    RaiseLevel,
    RemoveCallback,
    TakeCursor,
)
from holdfast.backends.cluster.state_schema import BASELINE_SCHEMA
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, KIND_MEMBERS, KIND_REIGN
from holdfast.model.errors import BuildTooOld, ClusterLevelTooLow


class Level(NamedTuple):
    """What a cluster may use, beyond the level below, once all of its nodes understand this one."""

    commands: tuple[type, ...]
    entry_kinds: tuple[int, ...] = ()
    state_schema: int = BASELINE_SCHEMA


LEVELS: Final[Mapping[int, Level]] = {
    1: Level(
        commands=(
            CreateTopicOfBefore,
            CreateTopic,
            DeleteTopic,
            MoveCursor,
            DropCursor,
            TakeCursor,
            NoteNode,
            PreferLeader,
            RaiseLevel,
            ChangeMember,
            DrawCursor,
            AddCallback,
            RemoveCallback,
            MoveCallback,
        ),
        entry_kinds=(KIND_BATCH, KIND_REIGN, KIND_MEMBERS, KIND_COMMAND),
    ),
}
# What this build understands.
LEVEL: Final = max(LEVELS)
BASELINE: Final = min(LEVELS)

_LEVEL_OF: Final = {command: number for number, level in LEVELS.items() for command in level.commands}
assert set(_LEVEL_OF) == set(get_args(Command)), "every command belongs to a level: name the new ones in LEVELS"


def _installed_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"


# Of the package, for people.
BUILD: Final = _installed_version()

# The names of what a HELLO says of levels, and what it may say.
UNDERSTOOD: Final = "level"
CLUSTER: Final = "cluster_level"
NUMBER_MAX: Final = 999_999_999
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class Announced(Protocol):
    """What a node has said of itself."""

    @property
    def life(self) -> str: ...

    @property
    def level(self) -> int: ...


class ClusterLevel:
    """The level of the cluster, as far as this node knows."""

    def __init__(self) -> None:
        self.number = BASELINE

    def allows_kind(self, kind: int) -> bool:
        """Whether an entry of this kind may be written."""
        return any(kind in level.entry_kinds for number, level in LEVELS.items() if number <= self.number)

    def allows(self, command: Command) -> bool:
        return _LEVEL_OF[type(command)] <= self.number

    def refusal(self, command: Command, nodes: Mapping[str, Announced]) -> ClusterLevelTooLow | None:
        """Why a command cannot be proposed yet, with who is in the way."""
        needed = _LEVEL_OF[type(command)]
        if needed <= self.number:
            return None
        behind = sorted(node for node, row in nodes.items() if row.level < needed)
        return ClusterLevelTooLow(f"this needs level {needed} and the cluster is at {self.number}: {_advice(behind)}")

    def raise_to(self, number: int) -> None:
        """Raises `BuildTooOld` where this build does not understand so much."""
        check_understood(number)
        self.number = max(self.number, number)


def _advice(behind: list[str]) -> str:
    if not behind:
        return "it rises by itself once every node has said that it understands that; try again in a few seconds"
    who = f"{behind[0]} runs" if len(behind) == 1 else f"{', '.join(behind)} run"
    them = "it" if len(behind) == 1 else "them"
    return f"{who} an older version; upgrade {them}, then try again"


def schema_of(number: int) -> int:
    """The tables that a cluster of this level has: those of all levels up to it."""
    return max(level.state_schema for each, level in LEVELS.items() if each <= number)


def number_said(text: str) -> int | None:
    """A level as another node says it in its HELLO; `None` for what is none."""
    return int(text) if _NUMBER.fullmatch(text) else None


def check_understood(number: int) -> None:
    """Raises `BuildTooOld` for a level that is above this build's."""
    if number > LEVEL:
        raise BuildTooOld(
            f"the cluster is at level {number}, and this build ({BUILD}) understands {LEVEL}: start the version that "
            "the cluster ran last, or a newer one; there is no way back to an older one"
        )


def behind(number: int, members: Iterable[ReplicaId], announced: Mapping[str, Announced]) -> list[str]:
    """The members that have not said that they understand a level, by the names of their nodes."""
    return sorted(node_of(member) for member in members if _level_said(member, announced) < number)


def _level_said(member: ReplicaId, announced: Mapping[str, Announced]) -> int:
    row = announced.get(node_of(member))
    # Another disk is another node: what its predecessor understood says nothing of it.
    if row is None or replica_id(node_of(member), row.life) != member:
        return 0
    return row.level


def understood_by_all(
    members: Iterable[ReplicaId], announced: Mapping[str, Announced], linked: Mapping[str, int]
) -> int:
    """The level that can be proposed to a cluster; below the first where a member has not said anything yet.

    It counts what each node has announced, be it away, and what those say who are linked now.
    """
    said = (_level_said(member, announced) for member in members)
    return min((LEVEL, *said, *(row.level for row in announced.values()), *linked.values()))
