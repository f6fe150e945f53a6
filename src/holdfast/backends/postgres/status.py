"""The store and its brokers in words and numbers, for people and for metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.model.cluster import ClusterDescription, NodeDescription
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.topics import PartitionDescription

if TYPE_CHECKING:
    from holdfast.backends.postgres.backend import PostgresBackend


# A database that is silent is not waited for: clients ask for this to find their way.
_PATIENCE_S: Final = 0.5


def of_partition(backend: PostgresBackend, partition: PartitionId) -> PartitionDescription:
    """Every broker takes everything, so each names itself as the one to turn to."""
    state = backend.known.partitions.get(partition)
    return PartitionDescription(
        partition=partition.number,
        leader=backend.node_id if backend.database.is_up else None,
        start_offset=state.start if state is not None else Offset(0),
        end_offset=state.end if state is not None else Offset(0),
        size_bytes=state.size_bytes if state is not None else 0,
        segments=0,
    )


async def of_store(backend: PostgresBackend) -> ClusterDescription:
    """All brokers that use the store; this one alone where the database cannot be asked."""
    partitions = len(backend.known.partitions)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            rows = await backend.holding.live()
    except (Unavailable, TimeoutError):
        rows = []
    nodes = [
        NodeDescription(
            node=name,
            is_up=True,
            life=str(broker_id),
            addresses=msgspec.json.decode(addresses, type=dict[str, str]),
            partitions=partitions,
        )
        for broker_id, name, addresses, *_ in rows
        if broker_id != backend.broker_id
    ]
    here = NodeDescription(
        node=backend.node_id,
        is_up=True,
        life=str(backend.broker_id),
        addresses=backend.holding.addresses,
        partitions=partitions,
    )
    return ClusterDescription(
        cluster=backend.store_id,
        asked=backend.node_id,
        leader=backend.node_id if backend.database.is_up else None,
        term=0,
        has_quorum=backend.database.is_up,
        missing=[],
        nodes=[here, *nodes],
        store=backend.database.place,
    )
