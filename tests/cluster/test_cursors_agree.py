"""Every node decides alike about cursors, whatever happened to it: else a pop gives messages to two, or to nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster import opening
from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.commands import Command, DrawCursor, DropCursor, MoveCursor, NoteNode, TakeCursor
from holdfast.backends.cluster.cursor_table import _Cursor
from holdfast.model.draws import Draw
from holdfast.model.errors import CursorMoved
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import TopicConfig

TOPIC, CURSOR = TopicName("orders"), CursorName("group")


async def made(nodes: Nodes) -> str:
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(partitions=2))
    topic = nodes.backends["n1"].topic(TOPIC)
    assert topic is not None
    return topic.token


def cursors(backend: ClusterBackend) -> object:
    def content(cursor: _Cursor) -> object:
        # The order of the rows decides who is forgotten next.
        return cursor.decided, {number: list(table._last.items()) for number, table in cursor.draws.items()}

    return {key: content(cursor) for key, cursor in backend.state.cursors._cursors.items()}


async def agreed(nodes: Nodes) -> object:
    await asyncio.gather(*(backend.catch_up_cursors() for backend in nodes.backends.values()))
    first, *others = map(cursors, nodes.backends.values())
    for other in others:
        assert other == first
    return first


async def propose(nodes: Nodes, name: str, command: Command) -> None:
    await nodes.backends[name]._proposals.propose(command)


async def test_repeated_take_is_recognised_by_nodes_that_were_restarted_or_got_their_state_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_CONTROL_SEGMENT_BYTES", 1 << 16)
    async with running(tmp_path) as nodes:
        token = await made(nodes)
        await nodes.stop("n3")
        await propose(nodes, "n1", MoveCursor(TOPIC, token, CURSOR, {0: Offset(5)}, only_forward=False))
        take = TakeCursor(TOPIC, token, CURSOR, 0, Offset(5), Offset(10), "taker")
        await propose(nodes, "n1", take)
        await propose(nodes, "n1", MoveCursor(TOPIC, token, CURSOR, {0: Offset(5)}, only_forward=False))
        before = nodes.backends["n1"].control.replica.log.last_index
        await until(lambda: nodes.backends["n2"].control.applied >= before)
        await nodes.stop("n2")
        await nodes.start("n2")

        async def is_dropped() -> bool:
            await propose(nodes, "n1", NoteNode("filler", "1", {"x": "y" * 50_000}))
            return all(each.control.replica.log.first_index > before for each in nodes.backends.values())

        await until(is_dropped)
        await nodes.start("n3")
        assert nodes.backends["n3"].serving.fetched_bytes > 0
        # The proposer did not hear of it, and sends it again.
        await propose(nodes, "n1", take)
        await agreed(nodes)
        assert [each.cursor(TOPIC, CURSOR) for each in nodes.backends.values()] == [{0: 5}] * 3


async def test_nodes_that_restart_between_any_two_commands_hold_the_same_cursors(tmp_path: Path) -> None:
    dice = random.Random(6)
    async with running(tmp_path) as nodes:
        token = await made(nodes)
        takers: list[TakeCursor] = []
        for _ in range(24):
            for _ in range(4):
                command = _any_command(dice, token, takers, nodes.backends["n1"].cursor(TOPIC, CURSOR) or {})
                try:
                    await propose(nodes, dice.choice(list(nodes.backends)), command)
                except CursorMoved:
                    continue
            assert await agreed(nodes)
            restarted = dice.choice(["n2", "n3"])
            await nodes.stop(restarted)
            await nodes.start(restarted)


def _any_command(
    dice: random.Random, token: str, takers: list[TakeCursor], position: Mapping[int, Offset]
) -> TakeCursor | MoveCursor | DrawCursor | DropCursor:
    number, offset = dice.randrange(2), Offset(dice.randrange(20))
    kind = dice.choice(["take", "take", "repeat", "repeat", "seek", "draw", "drop"])
    if kind == "repeat" and takers:
        return dice.choice(takers[-2:])
    if kind == "seek" and takers:
        # Back to where the last one was taken from: only the taker tells its repetition from a new one.
        seen = {takers[-1].number: takers[-1].stands_at or Offset(0)}
        return MoveCursor(TOPIC, token, CURSOR, seen, only_forward=False)
    if kind == "draw":
        wanted = [Draw(dice.choice("ab"), str(dice.randrange(9)))]
        return DrawCursor(TOPIC, token, CURSOR, number, Offset(0), Offset(20), wanted, notes_nothing=True)
    if kind == "drop" and dice.random() < 0.3:
        return DropCursor(TOPIC, token, CURSOR)
    take = TakeCursor(TOPIC, token, CURSOR, number, position.get(number), offset, f"{dice.random()}")
    takers.append(take)
    return take
