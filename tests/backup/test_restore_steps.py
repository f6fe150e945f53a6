"""A restore that is cut off behind any of its steps is begun again and is whole, as the broker that was asked for."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.backup import restoring
from holdfast.model.errors import DataDirectoryError
from holdfast.node.node import now_ms
from holdfast.storage.directory import LOCK, RESTORING, DataDirectory, read_identity
from tests.backup.brokers import create, serving

NODE = "n7"
# What changes names or makes files; bytes of SQLite are its own affair.
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "sqlite3.connect"}

_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Python's own hooks cannot be taken away again; this one does nothing unless somebody watches."""
    if _watchers and event in CHANGES:
        _watchers[-1](event, arguments)


sys.addaudithook(_on_audit)


@contextmanager
def at_each_step(directory: Path, look: Callable[[Path], None]) -> Iterator[None]:
    """Call `look` before each change in a directory, with what is about to be changed."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_read = event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        path = Path(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes | Path) else directory
        if is_read or not (path == directory or directory in path.parents) or not directory.is_dir():
            return
        _watchers.append(lambda *_: None)
        try:
            look(path)
        finally:
            _watchers.pop()

    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")

    async def make() -> None:
        async with serving(root / "served") as client:
            await client.publish_many("orders", [b"a", b"b", b"c"])
            await client.seek("orders", "billing", 1)
            await create(client, root / "backup")

    asyncio.run(make())
    return root / "backup"


def restored(backup: Path, data: Path) -> None:
    asyncio.run(restoring.restore(backup, data, node=NODE, now_ms=now_ms))


def content(data: Path) -> dict[str, Any]:
    """All that has to be the same after every restore: files by name, batches by byte, and rows."""
    with closing(sqlite3.connect(data / "state.sqlite")) as connection:
        rows = {
            "cursors": connection.execute("SELECT * FROM cursors").fetchall(),
            "topics": connection.execute("SELECT name, config, created_ms FROM topics").fetchall(),
            "applied": connection.execute("SELECT * FROM applied").fetchall(),
        }
    files = sorted(str(path.relative_to(data)) for path in data.rglob("*") if not path.name.startswith("state.sqlite"))
    batches = {path.name: path.read_bytes() for path in (data / "topics" / "orders" / "0").iterdir()}
    assert rows["cursors"] and rows["topics"] and any(batches.values())
    return {"rows": rows, "files": files, "batches": batches}


@pytest.mark.parametrize("over", ["nothing", "one that was cut off"])
def test_restore_cut_off_behind_any_step_is_begun_again_and_whole(backup: Path, tmp_path: Path, over: str) -> None:
    data, copies = tmp_path / "data", tmp_path / "copies"
    began_ms = now_ms()
    restored(backup, tmp_path / "whole")
    expected = content(tmp_path / "whole")
    if over == "one that was cut off":
        shutil.copytree(tmp_path / "whole", data)
        (data / "holdfast.json").write_bytes(b'{"format":2,"node":"another","created_ms":1}')
        (data / RESTORING).write_bytes(b"")
    seen: set[Any] = set()

    def keep(path: Path) -> None:
        if path.name != LOCK and path != data:
            with (data / LOCK).open("rb") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else comes in, at no step
        there = tuple(sorted((str(each), each.stat().st_size) for each in data.rglob("*") if each.name != LOCK))
        # Where there was nothing, the steps behind the mark are those that the other case has, too.
        if there not in seen and (over != "nothing" or len(seen) < 3):
            seen.add(there)
            shutil.copytree(data, copies / str(len(seen)))

    with at_each_step(data, keep):
        restored(backup, data)
    states = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(states) >= (3 if over == "nothing" else 25)
    for state in states:
        is_marked = (state / RESTORING).exists()
        assert is_marked or not [path for path in state.iterdir() if path.name != LOCK], "nothing stands unmarked"
        if is_marked:
            with pytest.raises(DataDirectoryError, match="cut off"):
                DataDirectory.open(state, node=NODE, now_ms=now_ms())
        restored(backup, state)
        identity = read_identity(state)
        assert identity is not None and identity.node == NODE and identity.created_ms >= began_ms
        assert content(state) == expected


async def test_directory_with_nothing_but_the_mark_becomes_the_broker_that_was_asked_for(
    backup: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / RESTORING).write_bytes(b"")
    made = await restoring.restore(backup, tmp_path / "data", node=NODE, now_ms=now_ms)
    assert made.node == NODE
    identity = read_identity(tmp_path / "data")
    assert identity is not None and identity.node == NODE and identity.created_ms > 0
    async with serving(tmp_path / "data", "--node", NODE) as broker:
        assert [each.node for each in (await broker.cluster()).nodes] == [NODE]
        assert (await broker.describe("orders")).messages == 3


def test_second_restore_is_told_that_one_is_under_way(backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused: list[str] = []

    def again(step: str, done: int, total: int) -> None:
        if step == "restoring" and not refused:
            with ThreadPoolExecutor(1) as pool, pytest.raises(DataDirectoryError, match="in use") as told:
                pool.submit(restored, backup, data).result()
            refused.append(told.value.message)

    asyncio.run(restoring.restore(backup, data, node=NODE, now_ms=now_ms, on_progress=again))
    assert refused and content(data)
