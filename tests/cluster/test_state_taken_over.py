"""A node that was away for long takes over the state of another: it has all of it then, or none, and stays itself."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast.backends.cluster import opening
from holdfast.backends.cluster.commands import NoteNode
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.state import Loaded
from holdfast.backends.cluster.topics import Topics
from holdfast.model.ids import Offset, TopicName
from holdfast.model.topics import Topic, TopicConfig
from tests.cluster.nodes import Nodes, running, until

ORDERS, MEANWHILE = TopicName("orders"), TopicName("meanwhile")


@pytest.fixture(autouse=True)
def _short_control_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_CONTROL_SEGMENT_BYTES", 1 << 16)


async def left_behind(nodes: Nodes) -> None:
    """n3 is stopped, and the others' control logs begin behind its own, with a topic that it does not know."""
    first = nodes.backends["n1"]
    await first.create_topic(ORDERS, TopicConfig())
    await until(lambda: all(ORDERS in each.topics_here.known for each in nodes.backends.values()))
    await nodes.stop("n3")
    await first.create_topic(MEANWHILE, TopicConfig())
    before = first.control.replica.log.last_index

    async def is_dropped() -> bool:
        await first._proposals.propose(NoteNode("filler", "1", {"x": "y" * 50_000}))
        return all(each.control.replica.log.first_index > before for each in nodes.backends.values())

    await until(is_dropped)


async def test_state_that_is_taken_over_slowly_is_not_mixed_with_what_is_decided_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors that fall back have messages given twice."""
    async with running(tmp_path) as nodes:
        await left_behind(nodes)
        first, really_open = nodes.backends["n1"], Topics.open
        moved = 0
        is_over = asyncio.Event()

        async def slowly(self: Topics, topic: Topic, *, is_new: bool = False) -> None:
            if self._groups.me.startswith("n3"):
                await asyncio.sleep(1.2)  # a leader has sent its beginning twice by then
            await really_open(self, topic, is_new=is_new)

        async def move() -> None:
            nonlocal moved
            while not is_over.is_set():
                moved += 1
                await first.state.cursors.set((ORDERS, f"c{moved}"), {0: Offset(0)}, only_forward=True)
                await asyncio.sleep(0.01)

        monkeypatch.setattr(Topics, "open", slowly)
        moving = asyncio.create_task(move())
        await nodes.start("n3")
        third = nodes.backends["n3"]
        await until(lambda: MEANWHILE in third.topics_here.known)
        is_over.set()
        await moving
        await until(lambda: third.control.applied == first.control.applied)
        assert third.serving.fetched_bytes > 0
        assert set(third.state.cursors.keys()) == set(first.state.cursors.keys())


async def test_node_that_is_killed_while_it_takes_a_state_over_keeps_its_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    async with running(tmp_path) as nodes:
        await left_behind(nodes)
        really_replace = ControlState.replace

        async def copied(self: ControlState, loaded: Loaded) -> None:
            if not left.exists():
                shutil.copytree(tmp_path / "n3", left)  # what a kill leaves at this moment
            await really_replace(self, loaded)

        monkeypatch.setattr(ControlState, "replace", copied)
        await nodes.start("n3")
        await until(left.exists)
        life = nodes.backends["n3"]._directory.life
        await nodes.stop("n3")
        shutil.rmtree(tmp_path / "n3")
        left.rename(tmp_path / "n3")
        await nodes.start("n3")
        third = nodes.backends["n3"]
        assert third._directory.life == life, "it gives up its votes in all groups"
        await until(lambda: third.control.applied == nodes.backends["n1"].control.applied)
        assert MEANWHILE in third.topics_here.known
        await nodes.brokers["n3"].publish_values(MEANWHILE, [b"v"]).offset
