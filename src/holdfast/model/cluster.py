"""What a cluster looks like from outside: its nodes, who leads what, and who is how far behind."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class FollowerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader knows of one replica."""

    node: str
    is_voter: bool
    lag: Annotated[int, Meta(description="entries of the log that it is not known to have")]


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One group as one node sees it: `role` is that node's. `followers` is given by the leader only."""

    name: str
    topic: Annotated[str | None, Meta(description="null for the control group")] = None
    partition: int | None = None
    role: Annotated[str, Meta(description="leader, follower, candidate, trial or learner")]
    term: int
    leader: Annotated[str | None, Meta(description="null where nobody is known to lead")]
    commit_index: Annotated[int, Meta(description="the last entry that is decided, as far as this node knows")]
    shown_index: Annotated[int, Meta(description="the last entry that readers here see")]
    last_index: int
    terms: Annotated[
        list[tuple[int, int]], Meta(description="the log's terms: the first entry of each, and the term")
    ] = msgspec.field(default_factory=list)
    is_asleep: Annotated[bool, Meta(description="idle: the group costs nothing until something happens")]
    elections: Annotated[int, Meta(description="elections this node began since it started")]
    followers: list[FollowerDescription]


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One node. What is `null` is known to itself only, and it cannot be asked."""

    node: str
    is_up: bool
    life: Annotated[str | None, Meta(description="changes when its data directory is another one")]
    addresses: Annotated[dict[str, str], Meta(description="text, http and peer to host:port")]
    role: Annotated[str | None, Meta(description="in the control group")] = None
    term: Annotated[int | None, Meta(description="of the control group")] = None
    commit_index: Annotated[int | None, Meta(description="of the control group")] = None
    applied_index: Annotated[int | None, Meta(description="of the control group")] = None
    partitions_led: int | None = None
    partitions: int | None = None
    version: Annotated[str | None, Meta(description="of the build; of a node that is away, as it last said")] = None
    protocol: Annotated[
        int | None, Meta(description="the newest version of the protocol between nodes that its build speaks")
    ] = None
    level: Annotated[
        int | None, Meta(description="the highest level its build understands; of a node that is away, as it last said")
    ] = None
    lag: Annotated[
        int | None,
        Meta(description="entries it is behind the leaders, over all groups; null where not all of them can tell"),
    ] = None
    silent_since_ms: Annotated[
        int | None, Meta(description="when the node that was asked last heard of it; null while it is reached")
    ] = None


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place in the cluster, and how far it has come in it."""

    node: str
    state: Annotated[str, Meta(description="voter, learner, joining, draining, drained, leaving, silent or removed")]
    is_up: bool
    is_drained: Annotated[bool, Meta(description="whether it is to lead nothing")] = False
    is_joining: Annotated[bool, Meta(description="until it votes in every group")] = False
    is_leaving: Annotated[bool, Meta(description="until no group has it any more")] = False
    replaces: Annotated[str | None, Meta(description="the node that leaves when this one votes everywhere")] = None
    since_ms: Annotated[int | None, Meta(description="when its place was last changed; null for a founder's")] = None
    silent_since_ms: Annotated[
        int | None, Meta(description="when the node that was asked last heard of it; null while it is reached")
    ] = None
    lag: Annotated[
        int | None, Meta(description="entries it is behind the leaders; null where not all of them can tell")
    ] = None
    partitions_led: int | None = None
    is_control_leader: bool = False
    votes_in: Annotated[int, Meta(description="groups in which it votes, as the node that was asked knows")] = 0
    groups: Annotated[int, Meta(description="groups there are: one for each partition, and the control group")] = 0
    address: Annotated[str | None, Meta(description="where the other nodes reach it")] = None


class MembersDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a cluster, with those that have left."""

    cluster: str
    asked: Annotated[str, Meta(description="the node that answers")]
    has_quorum: bool
    changing: Annotated[str | None, Meta(description="the node that is joining or leaving; one at a time does")] = None
    members: list[MemberDescription]


class PairDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One of a pair, as it sees itself and the other one."""

    role: Annotated[str, Meta(description="primary, backup, or joining: one that does not have everything yet")]
    epoch: Annotated[int, Meta(description="rises with every change of primary")]
    is_alone: Annotated[bool, Meta(description="whether what is acknowledged now is on this node only")]
    partner: str
    partner_is_up: bool
    replicas_held: Annotated[int, Meta(description="messages that are not known to be delivered yet")]
    lag: Annotated[int | None, Meta(description="entries the backup is behind; null where only the primary knows")]
    failovers: Annotated[int, Meta(description="how often this node took over since it started")]
    last_gap_ms: Annotated[int | None, Meta(description="from the last word of the other one until this took over")]


def refusal_of_backup(primary: str) -> str:
    """Why a backup of a plain pair takes no publishes. Nothing is wrong then, and `holdfast check` says so."""
    return f"this is the backup; publish to its primary at {primary}"


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the node that was asked sees it."""

    cluster: Annotated[str, Meta(description="equal on all nodes of a cluster")]
    asked: Annotated[str, Meta(description="the node that answers")]
    leader: Annotated[str | None, Meta(description="of the control group; null where nobody is known to lead")]
    term: Annotated[int, Meta(description="of the control group")]
    has_quorum: Annotated[bool, Meta(description="whether topics, cursors and messages can be decided on")]
    missing: Annotated[list[str], Meta(description="voters that the node which was asked cannot reach")]
    nodes: list[NodeDescription]
    level: Annotated[
        int | None,
        Meta(
            description="what the nodes may write for each other; raised when all understand the next; null for a store"
        ),
    ] = None
    store: Annotated[
        str | None, Meta(description="the database that these brokers share; null where nodes keep messages themselves")
    ] = None
    pair: Annotated[PairDescription | None, Meta(description="of the node that was asked, if it is one of a pair")] = (
        None
    )
    voters: Annotated[list[str], Meta(description="nodes of which a majority decides; empty for a store")] = []
    shrink_after_ms: Annotated[
        int | None,
        Meta(
            description="how long a node is silent before the node that was asked goes on without its vote; null where "
            "a majority of the nodes is always needed"
        ),
    ] = None
