"""The level in `state.sqlite`: which tables it has, what becomes of it when the file is damaged, who may open it."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.inprocess import Nodes

from holdfast.backends.cluster import levels, snapshots, state, state_schema, state_versions
from holdfast.backends.cluster.requests import SnapshotReply, encode
from holdfast.backends.cluster.state import Loaded, StateStore
from holdfast.model.errors import BuildTooOld, DataDirectoryError, HoldfastError, Unavailable
from holdfast.model.ids import CursorName, Offset, TopicName
from tests.cluster.builds import NEW, NEW_SCHEMA, OLD, OLD_SCHEMA, Build, content

KEY = (TopicName("orders"), CursorName("billing"))


async def opened(path: Path, *, may_salvage: bool = True) -> Loaded:
    store, loaded = StateStore.open(
        path, damaged_suffix=".damaged", on_failure=lambda error: None, may_salvage=may_salvage
    )
    await store.close()
    return loaded


async def written(path: Path, *statements: state.Statement) -> None:
    failed: list[HoldfastError] = []
    store, _ = StateStore.open(path, damaged_suffix=".damaged", on_failure=failed.append)
    store.write(list(statements))
    await store.close()
    assert not failed


def tables(path: Path) -> tuple[int, set[str]]:
    with contextlib.closing(sqlite3.connect(path)) as found:
        names = found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return found.execute("PRAGMA user_version").fetchone()[0], {name for (name,) in names}


def broken(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as found:
        found.execute(statement)


# --- tables -------------------------------------------------------------------------------------------


async def test_file_has_the_tables_of_its_level_whatever_way_it_came_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Build(monkeypatch)
    build.is_much_later()
    expected = {}
    for number in sorted(levels.LEVELS):
        fresh = tmp_path / f"fresh-{number}"
        state._connect(fresh, number)[0].close()
        expected[number] = tables(fresh)
    assert [schema for schema, _ in expected.values()] == [OLD_SCHEMA, NEW_SCHEMA, NEW_SCHEMA, NEW_SCHEMA + 1]
    assert "words_1" in expected[NEW + 2][1]
    for before, after in itertools.combinations(sorted(levels.LEVELS), 2):
        climbed = tmp_path / f"{before}-{after}"
        state._connect(climbed, before)[0].close()
        await written(climbed, *state.level_rows(after))
        assert tables(climbed) == expected[after], (before, after)
        # Applied again, as after a crash before the file said so.
        await written(climbed, *state.level_rows(after))
        assert (await opened(climbed)).level == after


async def test_new_file_of_a_broker_that_stands_alone_has_all_tables_and_that_of_a_node_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Build(monkeypatch).is_later()
    assert (await opened(tmp_path / "alone")).level == NEW
    assert tables(tmp_path / "alone")[0] == NEW_SCHEMA
    assert (await opened(tmp_path / "node", may_salvage=False)).level == levels.BASELINE
    assert tables(tmp_path / "node")[0] == state_schema.BASELINE_SCHEMA


# --- damage -------------------------------------------------------------------------------------------

DAMAGE = ["DELETE FROM level", "UPDATE level SET level = 0", "UPDATE level SET level = -7", "DROP TABLE level"]


@pytest.mark.parametrize("damage", [*DAMAGE, f"UPDATE level SET level = {1 << 40}"])
async def test_level_that_cannot_be_read_costs_no_cursor_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    Build(monkeypatch).is_later()
    file = tmp_path / "state.sqlite"
    await written(file, *state.cursor_rows(KEY, {0: Offset(7)}))
    broken(file, damage)
    loaded = await opened(file)
    assert loaded.problem is not None and (tmp_path / "state.sqlite.damaged").exists()
    assert (loaded.level, loaded.cursors) == (NEW, {KEY: {0: Offset(7)}})
    assert tables(file)[0] == NEW_SCHEMA
    again = await opened(file)
    assert (again.level, again.cursors, again.problem) == (NEW, loaded.cursors, None)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_node_with_peers_learns_the_level_anew_where_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    Build(monkeypatch).is_later()
    file = tmp_path / "state.sqlite"
    await opened(file)
    broken(file, damage)
    assert (await opened(file, may_salvage=False)).level == levels.BASELINE
    assert tables(file)[0] == state_schema.BASELINE_SCHEMA


async def test_level_is_saved_from_a_file_that_is_damaged_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Build(monkeypatch).is_much_later()
    file = tmp_path / "state.sqlite"
    state._connect(file, NEW)[0].close()
    broken(file, "INSERT INTO nodes (node, life, addresses) VALUES ('n1', '1', 'no JSON')")
    loaded = await opened(file)
    assert loaded.problem is not None
    assert loaded.level == (await opened(file)).level == NEW < levels.LEVEL
    assert tables(file)[0] == NEW_SCHEMA


# --- an older build -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", ["in order", "in a crash", "in a crash of the machine"])
async def test_older_build_changes_nothing_in_a_directory_that_is_not_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    build = Build(monkeypatch)
    build.is_later()
    nodes = Nodes(tmp_path / "later", count=1)
    await nodes.start()
    await nodes.backends["n1"].control.keep()
    if ended == "in order":
        await nodes.stop()
    shutil.copytree(nodes.root, tmp_path / "left")
    if ended != "in order":
        await nodes.stop()
    left = tmp_path / "left" / "n1"
    if ended == "in a crash of the machine":
        (left / "state.sqlite-shm").unlink()
    assert (left / "reserve").exists() and (left / "state.sqlite-wal").exists() == (ended != "in order")
    before = content(left)
    build.is_older()
    nodes = Nodes(tmp_path / "left", count=1)
    for _ in range(2):
        with pytest.raises(BuildTooOld, match=f"at level {NEW}, and this build .* understands {OLD}"):
            await nodes.start()
        after = content(left)
        # An index of the WAL that every reader makes anew.
        assert after.pop("state.sqlite-shm", None) is None or "state.sqlite-shm" in before
        assert after == {name: each for name, each in before.items() if name != "state.sqlite-shm"}
    build.is_later()
    await nodes.start()
    assert nodes.backends["n1"].state.level.number == NEW
    await nodes.stop()


async def test_state_with_tables_of_another_build_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"
    await opened(file)
    broken(file, f"PRAGMA user_version = {OLD_SCHEMA + 1}")
    with pytest.raises(DataDirectoryError, match="start the version of holdfast that wrote it"):
        state_versions.check_understood(file)


# --- another node's file ------------------------------------------------------------------------------


class Giver:
    """A node that gives its state, or an error of its own."""

    def __init__(self, gives: Callable[[], bytes]) -> None:
        self._gives = gives

    def is_up(self, node: str) -> bool:
        return True

    async def request(self, node: str, method: int, body: bytes, timeout_s: float, leads: object = None) -> memoryview:
        given = self._gives()
        return memoryview(encode(SnapshotReply("copy", len(given), given)))


async def fetched(directory: Path, gives: Callable[[], bytes]) -> Path:
    incoming, _ = await snapshots.fetch(Giver(gives), "n2", directory, lambda done, size: None)
    return incoming


async def test_state_of_a_newer_build_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build(monkeypatch)
    build.is_later()
    await opened(tmp_path / "theirs")
    assert (await fetched(tmp_path, (tmp_path / "theirs").read_bytes)).exists()
    build.is_older()
    with pytest.raises(BuildTooOld):
        await fetched(tmp_path, (tmp_path / "theirs").read_bytes)


async def test_state_without_a_level_is_asked_for_again(tmp_path: Path) -> None:
    await opened(tmp_path / "theirs")
    broken(tmp_path / "theirs", "DELETE FROM level")
    with pytest.raises(Unavailable, match="the state that was sent is damaged"):
        await fetched(tmp_path, (tmp_path / "theirs").read_bytes)


@pytest.mark.parametrize("theirs", [DataDirectoryError("no room here"), BuildTooOld("not for me"), Unavailable("busy")])
async def test_trouble_of_whoever_gives_its_state_does_not_end_this_node(tmp_path: Path, theirs: HoldfastError) -> None:
    def gives() -> bytes:
        raise theirs

    with pytest.raises(Unavailable, match="n2 did not give its state"):
        await fetched(tmp_path, gives)
