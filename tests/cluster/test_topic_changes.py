"""Deleting a topic says what became of it, also where this node heard late of it or had to ask twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from testkit.inprocess import running

from holdfast.backends.cluster.commands import Command
from holdfast.backends.cluster.topic_changes import TopicChanges
from holdfast.backends.cluster.topics import Topics
from holdfast.model.errors import TopicNotFound
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.directory import DataDirectory

T = TopicName("t")


async def test_topic_that_was_deleted_by_a_proposal_whose_answer_was_lost_is_not_called_unknown() -> None:
    """Proposals are sent again until they are decided: the second one finds no topic any more."""
    topic = Topic(name=T, config=TopicConfig(), created_ms=TimestampMs(1), token="a")
    known = {T: topic}
    directory = SimpleNamespace(keep_reserve=lambda: None)

    async def propose(command: Command) -> None:
        known.pop(T)
        raise TopicNotFound("there is no topic t")

    changes = TopicChanges(
        cast(DataDirectory, directory),
        cast(Topics, SimpleNamespace(known=known)),
        propose=cast(Any, propose),
        now_ms=lambda: TimestampMs(1),
        default_retention=TopicConfig(),
        partitions_max=10,
    )
    await changes.delete(T)
    with pytest.raises(TopicNotFound):
        await changes.delete(T)


async def test_topic_is_deleted_through_a_node_that_is_making_it(tmp_path: Path) -> None:
    """Others have it already, so nobody may be told that there is none."""
    async with running(tmp_path) as nodes:
        broker = next(iter(nodes.brokers.values()))
        making = asyncio.ensure_future(broker.create_topic(T, TopicConfig()))
        while broker.backend.topic(T) is None and not making.done():
            await asyncio.sleep(0)
        await broker.delete_topic(T)
        await making
        assert broker.backend.topic(T) is None


async def test_topic_is_deleted_through_a_node_that_has_not_heard_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        for number in range(20):
            name = f"t{number}"
            one, other, third = nodes.brokers.values()
            await one.create_topic(name, TopicConfig())
            await other.delete_topic(name)
            # Made anew: a node that is behind knows the one before.
            await other.create_topic(name, TopicConfig())
            await third.delete_topic(name)
            await one.backend.catch_up_cursors()
            assert one.backend.topic(TopicName(name)) is None
