"""A node that was away for long takes over the state of another: it has all of it then, or none, and stays itself."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster import opening, snapshots
from holdfast.backends.cluster.commands import NoteNode
from holdfast.backends.cluster.configurations import Known
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.snapshots import SnapshotGiver
from holdfast.backends.cluster.state import Loaded, NodeRow, StateStore, applied_row, node_row
from holdfast.backends.cluster.topics import Topics
from holdfast.consensus.members import Members, MembersAt
from holdfast.model.ids import CursorName, LogIndex, Offset, Term, TopicName
from holdfast.model.topics import Topic, TopicConfig

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
                await first.state.cursors.set((ORDERS, CursorName(f"c{moved}")), {0: Offset(0)}, only_forward=True)
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


def founders_at(entry: LogIndex) -> Known:
    return Known(entry, MembersAt(LogIndex(-1), Term(0), Members.of(["n1.1"])))


class FromOne:
    """Asks one node, which is not asked by anybody else meanwhile unless a test does."""

    def __init__(self, giver: SnapshotGiver) -> None:
        self._giver = giver

    def is_up(self, node: str) -> bool:
        return True

    async def request(self, node: str, method: int, body: bytes, timeout_s: float, leads: object = None) -> memoryview:
        await asyncio.sleep(0.001)
        return memoryview(await self._giver.give(memoryview(body)))


async def test_two_nodes_that_were_away_do_not_keep_the_state_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(snapshots, "_UNREAD_S", 0.1)
    store, _ = StateStore.open(tmp_path / "state.sqlite", damaged_suffix="", on_failure=lambda error: None)
    rows = [node_row(NodeRow(f"n{number}", "1", {"x": "y" * 1000})) for number in range(500)]
    await store.write([*rows, applied_row(LogIndex(7), Term(1))])
    base = LogIndex(7)
    giver = SnapshotGiver(tmp_path / "state.sqlite", lambda: base, founders_at)
    began = 0

    def copies() -> list[Path]:
        return list(tmp_path.glob("state.sqlite.copy-*"))

    async def fetched(number: int) -> int:
        def count(done: int, size: int) -> None:
            nonlocal began
            began += done == 1 << 14

        directory = tmp_path / str(number)
        directory.mkdir()
        incoming, known = await snapshots.fetch(FromOne(giver), "n1", directory, count)
        assert known is not None
        with contextlib.closing(sqlite3.connect(incoming)) as state:
            (applied,) = state.execute("SELECT log_index FROM applied").fetchone()
        return int(applied)

    first = asyncio.create_task(fetched(1))
    await until(lambda: began == 1)
    second = asyncio.create_task(fetched(2))
    await until(lambda: began == 2)
    assert len(copies()) == 1 and not first.done()
    # The log has dropped what stands behind that copy: it is of no use to who begins now.
    await store.write([applied_row(LogIndex(9), Term(1))])
    base = LogIndex(8)
    assert list(await asyncio.gather(first, second, fetched(3))) == [7, 7, 9]
    await until(lambda: not copies())
    giver.close()
    await store.close()


async def test_state_file_is_written_on_after_another_one_was_taken_over(tmp_path: Path) -> None:
    """Else the control log would never drop anything any more."""
    async with running(tmp_path) as nodes:
        control, propose = nodes.backends["n1"].control, nodes.backends["n1"]._proposals.propose
        await propose(NoteNode("filler", "1", {}))
        assert control._writer is not None, "it waits for more to write"
        store, applied = control._store, control.applied

        async def nothing() -> None:
            return

        async def stays_open() -> None:
            return

        store.close = stays_open  # type: ignore[method-assign]
        await control.replace_store(lambda: (store, applied), nothing)
        del store.close
        await propose(NoteNode("filler", "2", {}))
        await until(lambda: control.kept > applied)


async def test_copy_of_the_state_that_nobody_waits_for_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "state.sqlite")) as state:
        state.execute("CREATE TABLE applied (log_index INTEGER)")
    giver = SnapshotGiver(tmp_path / "state.sqlite", lambda: LogIndex(0), founders_at)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    really_copy = giver._copy

    def slowly(path: Path) -> LogIndex:
        begun.set()
        may_end.wait()
        copied = really_copy(path)
        assert path.exists()
        ended.set()
        return copied

    monkeypatch.setattr(giver, "_copy", slowly)
    asking = asyncio.create_task(giver._begun())
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    may_end.set()
    assert await asyncio.to_thread(ended.wait, 10)
    await until(lambda: [each.name for each in tmp_path.iterdir()] == ["state.sqlite"])
