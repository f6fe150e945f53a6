"""Levels: what may be proposed, what a command must look like, and when a level counts."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from holdfast.backends.cluster import commands, levels, state_schema
from holdfast.backends.cluster.commands import COMMANDS_MAX, NoteNode, RaiseLevel
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.levels import ClusterLevel, number_said, understood_by_all
from holdfast.backends.cluster.state import Loaded, NodeRow
from holdfast.consensus.members import Members, MembersAt, ReplicaId
from holdfast.model.entries import KIND_COMMAND
from holdfast.model.errors import BuildTooOld, ClusterLevelTooLow
from holdfast.model.ids import LogIndex, Term
from tests.cluster.builds import NEW, OLD, Build


def row(node: str, level: int, life: str = "1") -> NodeRow:
    return NodeRow(node, life, {}, "1.0", level)


def members(*names: str) -> list[ReplicaId]:
    return [ReplicaId(name) for name in names]


# --- what is proposed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "announced", "linked", "level"),
    [
        (["n2.1"], {"n2": row("n2", 3)}, {"n2": 3}, 3),
        (["n2.1"], {"n2": row("n2", 3)}, {}, 3),
        (["n2.1"], {"n2": row("n2", 2)}, {"n2": 3}, 2),
        (["n2.1"], {"n2": row("n2", 3)}, {"n2": 1}, 1),
        (["n2.1", "n3.1"], {"n2": row("n2", 3)}, {}, 0),
        (["n2.2"], {"n2": row("n2", 3, life="1")}, {}, 0),
        ([], {"n2": row("n2", 1)}, {}, 1),
        (["n2.1"], {"n2": row("n2", 9)}, {}, 3),
    ],
    ids=[
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
def test_level_that_is_proposed_is_what_everybody_understands(
    monkeypatch: pytest.MonkeyPatch, who: list[str], announced: dict[str, NodeRow], linked: dict[str, int], level: int
) -> None:
    monkeypatch.setattr(levels, "LEVEL", 3)
    assert understood_by_all(members(*who), announced, linked) == level


def test_every_command_has_a_level_and_tags_are_never_used_twice() -> None:
    tags = [each.__struct_config__.tag for each in get_args(commands.Command)]
    assert len(tags) == len(set(tags))
    assert {each for level in levels.LEVELS.values() for each in level.commands} == set(get_args(commands.Command))
    assert levels.schema_of(levels.LEVEL) == state_schema.NEWEST_SCHEMA
    assert ClusterLevel().allows_kind(KIND_COMMAND) and not ClusterLevel().allows_kind(200)


def test_build_with_a_command_that_no_level_names_does_not_even_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(msgspec.Struct, array_like=True, frozen=True, tag=10):
        pass

    runpy.run_path(levels.__file__)
    monkeypatch.setattr(commands, "Command", commands.Command | Fresh)
    with pytest.raises(AssertionError, match="every command belongs to a level"):
        runpy.run_path(levels.__file__)


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


@pytest.mark.parametrize(
    ("said", "number"),
    [("1", 1), ("999999999", 999_999_999), ("", None), ("-1", None), ("1" * 10, None), ("9" * 5000, None), ("٣", None)],
)
def test_level_of_another_node_is_a_number_of_few_digits(said: str, number: int | None) -> None:
    assert number_said(said) == number


# --- what is decided ----------------------------------------------------------------------------------


def control_state(*history: tuple[int, Members], rows: tuple[NodeRow, ...]) -> ControlState:
    at = tuple(MembersAt(LogIndex(since), Term(1), who) for since, who in history)
    topics: Any = SimpleNamespace(token_of=lambda name: "", known={}, preferred={})
    raft: Any = SimpleNamespace(members_history=at)
    loaded = Loaded({}, {}, {each.node: each for each in rows})
    propose: Any = None
    return ControlState(topics, propose, propose, loaded, raft, ClusterLevel())


async def raised(state: ControlState, level: int, index: int = 5) -> bool:
    """Whether a level counts that stands there in the log."""
    try:
        statements = await state.apply(RaiseLevel(level), index * COMMANDS_MAX)
    except ClusterLevelTooLow:
        return False
    assert statements
    return True


TWO = Members.of(["n1.1", "n2.1"])


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ((row("n1", NEW), row("n2", NEW)), True),
        ((row("n1", NEW), row("n2", NEW + 5)), True),
        ((row("n1", NEW), row("n2", OLD)), False),
        ((row("n1", NEW),), False),
        ((row("n1", NEW), row("n2", NEW, life="2")), False),
        ((row("n1", NEW), row("n2", NEW), row("n3", OLD)), True),
    ],
    ids=["all", "one is ahead", "one went back", "one never said", "one has another disk", "an older one is no member"],
)
async def test_level_counts_only_if_every_member_has_said_that_it_understands_it(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[NodeRow, ...], counts: bool
) -> None:
    Build(monkeypatch).is_later()
    state = control_state((0, TWO), rows=rows)
    assert await raised(state, NEW) == counts
    assert state.level.number == (NEW if counts else OLD)


async def test_level_counts_for_the_members_there_were_where_it_stands_learners_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Build(monkeypatch).is_later()
    history = (0, TWO), (8, Members.of(TWO.voters, ["n3.1"]))
    rows = row("n1", NEW), row("n2", NEW)
    assert await raised(control_state(*history, rows=rows), NEW, index=7)
    assert not await raised(control_state(*history, rows=rows), NEW, index=9)


async def test_older_build_passes_over_a_level_that_does_not_count_and_leaves_at_one_that_does() -> None:
    """It comes to the same verdict as the others, before it asks itself whether it understands."""
    state = control_state((0, TWO), rows=(row("n1", NEW), row("n2", OLD)))
    assert not await raised(state, NEW)
    await state.apply(NoteNode("n2", "1", {}, "2.0", NEW), 6 * COMMANDS_MAX)
    with pytest.raises(BuildTooOld, match=f"at level {NEW}"):
        await raised(state, NEW, index=7)


async def test_level_that_is_decided_twice_changes_nothing_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    Build(monkeypatch).is_later()
    state = control_state((0, TWO), rows=(row("n1", NEW), row("n2", NEW)))
    assert await raised(state, NEW)
    await state.apply(NoteNode("n2", "1", {}, "1.0", OLD), 6 * COMMANDS_MAX)
    assert await state.apply(RaiseLevel(NEW), 7 * COMMANDS_MAX) == []
    assert state.level.number == NEW


async def test_state_of_another_node_brings_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    Build(monkeypatch).is_later()
    state = control_state((0, TWO), rows=())
    await state.replace(Loaded({}, {}, {}, level=NEW))
    assert state.level.number == NEW
