"""A writer that was forgotten: what it committed or dropped stays so, however late somebody asks for it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from testkit.inprocess import running
from testkit.reading import values_in
from testkit.wait import until

from holdfast.model.errors import StagedExpired, TooManyWriters, WriterNotFound
from holdfast.model.ids import Offset
from holdfast.model.names import DONE_CURSOR
from holdfast.model.topics import TopicConfig
from holdfast.transactions import staging, sweeping
from holdfast.wire.transactions import DECISIONS, STAGED, Abort, Commit, Decision
from tests.transactions.desk import (
    EXPIRY_MS,
    OTHER,
    Desk,
    W,
    later,
    stage_values,
    transacting,
    writer_of,
)


def noted_as_forgotten(desk: Desk) -> list[str]:
    return sorted(name for topic, name in desk.broker.backend.cursors() if topic == DECISIONS and name.startswith("f."))


async def test_late_commit_of_a_forgotten_writer_stores_nothing_again(desk: Desk) -> None:
    await desk.create()
    await desk.stage(0, b"open", writer=OTHER)  # all that is staged behind it stays on disk
    receipt, loser = await desk.stage(0, b"row"), await desk.stage(0, b"lost the race")
    await desk.commit(0, receipt)
    await desk.transactions.forget("w")
    for _ in range(2):
        for late in (receipt, loser):
            with pytest.raises(StagedExpired, match="its writer was forgotten"):
                await desk.commit(0, late)
        assert await desk.values() == [b"row"]
        assert await desk.transactions.writers() == [], "a commit that is refused does not bring it back"
        await desk.restart()
    await desk.commit(0, await desk.stage(0, b"new life"))
    assert await desk.values() == [b"row", b"new life"]


async def test_what_was_aborted_before_its_writer_was_forgotten_stays_dropped(desk: Desk) -> None:
    await desk.create()
    await desk.stage(0, b"open", writer=OTHER)
    receipt = await desk.stage(0, b"aborted")
    await desk.transactions.abort("w")
    await desk.transactions.forget("w")
    with pytest.raises(StagedExpired, match="its writer was forgotten"):
        await desk.commit(0, receipt)
    assert await desk.values() == []


async def test_commit_that_was_checked_before_and_decided_behind_the_forgetting_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was stopped in between: only the coordinator can tell."""
    await desk.create()
    await desk.stage(0, b"open", writer=OTHER)
    receipt = await desk.stage(0, b"row")
    deciding = desk.transactions._deciding
    real, is_stopped, woken = deciding._append, asyncio.Event(), asyncio.Event()

    async def append(decision: Decision) -> Offset:
        if isinstance(decision, Commit) and not is_stopped.is_set():
            is_stopped.set()
            await woken.wait()
        return await real(decision)

    monkeypatch.setattr(deciding, "_append", append)
    stopped = asyncio.ensure_future(desk.commit(0, receipt))
    await is_stopped.wait()
    assert not (await desk.commit(0, receipt)).duplicate
    await desk.transactions.forget("w")
    woken.set()
    with pytest.raises(StagedExpired, match="forgotten since"):
        await stopped
    assert await desk.values() == [b"row"]
    assert desk.transactions.stats.refused == 1


@pytest.mark.parametrize("is_commit", [True, False])
async def test_nobody_waits_for_a_decision_whose_writer_was_forgotten_right_behind_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_commit: bool
) -> None:
    """It was done and forgotten before whoever asked for it could look."""
    await desk.create()
    deciding = desk.transactions._deciding
    real = deciding._append
    receipt = await desk.stage(0, b"row")

    async def append(decision: Decision) -> Offset:
        placed = await real(decision)
        if isinstance(decision, Commit | Abort):
            await deciding.forget(decision.writer)
        return placed

    monkeypatch.setattr(deciding, "_append", append)
    if is_commit:
        with pytest.raises(WriterNotFound, match=r"forgotten right behind it.*Look into the topics"):
            await desk.commit(0, receipt)
    else:
        await desk.transactions.abort("w")
    assert await desk.values() == [b"row"] * is_commit
    assert await desk.transactions.writers() == [] and desk.transactions._writers._waiting == {}


async def test_nothing_is_kept_of_forgotten_writers_once_what_they_staged_is_gone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "_ROUND_FORGOTTEN_MAX", 2)
    await desk.create()
    await desk.commit(0, await desk.stage(0, b"alone"))
    await desk.transactions.forget("w")
    assert noted_as_forgotten(desk) == [], "nothing was left that could be committed"
    opened = await desk.stage(0, b"open", writer=OTHER)
    for _ in range(2):
        await desk.commit(0, await desk.stage(0, b"w"))
        await desk.transactions.forget("w")
    assert noted_as_forgotten(desk) == ["f.w"]
    await desk.restart()
    same = [writer_of(W, prefix) for prefix in ("x", "y", "z", "a")]
    for writer in same:
        await desk.commit(0, await desk.stage(0, b"x", writer=writer), writer=writer)
        await desk.transactions.forget(writer)
    assert noted_as_forgotten(desk) == sorted(f"f.{writer}" for writer in ["w", *same])
    await desk.commit(0, opened, writer=OTHER)
    for number in range(1, 4):  # each decision is followed by a sweep
        await desk.commit(number, writer=OTHER)
    await until(lambda: noted_as_forgotten(desk) == [])
    assert [each.writer for each in await desk.transactions.writers()] == [OTHER]


async def test_what_a_forgotten_writer_staged_holds_up_nobody(desk: Desk) -> None:
    """Neither an hour of room, nor the notes of others."""
    await desk.create()
    await desk.stage(0, b"open", writer=OTHER)
    await desk.commit(0, await desk.stage(0, b"w"))
    await desk.stage(1, b"never committed")
    await desk.transactions.forget("w")
    later(desk.store, EXPIRY_MS * 3)
    await desk.commit(1, writer=OTHER)  # its open piece is superseded
    await until(lambda: (desk.broker.backend.cursor(STAGED, DONE_CURSOR) or {}).get(W) == 3)
    assert desk.transactions.stats.expired_pieces == 0
    await until(lambda: noted_as_forgotten(desk) == [])


async def test_notes_of_forgotten_writers_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "WRITERS_MAX", 1)
    await desk.create()
    await desk.stage(0, b"open", writer=OTHER)
    await desk.commit(0, await desk.stage(0, b"w"))
    await desk.transactions.forget("w")
    desk.transactions._writers._counted_s = float("-inf")
    with pytest.raises(TooManyWriters, match="forgotten"):
        await desk.commit(0, writer="another")


async def test_late_commit_through_another_node_of_a_cluster_stores_nothing_again(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes, transacting(nodes.brokers) as made:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await stage_values(made["n1"], 0, b"open", writer=OTHER)
        receipt = await stage_values(made["n1"], 0, b"row")
        await made["n2"].commit("w", 0, [receipt])
        await made["n2"].forget("w")
        for each in made.values():
            with pytest.raises(StagedExpired, match="its writer was forgotten"):
                await each.commit("w", 0, [receipt])
        assert await values_in(nodes.brokers["n1"], "t") == [b"row"]
