"""A replica is named after its node and the life of its disk: `n3.19e2…`."""

from __future__ import annotations

from holdfast.consensus.members import ReplicaId


def replica_id(node: str, life: str) -> ReplicaId:
    return ReplicaId(f"{node}.{life}")


def node_of(replica: ReplicaId) -> str:
    """The node a replica lives on."""
    return replica.rpartition(".")[0]


def life_of(replica: ReplicaId) -> str:
    """Which of that node's disks it is."""
    return replica.rpartition(".")[2]
