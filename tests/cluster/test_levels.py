"""Levels: what a node does not understand never reaches it, and where it does all the same, the node leaves."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from holdfast.backends.cluster import commands, levels, state, state_schema
from holdfast.backends.cluster.commands import NoteNode, RaiseLevel
from holdfast.backends.cluster.levels import ClusterLevel, understood_by_all
from holdfast.backends.cluster.state import NodeRow
from holdfast.consensus.members import ReplicaId
from holdfast.model.entries import KIND_COMMAND
from holdfast.model.errors import BuildTooOld, ClusterLevelTooLow, DataDirectoryError
from holdfast.storage.directory import DataDirectory
from holdfast.wire.peer import Hello
from tests.cluster.nodes import Nodes, now_ms, running, until

FAR = levels.LEVEL + 1


def row(node: str, level: int, life: str = "1") -> NodeRow:
    return NodeRow(node, life, {}, "1.0", level)


def members(*names: str) -> list[ReplicaId]:
    return [ReplicaId(name) for name in names]


@pytest.mark.parametrize(
    ("others", "announced", "linked", "level"),
    [
        ([], {}, {}, 3),
        (["n2.1"], {"n2": row("n2", 3)}, {"n2": 3}, 3),
        (["n2.1"], {"n2": row("n2", 3)}, {}, 3),
        (["n2.1"], {"n2": row("n2", 2)}, {"n2": 3}, 2),
        (["n2.1"], {"n2": row("n2", 3)}, {"n2": 1}, 1),
        (["n2.1", "n3.1"], {"n2": row("n2", 3)}, {}, 1),
        (["n2.2"], {"n2": row("n2", 3, life="1")}, {}, 1),
        ([], {"n2": row("n2", 1)}, {}, 1),
        (["n2.1"], {"n2": row("n2", 9)}, {}, 3),
    ],
    ids=[
        "alone",
        "all there",
        "one away that had said it",
        "one that has not said it in the log yet",
        "one that was started with an older build",
        "one that never said anything",
        "one with another disk",
        "one of a pair that is away",
        "one that is ahead of this build",
    ],
)
def test_level_is_raised_to_what_everybody_understands(
    monkeypatch: pytest.MonkeyPatch,
    others: list[str],
    announced: dict[str, NodeRow],
    linked: dict[str, int],
    level: int,
) -> None:
    monkeypatch.setattr(levels, "LEVEL", 3)
    assert understood_by_all(members(*others), announced, linked) == level


def test_every_command_has_a_level_and_tags_are_never_used_twice() -> None:
    tags = [each.__struct_config__.tag for each in get_args(commands.Command)]
    assert len(tags) == len(set(tags))
    assert {each for level in levels.LEVELS.values() for each in level.commands} == set(get_args(commands.Command))
    assert max(level.state_schema for level in levels.LEVELS.values()) == state_schema.NEWEST_SCHEMA
    assert ClusterLevel().allows_kind(KIND_COMMAND) and not ClusterLevel().allows_kind(200)


def test_refusal_names_who_has_to_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(levels._LEVEL_OF, NoteNode, 2)
    command = NoteNode("n1", "1", {})
    level = ClusterLevel()
    one = level.refusal(command, {"n1": row("n1", 2), "n2": row("n2", 1)})
    assert one is not None and "n2 runs an older version; upgrade it, then try again" in one.message
    two = level.refusal(command, {"n1": row("n1", 1), "n2": row("n2", 1)})
    assert two is not None and "n1, n2 run an older version; upgrade them" in two.message
    nobody = level.refusal(command, {"n1": row("n1", 2)})
    assert isinstance(nobody, ClusterLevelTooLow) and "try again in a few seconds" in nobody.message
    monkeypatch.setattr(levels, "LEVEL", 2)
    level.raise_to(2)
    assert level.refusal(command, {"n2": row("n2", 1)}) is None


def with_level(path: Path, level: int) -> Path:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        for step in state_schema.statements(0, state_schema.BASELINE_SCHEMA):
            made.execute(step)
        made.execute("UPDATE level SET level = ?", (level,))
    return path


def names(path: Path) -> list[str]:
    return [each.name for each in path.iterdir()]


async def test_state_of_a_higher_level_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = with_level(tmp_path / "state.sqlite", FAR)
    before = file.read_bytes()
    with pytest.raises(BuildTooOld, match=f"at level {FAR}"):
        state.StateStore.open(file, damaged_suffix=".damaged", on_failure=lambda error: None)
    with pytest.raises(BuildTooOld):
        state.check_understood(file)
    assert file.read_bytes() == before
    assert names(tmp_path) == [file.name]


async def test_state_with_tables_of_another_build_is_refused(tmp_path: Path) -> None:
    file = with_level(tmp_path / "state.sqlite", levels.LEVEL)
    with sqlite3.connect(file) as made:
        made.execute(f"PRAGMA user_version = {state_schema.NEWEST_SCHEMA + 1}")
    with pytest.raises(DataDirectoryError, match="start the version of holdfast that wrote it"):
        state.check_understood(file)


async def test_node_that_meets_a_level_in_its_log_leaves_and_does_not_start_again(tmp_path: Path) -> None:
    """The level was raised while nobody could know that this node had gone back to an older build."""
    async with running(tmp_path) as nodes:
        leader = await control_leader(nodes)
        nodes.backends[leader].control.replica.append_note(KIND_COMMAND, commands.encode([RaiseLevel(FAR)]))
        await until(lambda: sorted(nodes.failed) == ["n1", "n2", "n3"])
        for backend in nodes.backends.values():
            assert f"level {FAR}" in (backend.problem() or "")
    again = Nodes(tmp_path)
    for name in again.addresses:
        with pytest.raises(BuildTooOld):
            await again.start(name)


async def test_node_that_says_nonsense_of_its_level_is_refused_and_disturbs_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        neighbours = nodes.backends["n1"].neighbours
        said = Hello(cluster=neighbours.cluster, node="n2", life="1", boot="b")
        for level in ("", "-1", "two", "\u00b2", "9" * 5000):
            for fact in (levels.UNDERSTOOD, levels.CLUSTER):
                reason = neighbours.refusal(msgspec.structs.replace(said, facts={fact: level}))
                assert reason is not None and "does not say clearly" in reason
        assert nodes.failed == []
        neighbours.level.number = FAR
        older = neighbours.refusal(said)
        assert older is not None and "start the version on n2 that the other nodes run" in older


async def control_leader(nodes: Nodes) -> str:
    def found() -> list[str]:
        return [name for name, backend in nodes.backends.items() if backend.control.replica.leads]

    await until(lambda: bool(found()))
    return found()[0]


async def test_announced_levels_survive_a_restart_of_everybody(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await until(lambda: len(nodes.backends["n1"].state.nodes) == 3)
        told = nodes.backends["n1"].state.nodes
        assert {each.level for each in told.values()} == {levels.LEVEL}
        assert {each.version for each in told.values()} == {levels.BUILD}
    directory = DataDirectory.open(tmp_path / "n1", node="n1", now_ms=now_ms())
    store, loaded = state.StateStore.open(directory.state_file, damaged_suffix=".d", on_failure=lambda error: None)
    await store.close()
    directory.close()
    assert loaded.nodes == told and loaded.level == levels.BASELINE
