"""`holdfast spill`: what is kept can be seen, checked, taken out and stored without the broker that kept it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from testkit.postgres import Server
from testkit.wait import until
from typer.testing import CliRunner

from holdfast.backends.spill import files, inspecting, requeueing
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from holdfast.cli.app import app
from holdfast.model.errors import ConfigError, DataDirectoryError
from tests.postgres.stores import query
from tests.spill.conftest import Open
from tests.spill.stores import Spilling


def run(*arguments: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["spill", *arguments])
    if isinstance(done.exception, Exception) and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == exit_code, done.output
    return done.stdout


async def replayed(directory: Path, *options: str) -> Any:
    """In a process of its own, for the broker of a test logs as it likes; what it prints, or why it failed."""
    command = [sys.executable, "-m", "holdfast.cli", "spill", "replay", str(directory), "--json", *options]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, said = await process.communicate()
    if not printed:
        assert process.returncode not in (0, None)
        return said.decode()
    done = json.loads(printed)
    assert process.returncode == (1 if done["set_aside"] else 0), "whoever runs this in a script is told"
    return done


async def advice(*arguments: str) -> str:
    """What a command that found something says on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli", "spill", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    return said.decode()


def told(*arguments: str, exit_code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", exit_code=exit_code))


async def filled(opened: Open, server: Server) -> Spilling:
    store = await opened(server.url, events_per_file=2)
    await store.create("orders")
    server.kill()
    # Or the first file would be completed because the store seemed to be there again for a moment.
    await until(lambda: not store.database.database.is_up)
    for number in range(5):
        await store.push(b'{"id": %d}' % number, topic="orders")
    return store


async def test_kept_messages_are_shown_checked_and_stored_without_their_broker(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(opened, server)
    directory = str(store.directory)
    shown = told("status", directory)
    assert (shown["lines"], shown["queues"], shown["failed"], shown["bad"]) == (5, {"orders": 5}, 0, 0)
    assert shown["broker"] and [file["is_complete"] for file in shown["files"]] == [True, True, False]
    assert "5 messages wait, a broker runs here" in run("status", directory)
    monkeypatch.setenv("HOLDFAST_STORE", server.url)
    refusal = await replayed(store.directory)
    assert "in use by another broker" in refusal and "stop it first" in refusal and "--spill-dir" not in refusal
    await store.stop()
    assert "no broker runs here" in run("status", directory)
    lines = [json.loads(line) for line in run("export", directory, "--queue", "orders").splitlines()]
    assert [line["payload"]["id"] for line in lines] == [0, 1, 2, 3, 4]
    assert run("export", directory, "--queue", "other") == ""

    damaged = files.listed(store.directory)[0].path
    damaged.write_bytes(damaged.read_bytes().replace(b'{"id": 1}', b'{"id": 9}'))
    assert "line 2: its sum does not match" in run("verify", directory, exit_code=1)
    assert f"1 line damaged: see holdfast spill verify {directory}\n" in run("status", directory)
    assert told("verify", directory, exit_code=1)["bad"] == 1

    assert "not everything could be stored" in await replayed(store.directory, "--timeout", "0.5")
    await server.start()
    done = {"stored": 4, "already_stored": 0, "set_aside": 1, "failed": 1}
    assert await replayed(store.directory) == done
    assert await replayed(store.directory) == {**done, "stored": 0, "set_aside": 0}, "once"
    rows = await query(server.url, "SELECT payload::jsonb ->> 'id' FROM holdfast.queue_messages ORDER BY \"offset\"")
    assert [number for (number,) in rows] == ["0", "2", "3", "4"]
    assert json.loads(run("export", directory, "--failed"))["line"] == 2
    said = await advice("replay", directory, "--failed")
    assert f"`holdfast spill export {directory} --failed`" in said and "Damaged lines are never stored" in said
    assert "spill replay" not in said, "it was just done, and ended like this"


async def test_export_goes_on_while_the_broker_completes_and_deletes_files(opened: Open, server: Server) -> None:
    store = await filled(opened, server)
    lines = inspecting.exported(store.directory, None)
    first = next(lines)
    written, *_ = [file for file in store.spilled_files() if not file.is_complete]
    written.path.rename(files.completed(written).path)
    store.spilled_files()[1].path.unlink()
    numbers = [json.loads(line)["payload"]["id"] for line in (first, *lines)]
    files.completed(written).path.rename(written.path)
    assert numbers == [0, 1, 4]


async def test_messages_that_failed_are_stored_when_asked(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(opened, server)
    await store.stop()
    monkeypatch.setenv("HOLDFAST_STORE", server.url)
    monkeypatch.setenv("HOLDFAST_SPILL_RETRY_INTERVAL_S", "0.01")
    await server.start()
    await query(server.url, "DELETE FROM holdfast.topics")
    monkeypatch.setenv("HOLDFAST_AUTO_CREATE", "false")
    refused = await replayed(store.directory)
    assert (refused["stored"], refused["set_aside"], refused["failed"]) == (0, 5, 5)
    assert f"5 lines in failed/: see holdfast spill export {store.directory} --failed\n" in run(
        "status", str(store.directory)
    )
    monkeypatch.setenv("HOLDFAST_AUTO_CREATE", "true")
    stored = await replayed(store.directory, "--failed")
    assert (stored["stored"], stored["failed"]) == (5, 0)


async def test_messages_that_failed_are_not_stored_beside_the_file_they_are_still_in(
    opened: Open, server: Server
) -> None:
    """A broker noted that they failed, and was killed before they counted as done."""
    store = await filled(opened, server)
    await store.stop()
    first = store.spilled_files()[0]
    directory = SpillDirectory.open(store.directory)
    [line] = files.lines(first.path, 0, 1)
    directory.note_failed(first, [BadLine(0, line, "it was refused")])
    assert requeueing.requeue(directory) == 0
    first.path.unlink()
    assert requeueing.requeue(directory) == 1
    directory.close()


async def test_kept_messages_are_found_when_the_data_directory_is_named(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To say of it that nothing waits would invite somebody to delete it."""
    store = await filled(opened, server)
    data = store.directory.parent
    assert store.directory == data / "spill"
    before = {path.relative_to(data) for path in data.iterdir()}
    assert told("status", str(data)) == told("status", str(store.directory))
    assert "5 messages wait, a broker runs here" in run("status", str(data))
    assert "5 messages in 3 files can be stored" in run("verify", str(data))
    assert len(run("export", str(data)).splitlines()) == 5
    monkeypatch.setenv("HOLDFAST_STORE", server.url)
    assert "in use by another broker" in await replayed(data)
    await store.stop()
    await server.start()
    assert (await replayed(data))["stored"] == 5
    assert {path.relative_to(data) for path in data.iterdir()} == before


@pytest.mark.parametrize("command", ["status", "verify", "export", "replay"])
def test_directory_that_is_no_spill_is_refused_and_left_as_it_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://nobody@127.0.0.1:1/none")
    (tmp_path / "holdfast.json").write_text("{}")
    with pytest.raises(DataDirectoryError, match=r"is not a spill.*Name the directory of the spill"):
        run(command, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["holdfast.json"]


def test_spill_is_found_below_a_data_directory_in_which_somebody_left_a_lock(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "spill"):
        SpillDirectory.open(directory).close()
    assert told("status", str(tmp_path))["directory"] == str(tmp_path / "spill")


def test_missing_directory_and_missing_store_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    with pytest.raises(DataDirectoryError, match="no spill"):
        run("status", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="HOLDFAST_STORE"):
        run("replay", str(tmp_path))
