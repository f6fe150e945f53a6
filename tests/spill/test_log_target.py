"""What was kept for a cluster is stored in its order and with its times, whatever a leader refuses in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast.backends.cluster.forwarding import Lane
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.spill.log_target import LogTarget
from holdfast.broker.backend import Backend
from holdfast.model.errors import NoQuorum
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.wire import batch_builder, record_batch
from tests.cluster.test_lanes import PARTITION, Leader, given, several_turns


class Elsewhere:
    """As much of a backend as storing needs, with another node that leads."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        refusal = NoQuorum("nobody leads")
        self._lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: refusal)

    def end_offset(self, partition: PartitionId) -> Offset:
        return Offset(len(self._leader.stored))

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        return self._lane.forward(batch, has_ids=has_ids)


def kept(count: int) -> list[tuple[PartitionId, bytearray]]:
    """One message each, a second apart."""
    return [
        (PARTITION, batch_builder.build_batch([NewMessage(value=b"%d" % number, id=f"id {number}")], 1_000 * number))
        for number in range(count)
    ]


def stored(leader: Leader) -> list[Any]:
    return [message for batch in leader.stored for message in record_batch.decode(bytearray(batch), 0)]


async def test_batch_that_a_leader_refuses_is_not_overtaken_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.spill.log_target._JOINED_BYTES_MAX", 1)
    leader = Leader(is_here=False)
    target = LogTarget(cast(Backend, Elsewhere(leader)), tmp_path)
    storing = asyncio.create_task(target.store(uuid4(), 3, kept(3)))
    for is_taken in (False, True, True, False, True):
        await given(leader, 1)
        await several_turns()
        assert len(leader.given) == 1, "one at a time"
        if is_taken:
            leader.store()
        else:
            leader.refuse()
    await storing
    assert [message.value for message in stored(leader)] == [b"0", b"1", b"2"]


async def test_many_small_batches_become_one_and_each_message_keeps_its_time(tmp_path: Path) -> None:
    leader = Leader(is_here=False)
    target = LogTarget(cast(Backend, Elsewhere(leader)), tmp_path)
    storing = asyncio.create_task(target.store(uuid4(), 50, kept(50)))
    await given(leader, 1)
    leader.store()
    await storing
    found = [(message.value, message.id, message.timestamp_ms) for message in stored(leader)]
    assert found == [(b"%d" % number, f"id {number}", 1_000 * number) for number in range(50)]
