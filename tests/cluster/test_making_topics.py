"""Others are served while topics are made: the loop does not wait for the disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.inprocess import Nodes

from holdfast.backends.cluster.pace import USUAL_PACE
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig


@pytest.fixture
def synced_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that were synced in the thread of the event loop."""
    here, found = threading.get_ident(), []

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(fd: int) -> None:
            if threading.get_ident() == here:
                found.append(fd)
            sync(fd)

        return noted

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    return found


@pytest.mark.parametrize("count", [1, 3], ids=["a node that stands alone", "three nodes"])
async def test_nobody_waits_for_the_disk_while_topics_are_made(
    tmp_path: Path, synced_here: list[int], count: int
) -> None:
    nodes = Nodes(tmp_path, count)
    nodes.pace = USUAL_PACE  # what nodes write down of each other comes later than this
    await nodes.start()
    try:
        backend, broker = nodes.backends["n1"], nodes.brokers["n1"]
        synced_here.clear()
        await asyncio.gather(*(backend.create_topic(TopicName(f"t{n}"), TopicConfig(partitions=3)) for n in range(10)))
        assert synced_here == []
        if count == 1:
            # Nobody has to be waited for: what is published next finds a leader.
            assert all(backend.leads(PartitionId(TopicName(f"t{n}"), 2)) for n in range(10))
        published = await broker.publish("t9", [NewMessage(value=b"x")])
        assert published[0].offset == 0
    finally:
        await nodes.stop()


async def test_creation_that_is_given_up_as_its_files_are_made_leaves_no_log_open(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        backend = nodes.backends["n1"]
        name = TopicName("t")
        for _ in range(20):
            making = asyncio.ensure_future(backend.create_topic(name, TopicConfig(partitions=2)))
            await asyncio.sleep(0)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        try:
            await backend.create_topic(name, TopicConfig(partitions=2))
        except HoldfastError as error:
            assert error.code == "topic_exists"
        assert backend.leads(PartitionId(name, 1))
    assert not open_below(tmp_path)


def open_below(directory: Path) -> list[str]:
    """The logs below a directory that this process has open."""
    left = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return [path for path in left if str(directory) in path and "/topics/" in path]
