"""Topics that cannot be made because there are too many: what was acknowledged for them comes back, in order, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast.backends.spill import files, held
from tests.spill.conftest import Open
from tests.spill.stores import Spilling, until
from tests.support.postgres import Server

LIMITS = ("holdfast.broker.broker.TOPICS_MAX", "holdfast.backends.spill.new_topics.TOPICS_MAX")


async def kept_for_a_topic_too_many(opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch) -> Spilling:
    """While the store was away others have made as many topics as there may be."""
    store = await opened(server.url)
    await store.create()
    await store.create("old")
    server.kill()
    for number in range(5):
        await store.push(b"%d" % number, topic="new")
        await store.push(b"%d" % number)
    for limit in LIMITS:
        monkeypatch.setattr(limit, 2)
    await server.start()
    await store.drained()
    assert await store.values() == [b"%d" % number for number in range(5)], "others go on"
    assert store.spill.stats.failed_events == 5
    return store


async def all_is_back(store: Spilling) -> None:
    spill = store.spill
    await until(lambda: spill.waiting.is_known and not spill.waiting.held and not spill.stats.failed_events)
    await store.drained()


async def test_messages_of_a_topic_too_many_are_stored_in_order_once_there_is_room(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with structlog.testing.capture_logs() as logs:
        store = await kept_for_a_topic_too_many(opened, server, monkeypatch)
        told = next(line for line in logs if line["event"] == "spill_topic_refused")
        assert told["topic"] == "new" and "holdfast topics delete" in told["hint"]
        with monkeypatch.context() as patched:
            # Somebody makes room, and those who publish are faster than the spill.
            patched.setattr(store.spill.replayer._held, "_not_before_s", float("inf"))
            await store.broker.delete_topic("old")
            assert (await store.push(b"5", topic="new"))[0].buffered, "it queues behind the others"
            await until(lambda: store.spill.stats.failed_events == 6)
        await all_is_back(store)
    assert await store.values("new") == [b"%d" % number for number in range(6)]
    assert not files.failed_files(store.directory)
    assert not (await store.push(b"6", topic="new"))[0].buffered


async def test_messages_of_a_topic_too_many_outlive_a_restart_and_are_still_not_overtaken(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await kept_for_a_topic_too_many(opened, server, monkeypatch)
    await store.stop()
    for limit in LIMITS:
        monkeypatch.setattr(limit, 10)
    again = await opened(server.url)
    await again.push(b"5", topic="new")
    await all_is_back(again)
    assert await again.values("new") == [b"%d" % number for number in range(6)]


async def test_crash_while_messages_come_back_stores_each_once(
    opened: Open, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps: they are in `failed`, on their way, or back, and never in two of these places."""
    store = await kept_for_a_topic_too_many(opened, server, monkeypatch)
    await store.stop()
    for limit in LIMITS:
        monkeypatch.setattr(limit, 10)
    states: list[Path] = []

    def crashing(real: Any) -> Any:
        def run(*given: Any) -> Any:
            done = real(*given)
            states.append(tmp_path / f"crash {len(states)}")
            shutil.copytree(store.directory, states[-1])
            return done

        return run

    for step in ("replace_file", "sync_directory"):
        monkeypatch.setattr(held, step, crashing(getattr(held, step)))
    again = await opened(server.url)
    await all_is_back(again)
    monkeypatch.undo()
    assert await again.values("new") == [b"%d" % number for number in range(5)]
    assert len(states) == 5
    for state in states:
        held.put_back_ready(state)
        found = sum(len(files.failed_lines(path)) for path in files.failed_files(state))
        assert found + sum(file.path.read_bytes().count(b"\n") for file in files.listed(state)) == 5
