"""The stores under contract. One that comes later joins with one line in `ROWS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from testkit.inprocess import OneNode, PlainNode, Store, ThroughNode
from testkit.postgres import TIMEOUT_S, database_for

from holdfast.model.ids import PartitionId

SEGMENT_BYTES: Final = 4096


def alone(path: Path, **settings: Any) -> OneNode:
    return OneNode(path, **{"segment_bytes": SEGMENT_BYTES, **settings})


def postgres(path: Path, *, spill: bool = False) -> OneNode:
    return OneNode(path, store=database_for(path), store_timeout_ms=int(TIMEOUT_S * 1000), spill=spill)


class Plain(PlainNode):
    """Skips tests that need several partitions."""

    async def create(self, name: str = "t", partitions: int = 1, **config: Any) -> PartitionId:
        if partitions > 1:
            pytest.skip("a plain pair has topics of one partition")
        return await super().create(name, partitions, **config)


ROWS: dict[str, Callable[[Path], Store]] = {
    "alone": alone,
    "leader": partial(ThroughNode, asked="n1", segment_bytes=SEGMENT_BYTES),
    "follower": partial(ThroughNode, asked="n2", segment_bytes=SEGMENT_BYTES),
    "plain": partial(Plain, segment_bytes=SEGMENT_BYTES),
    "postgres": postgres,
    "alone-spill": partial(alone, spill=True),
    "postgres-spill": partial(postgres, spill=True),
}
# Other tests use these as well.
KINDS: dict[str, Callable[[Path], Store]] = {**ROWS, "alone-none": partial(alone, sync="none")}
