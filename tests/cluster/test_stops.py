"""A node that stops before a majority has what it took: nobody is told that nothing was stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from testkit.inprocess import running

from holdfast.model.errors import OutcomeUnknown
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import TopicConfig


async def test_message_that_a_stopping_leader_has_is_not_called_unstored(tmp_path: Path) -> None:
    """The leader keeps it, and a majority may still commit it: sent again without an id, it would be there twice."""
    async with running(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        leader = await nodes.leader("t")
        await nodes.brokers[leader].publish_values("t", [b"before"]).offset
        await nodes.stop(*(name for name in list(nodes.backends) if name != leader))
        publishing = nodes.brokers[leader].publish_values("t", [b"after"])
        moved = nodes.backends[leader].set_cursor(TopicName("t"), CursorName("c"), {0: Offset(1)})
        await asyncio.sleep(0)
        await nodes.stop(leader)
        with pytest.raises(OutcomeUnknown):
            await publishing.offset
        with pytest.raises(OutcomeUnknown):
            await moved
