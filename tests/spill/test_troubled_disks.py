"""A disk that loses a bit, does not give what it has for a moment, or is full for one: nothing goes without a trace."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from testkit.postgres import Server
from testkit.wait import until

from holdfast.backends.spill import files, inspecting, topic_memory
from holdfast.storage import durable
from tests.spill.conftest import Open


async def test_message_whose_line_break_is_damaged_is_kept_as_failed(opened: Open, server: Server) -> None:
    """It is the last of its file: nothing behind it says where it ends."""
    store = await opened(server.url)
    await store.create()
    server.kill()
    for number in range(3):
        await store.push(b'{"n":%d}' % number)
    await store.stop()
    damaged = store.spilled_files()[-1].path
    lines = damaged.read_bytes()
    damaged.write_bytes(lines[:-1] + b"\x0b")
    assert inspecting.examine(store.directory).bad == 1
    await server.start()
    again = await opened(server.url)
    await again.drained()
    assert await again.values() == [b'{"n":0}', b'{"n":1}']
    assert again.spill.stats.failed_events == 1
    [failed] = files.failed_files(again.directory)
    [noted] = files.failed_lines(failed)
    assert noted.event is not None and '"payload":{"n":2}' in noted.event
    assert noted.reason == "the file ends within it"


async def test_disk_that_does_not_give_what_it_has_at_the_start_is_asked_again(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(server.url)
    await store.create()
    server.kill()
    for number in range(3):
        await store.push(b"%d" % number)
    await store.stop()
    await server.start()
    read = files.read_piece

    def failing(path: Path, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(files, "read_piece", failing)
    with structlog.testing.capture_logs() as logs:
        again = await opened(server.url, deadline_ms_max=60_000)
        await until(lambda: any(line["event"] == "spill_replay_failed" for line in logs))
        async with asyncio.timeout(30):
            assert (await again.push(b"3"))[0].buffered, "it is not before what cannot be read"
    monkeypatch.setattr(files, "read_piece", read)
    await again.drained()
    assert await again.values() == [b"0", b"1", b"2", b"3"]
    assert not (await again.push(b"4"))[0].buffered


async def test_topics_are_remembered_though_the_disk_was_full_for_a_moment(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    replace_file, failures = durable.replace_file, 0

    def full_once(*given: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(*given)

    monkeypatch.setattr(topic_memory, "replace_file", full_once)
    await store.create("wide", partitions=4)
    await until(lambda: (store.directory / "topics.json").exists())
    assert json.loads((store.directory / "topics.json").read_bytes()) == {"wide": 4}
