"""An update takes nothing from a backup: what the cluster has lost since is kept, and can be restored."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from holdfast.backup import creating, keeping, verifying
from holdfast.backup.format import Manifest, PartitionBackup, StoredFile, TopicBackup
from holdfast.cli.app import app
from holdfast.client import Client
from holdfast.client.api import Api
from holdfast.model.errors import BackupDamaged, BackupUnusable, TopicNotFound
from holdfast.node.node import now_ms
from tests.backup.brokers import EVENTS, create, fill, findings, restore, server_of, serving


def of(manifest: Manifest, name: str) -> TopicBackup:
    (found,) = (topic for topic in manifest.topics if topic.topic == name)
    return found


def files(backup: Path, topic: str) -> list[Path]:
    return sorted(backup.glob(f"topics/{topic}@*/*/*.batches"))


async def test_update_fetches_only_what_is_new(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    first = await create(broker, tmp_path / "backup")
    with pytest.raises(BackupUnusable, match="--update"):
        await create(broker, tmp_path / "backup")
    await broker.publish_many("events", [b"more"] * 10)
    fetched: list[int] = []
    second = await create(
        broker,
        tmp_path / "backup",
        update=True,
        on_progress=lambda messages, of, fetched_bytes: fetched.append(fetched_bytes),
    )
    assert second.messages == first.messages + 10 and max(fetched) < 400
    assert findings(tmp_path / "backup") == []
    with pytest.raises(BackupUnusable, match="is a backup of all topics"):
        await create(broker, tmp_path / "backup", update=True, topics=["orders"])


async def test_topic_that_was_deleted_stays_in_the_backup_and_is_restored(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    await create(broker, tmp_path / "backup")
    await broker.delete_topic("orders")
    for _ in range(2):
        made = await create(broker, tmp_path / "backup", update=True)
        assert [topic.topic for topic in made.kept] == ["orders"] and not made.left_out and not made.aside
        assert {each.name for each in made.cursors} == {"billing", "audit"} and findings(tmp_path / "backup") == []
    told = await restore(tmp_path / "backup", tmp_path / "restored")
    assert told.kept == ["orders"]
    async with serving(tmp_path / "restored") as again:
        assert (await again.describe("orders")).messages == EVENTS
        assert [each.name for each in await again.cursors("orders")] == ["billing"]
    pruned = await create(broker, tmp_path / "backup", update=True, prune=True)
    assert {topic.topic for topic in pruned.topics} == {"events", "empty"} and pruned.left_out == ["orders"]
    assert files(tmp_path / "backup", "orders") == [] and findings(tmp_path / "backup") == []


@contextlib.contextmanager
def cut_off() -> Iterator[None]:
    """Whoever has a plan and begins to fetch is stopped."""

    async def fail(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(creating._Creation, "run", fail)
        yield


async def test_update_does_not_prune_because_one_that_was_cut_off_would_have(broker: Client, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await fill(broker)
    with cut_off(), pytest.raises(KeyboardInterrupt):
        await create(broker, backup, update=True, prune=True)
    await create(broker, backup)  # there was nothing yet that could have been given up
    await broker.delete_topic("orders")
    with cut_off(), pytest.raises(KeyboardInterrupt):
        await create(broker, backup, update=True, prune=True)
    with pytest.raises(BackupUnusable, match=r"by --update --prune, or delete .*plan\.json to keep all"):
        await create(broker, backup, update=True)
    (backup / "plan.json").unlink()
    made = await create(broker, backup, update=True)
    assert [topic.topic for topic in made.kept] == ["orders"] and findings(backup) == []


async def test_backup_that_is_as_of_days_ago_says_so(broker: Client, tmp_path: Path) -> None:
    await broker.publish("orders", "of then")
    with cut_off(), pytest.raises(KeyboardInterrupt):
        await create(broker, tmp_path / "backup", clock_ms=lambda: now_ms() - 3 * 86_400_000)
    await broker.publish("orders", "of now")
    arguments = ["backup", "create", str(tmp_path / "backup"), "--server", server_of(broker)]
    told = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert told.exit_code == 0 and "1 topic, 1 message," in told.stdout
    assert re.search(r"begun 3d( \d+s)? ago, and has what the cluster held then; --update", told.stderr)
    told = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--update"])
    assert told.exit_code == 0 and "1 topic, 2 messages," in told.stdout and told.stderr == ""


async def test_update_whose_plan_is_damaged_takes_nothing_from_the_backup(broker: Client, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await fill(broker)
    await create(broker, backup)
    (backup / "plan.json").write_bytes(b'{"format":1,"sha')
    told = await asyncio.to_thread(CliRunner().invoke, app, ["backup", "verify", str(backup)])
    assert told.exit_code == 0 and "delete the file before the next update" in told.stdout, told.output
    assert (await restore(backup, tmp_path / "restored")).messages == 2 * EVENTS
    with pytest.raises(BackupDamaged, match=r"plan\.json is damaged.*delete the file and update again"):
        await create(broker, backup, update=True)
    (backup / "manifest.json").unlink()
    with pytest.raises(BackupDamaged, match=r"plan\.json is damaged.*name another directory"):
        await create(broker, backup)


async def test_topic_that_was_made_anew_does_not_take_the_place_of_the_old_one(broker: Client, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await fill(broker)
    await create(broker, backup)
    await broker.delete_topic("events")
    await broker.publish_many("events", [b"of another topic of that name"] * 60)
    for _ in range(2):
        made = await create(broker, backup, update=True)
        (old,) = made.aside
        assert (old.topic, old.messages) == ("events", EVENTS) and of(made, "events").messages == 60
        assert findings(backup) == [] and len(files(backup, "events")) == 2
    assert (await restore(backup, tmp_path / "plain")).aside_left == 1
    told = await restore(backup, tmp_path / "restored", with_aside=True)
    assert told.aside == ["events.aside-1"] and told.aside_left == 0
    async with serving(tmp_path / "restored") as again:
        values = [each.value for each in await again.read("events.aside-1", 0)]
        assert values == [b"%d" % number for number in range(EVENTS)]
        assert (await again.describe("events")).messages == 60
    (backup / old.partitions[0].files[0].file).write_bytes(b"")
    (found,) = findings(backup)
    assert old.partitions[0].files[0].file in found, "what is set aside is verified, too"
    assert (await create(broker, backup, update=True, prune=True)).aside == [] and findings(backup) == []


def test_partition_that_retention_has_passed_is_set_aside_alone() -> None:
    def partition(number: int, first: int, end: int) -> PartitionBackup:
        file = StoredFile(file=f"{number}/{first}", first=first, end=end, bytes=1, sha256="")
        return PartitionBackup(partition=number, first=first, end=end, files=[file])

    def topic(*partitions: PartitionBackup) -> TopicBackup:
        return TopicBackup(
            topic="orders", created_ms=1, retention_ms=None, retention_bytes=None, partitions=list(partitions)
        )

    old = topic(partition(0, 0, 9), partition(1, 0, 9))
    before = Manifest(cluster="c", version="1", begun_ms=1, topics=[old], cursors=[], writers=[])
    grown = msgspec.structs.replace(partition(1, 0, 9), end=12, files=old.partitions[1].files)
    planned = msgspec.structs.replace(before, revision=2)
    made = keeping.completed(planned, [topic(partition(0, 20, 30), grown)], before, 5)
    (aside,) = made.aside
    assert [(each.first, each.end, len(each.files)) for each in aside.partitions] == [(0, 9, 1), (0, 0, 0)]


@pytest.fixture
def events_go_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is deleted, and made anew, when it is about to be fetched."""
    stored = Api.stored

    async def deleted_first(api: Api, topic: str, *where: Any) -> Any:
        if topic == "events":
            await api.delete_topic("events")
            await api.create_topic("events", partitions=1, retention_ms=None, retention_bytes=None)
        return await stored(api, topic, *where)

    monkeypatch.setattr(Api, "stored", deleted_first)


@pytest.mark.usefixtures("events_go_meanwhile")
async def test_topic_that_is_deleted_meanwhile_is_left_out_and_named(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    made = await create(broker, tmp_path / "backup")
    assert [topic.topic for topic in made.topics] == ["empty", "orders"] and made.left_out == ["events"]
    assert [cursor.name for cursor in made.cursors] == ["billing"]
    assert findings(tmp_path / "backup") == []


async def test_topic_that_is_deleted_while_it_is_updated_is_kept(
    broker: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await fill(broker)
    await create(broker, tmp_path / "backup")
    await broker.publish("events", "one more")
    request.getfixturevalue("events_go_meanwhile")
    made = await create(broker, tmp_path / "backup", update=True)
    assert [topic.topic for topic in made.kept] == ["events"] and of(made, "events").messages == EVENTS
    assert findings(tmp_path / "backup") == []


@pytest.mark.usefixtures("events_go_meanwhile")
async def test_topic_that_was_named_and_goes_is_no_success(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    arguments = ["backup", "create", str(tmp_path / "backup"), "--server", server_of(broker)]
    named = ["--topic", "events", "--topic", "orders"]
    told = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *named])
    assert told.exit_code == 1 and "deleted while it was backed up: events" in told.output, told.output
    assert findings(tmp_path / "backup") == [], "the other one is there"
    await broker.delete_topic("events")
    with pytest.raises(TopicNotFound, match="there is no topic events"):
        await create(broker, tmp_path / "backup", topics=["events", "orders"], update=True)
    assert (await create(broker, tmp_path / "backup", update=True)).chosen == ["events", "orders"]


async def test_update_under_a_clock_that_was_set_back_is_gone_on_with(broker: Client, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await fill(broker)
    await create(broker, backup, clock_ms=lambda: 2_000_000)
    await broker.publish_many("events", [b"more"] * 10)
    with cut_off(), pytest.raises(KeyboardInterrupt):
        await create(broker, backup, update=True, clock_ms=lambda: 1_000_000)
    assert verifying.verify(backup).has_unfinished_update
    with pytest.raises(BackupUnusable, match="without --prune"):
        await create(broker, backup, update=True, prune=True)
    made = await create(broker, backup, update=True, clock_ms=lambda: 1_000_000)
    assert of(made, "events").messages == EVENTS + 10 and made.revision == 2
    assert not verifying.verify(backup).has_unfinished_update
