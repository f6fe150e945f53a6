"""Backups of a cluster that is written to and loses a node, and commands that are killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
from testkit.commands import Running, holdfast_process
from testkit.sizes import dice
from testkit.wait import until

from holdfast.backup import creating
from holdfast.backup.format import load
from holdfast.model.limits import MIB
from holdfast.testing import LocalCluster
from tests.backup.brokers import create, everything, findings, restore, server_of, serving

KILLS_TRIED = 3
# The tables of a state that a restored broker begins with; those of nodes, members and leaders are for others to fill.
FILLED = {"topics", "cursors", "callbacks", "applied", "level"}


async def test_backup_under_load_survives_the_node_it_reads_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "_FETCH_BYTES", MIB)
    cluster = LocalCluster(nodes=3)
    acknowledged: list[bytes] = []

    async def publish(name: int) -> None:
        async with cluster.connect() as broker:
            for number in itertools.count():
                value = f"{name} {number}".encode()
                await broker.publish("orders", value, key=str(name))
                acknowledged.append(value)

    async def commit() -> None:
        async with cluster.connect() as broker:
            for number in itertools.count():
                transaction = broker.transaction("nightly", number)
                await transaction.stage("totals", [f"{number} {place}" for place in range(6)])
                await transaction.commit()
                await asyncio.sleep(0.2)

    async def follow() -> None:
        async with cluster.connect() as broker, broker.subscribe("orders", "billing", start="earliest") as found:
            async for _ in found:
                pass

    async with AsyncExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, cluster)
        broker = await stack.enter_async_context(cluster.connect())
        await broker.create_topic("orders", partitions=3)
        await broker.create_topic("totals", partitions=3)
        large = [os.urandom(1000) for _ in range(1000)]
        for _ in range(6):
            await broker.publish_many("large", large, partition=0, retry_safe=True)
        work = [asyncio.create_task(each) for each in (publish(0), publish(1), commit(), follow())]
        await until(lambda: len(acknowledged) > 100)
        killed: list[str] = []
        before = list(acknowledged)

        def kill(*, messages: int, of: int, fetched_bytes: int) -> None:
            # The first address is the one that is asked; a part of the answers has come.
            if fetched_bytes and messages < of and not killed:
                killed.append("n1")
                cluster.kill("n1")

        made = await create(",".join(cluster.http_addresses), tmp_path / "backup", on_progress=kill)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        assert killed == ["n1"] and findings(tmp_path / "backup") == []
        expected = await everything(broker, made)
    await restore(tmp_path / "backup", tmp_path / "restored")
    names_nobody_else(tmp_path / "restored" / "state.sqlite")
    async with serving(tmp_path / "restored") as again:
        assert [each.node for each in (await again.cluster()).nodes] == ["n1"], "it waits for no other"
        assert await everything(again, made) == expected
        orders = [value for (topic, _), each in expected.items() if topic == "orders" for *_, value, _, _ in each]
        assert set(before) <= set(orders), "all that was acknowledged before it began"
        assert len(orders) == len(set(orders))
        assert made.is_between_transactions
        (writer,) = await again.writers()
        totals = sorted(value for (topic, _), each in expected.items() if topic == "totals" for *_, value, _, _ in each)
        numbers = range((writer.last_number or 0) + 1)
        assert totals == sorted(f"{number} {place}".encode() for number in numbers for place in range(6))
        (cursor,) = await again.cursors("orders")
        assert all(each.offset <= each.end_offset for each in cursor.partitions) and cursor.name == "billing"


def names_nobody_else(state: Path) -> None:
    """Not the nodes of the cluster that was backed up: nobody may wait for their votes, or let them in."""
    with closing(sqlite3.connect(state)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert set(tables) > FILLED
        for table in tables:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            assert table in FILLED or not rows, f"{table} came along: {rows}"
            assert not re.search(r"\bn[23]\b", str(rows)), rows


async def test_commands_that_are_killed_at_any_moment_are_gone_on_with(tmp_path: Path) -> None:
    rolled = dice("backup kills")
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    async with serving(tmp_path / "served") as broker:
        large = [os.urandom(1000) for _ in range(1000)]
        await broker.create_topic("large", partitions=4)
        for number in range(12):
            await broker.publish_many("large", large, partition=number % 4)
        arguments = ("backup", "create", str(backup), "--server", server_of(broker))
        killed = [
            await asyncio.to_thread(killed_behind, arguments, backup, step, rolled.random())
            for step in ("plan.json", "topics/*/*/*.part", "topics/*/*/*.batches")
        ]
        assert any(killed), "a command was killed in the middle"
        done = await asyncio.to_thread(holdfast_process, *arguments, "--json")
        assert done.code == 0 or load(backup) is not None, done
        assert findings(backup) == []
        made = load(backup)
        assert made is not None and made.messages == 12_000
        expected = await everything(broker, made)
    arguments = ("backup", "restore", str(backup), "--data", str(restored))
    for _ in range(KILLS_TRIED):
        await asyncio.to_thread(shutil.rmtree, restored, ignore_errors=True)  # it was quicker
        if await asyncio.to_thread(killed_behind, arguments, restored, "restoring", rolled.random()):
            break
    assert (restored / "restoring").exists(), "the command was killed in the middle"
    told = await asyncio.to_thread(holdfast_process, *arguments, "--json")
    assert told.code == 0, told
    assert told.json["messages"] == 12_000
    async with serving(restored) as again:
        assert await everything(again, made) == expected


def killed_behind(arguments: tuple[str, ...], directory: Path, step: str, chance: float) -> bool:
    """Start the command and kill it within milliseconds of such a file; whether something was left to do then."""
    if (directory / "manifest.json").exists():
        return False
    before = seen(directory, step)
    with Running(*arguments) as command:
        while command.process.poll() is None and not seen(directory, step) - before:
            time.sleep(0.0005)
        time.sleep(0.005 * chance)
    return any((directory / name).exists() for name in ("plan.json", "restoring"))


def seen(directory: Path, step: str) -> set[tuple[Path, int]]:
    found = set()
    for path in directory.glob(step):
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_ino))
    return found
