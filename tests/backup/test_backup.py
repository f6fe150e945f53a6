"""A backup has everything and nothing else, says what is damaged in it, and a restored broker is the one it was."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from testkit.commands import holdfast, holdfast_process
from testkit.inprocess import Nodes
from testkit.mounts import MIB, small_disk
from testkit.wait import until

from holdfast.backup import chunks, keeping, planning
from holdfast.backup import format as backup_format
from holdfast.backup.format import Manifest
from holdfast.client import Client
from holdfast.client.api import Api
from holdfast.client.connection import Request
from holdfast.model.cluster import ClusterDescription
from holdfast.model.errors import BackupDamaged, BackupUnusable, DiskFull, NotSupported, RemoteError
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.topics import CursorDescription, CursorPosition
from holdfast.model.transactions import CommitResult, Contents
from holdfast.storage import directory, durable
from tests.backup.brokers import (
    EVENTS,
    create,
    everything,
    fill,
    findings,
    restore,
    server_of,
    serving,
)
from tests.callbacks.receivers import DumbReceiver


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def test_restored_broker_serves_the_same_messages_offsets_ids_and_cursors(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    made = await create(broker, tmp_path / "backup")
    assert findings(tmp_path / "backup") == []
    assert made.messages == 2 * EVENTS and made.is_between_transactions
    await broker.publish("orders", "later", id="later")
    told = await restore(tmp_path / "backup", tmp_path / "restored")
    assert told.messages == 2 * EVENTS and told.cluster != told.backup_of
    async with serving(tmp_path / "restored") as again:
        assert await everything(again, made) == await everything(broker, made)
        described = await again.describe("orders")
        assert sum(each.end_offset for each in described.partitions) == EVENTS, "and nothing that came later"
        assert described.retention_ms == 86_400_000
        assert described.created_ms == (await broker.describe("orders")).created_ms
        assert {each.topic for each in await again.topics()} == {"orders", "events", "empty"}
        for cursor in ("orders", "billing"), ("events", "audit"):
            ours, theirs = await broker.cursor(*cursor), await again.cursor(*cursor)
            assert [each.offset for each in ours.partitions] == [each.offset for each in theirs.partitions]
        assert (await again.cluster()).cluster == told.cluster
        repeated = await again.publish("orders", "order 3", key="k3", id="o3")
        assert repeated.duplicate, "an id of before the backup is recognised"
        assert not (await again.publish("orders", "new", key="k3", id="new")).duplicate
    examined = await asyncio.to_thread(holdfast_process, "doctor", str(tmp_path / "restored"))
    assert examined.code == 0, examined


async def test_only_the_topics_that_were_asked_for(broker: Client, tmp_path: Path) -> None:
    await fill(broker)
    made = await create(broker, tmp_path / "backup", topics=["orders"])
    assert [topic.topic for topic in made.topics] == ["orders"] and [each.name for each in made.cursors] == ["billing"]
    with pytest.raises(Exception, match="there is no topic nowhere"):
        await create(broker, tmp_path / "other", topics=["nowhere"])


async def test_brokers_over_a_database_are_told_to_back_that_up(
    broker: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = msgspec.structs.replace(await broker.cluster(), store="postgresql://db/holdfast")

    async def cluster(_: Api) -> ClusterDescription:
        return described

    monkeypatch.setattr(Api, "cluster", cluster)
    with pytest.raises(NotSupported, match="pg_dump"):
        await create(broker, tmp_path / "backup")


async def test_writers_numbers_survive_so_that_a_commit_is_not_repeated(broker: Client, tmp_path: Path) -> None:
    await broker.create_topic("totals", partitions=2)
    for number in range(5):
        transaction = broker.transaction("nightly", number)
        await transaction.stage("totals", [f"{number} a", f"{number} b"])
        await transaction.commit()
    holds = {"rows": 2, "checksum": 5, "source": 6}
    body = msgspec.json.encode({"number": 0, "receipts": [], "contents": holds})
    await broker._api.ask(Request("POST", "/v1/transactions/counted/commit", body), CommitResult)
    staged = await broker.transaction("nightly", 5).stage("totals", ["never committed"])
    made = await create(broker, tmp_path / "backup")
    assert made.messages == 10 and made.is_between_transactions
    await restore(tmp_path / "backup", tmp_path / "restored")
    async with serving(tmp_path / "restored") as again:
        counted, nightly = await again.writers()
        assert (nightly.writer, nightly.last_number, nightly.contents) == ("nightly", 4, None)
        assert counted.contents == Contents(**holds)
        repeated = await again.transaction("nightly", 4).commit([])
        assert repeated.duplicate and repeated.last_number == 4
        with pytest.raises(RemoteError) as refused:
            await again.transaction("nightly", 5).commit(staged)
        assert refused.value.code in {"bad_receipt", "staged_expired"}
        for number in range(5, 8):
            transaction = again.transaction("nightly", number)
            await transaction.stage("totals", [f"{number} a", f"{number} b"])
            assert not (await transaction.commit()).duplicate
        values = [each.value for number in range(2) for each in await again.read("totals", number)]
        assert sorted(values) == [f"{number} {word}".encode() for number in range(8) for word in "ab"]
        # And what was restored can be backed up and restored again.
        await create(again, tmp_path / "second")
    await restore(tmp_path / "second", tmp_path / "third")
    async with serving(tmp_path / "third") as third:
        transaction = third.transaction("nightly", 8)
        await transaction.stage("totals", ["8 a"])
        await transaction.commit()
        assert sum(each.end_offset for each in (await third.describe("totals")).partitions) == 17


async def test_receivers_get_what_they_missed_from_the_restored_broker(broker: Client, tmp_path: Path) -> None:
    receiver = DumbReceiver()
    async with receiver:
        await broker.subscribe_callback("orders", receiver.address, name="hook", start="earliest")
        await broker.publish_many("orders", [b"1", b"2", b"3"])
        await receiver.got(3)
        await until(lambda: has_everything(broker))
    await broker.publish_many("orders", [b"4", b"5"])
    made = await create(broker, tmp_path / "backup")
    assert [(each.name, each.callback) for each in made.subscriptions] == [("hook", receiver.address)]
    await broker.delete_topic("orders")
    told = await restore(tmp_path / "backup", tmp_path / "restored")
    assert told.subscriptions == 1
    async with serving(tmp_path / "restored") as again, receiver:
        lines = await receiver.got(5)
        assert [line.rsplit(b"|", 1)[-1] for line in lines] == [b"1", b"2", b"3", b"4", b"5"], "each of them once"
        (found,) = await again.subscriptions()
        assert (found.topic, found.name, found.callback) == ("orders", "hook", receiver.address)
        await again.remove_subscription("orders", "hook")
    alone = await restore(tmp_path / "backup", tmp_path / "alone", with_subscriptions=False)
    assert (alone.subscriptions, alone.cursors, told.cursors) == (0, 0, 1)


async def has_everything(broker: Client) -> bool:
    return not (await broker.subscriptions("orders"))[0].behind


async def test_number_of_a_deleted_queue_is_not_given_again(broker: Client, tmp_path: Path) -> None:
    def create_queue(client: Client) -> int:
        host, port = server_of(client).removeprefix("http://").rsplit(":", 1)
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=20)) as asked:
            asked.request("POST", "/create_queue", b"{}", {"Content-Type": "application/json"})
            return int(json.loads(asked.getresponse().read())["queue_id"])

    numbers = [await asyncio.to_thread(create_queue, broker) for _ in range(2)]
    await broker.delete_topic(f"queue-{numbers[1]}")
    made = await create(broker, tmp_path / "backup")
    assert made.next_queue_number == numbers[1] + 1
    await restore(tmp_path / "backup", tmp_path / "restored")
    async with serving(tmp_path / "restored") as again:
        assert await asyncio.to_thread(create_queue, again) == numbers[1] + 1
    examined = await asyncio.to_thread(holdfast_process, "doctor", str(tmp_path / "restored"))
    assert examined.code == 0, examined


async def test_topic_whose_beginning_was_deleted_keeps_its_offsets(tmp_path: Path) -> None:
    environment = {"HOLDFAST_SEGMENT_BYTES": "1048576", "HOLDFAST_RETENTION_CHECK_MS": "100"}
    async with serving(tmp_path / "served", environment=environment) as client:
        await client.create_topic("orders", retention_bytes=2 * MIB)
        await client.publish_many("orders", [b"%d" % number for number in range(10)])
        await create(client, tmp_path / "passed")
        for _ in range(6):
            await client.publish_many("orders", [os.urandom(1000) for _ in range(1000)])

        async def is_deleted() -> bool:
            return (await client.describe("orders")).partitions[0].start_offset >= 3000

        await until(is_deleted)
        made = await create(client, tmp_path / "backup")
        partition = made.topics[0].partitions[0]
        assert partition.first >= 3000 and partition.end == 6010
        expected = await everything(client, made)
        await client.seek("orders", "billing", 4000)
        await create(client, tmp_path / "backup", update=True)
        # Planned before retention had deleted the beginning, and gone on with afterwards.
        late = await create(client, planned_from_the_beginning(made, tmp_path / "late"))
        assert late.topics[0].partitions[0].first == partition.first
        assert findings(tmp_path / "late") == []
        # Retention has passed what an earlier one had, which is kept, and nothing is said to be whole that is not.
        passed = await create(client, tmp_path / "passed", update=True)
        assert passed.topics[0].partitions[0].first == partition.first and findings(tmp_path / "passed") == []
        assert [(each.first, each.end) for _, each in passed.partitions_aside()] == [(0, 10)]
    await restore(tmp_path / "passed", tmp_path / "both", with_aside=True)
    async with serving(tmp_path / "both") as both:
        assert [each.value for each in await both.read("orders.aside-1", 0)] == [b"%d" % each for each in range(10)]
        assert (await both.describe("orders")).partitions[0].start_offset == partition.first
    await a_node_that_joins_gets_everything(tmp_path / "backup", tmp_path / "pair", partition.first)
    await restore(tmp_path / "backup", tmp_path / "restored")
    async with serving(tmp_path / "restored") as again:
        assert await everything(again, made) == expected
        described = (await again.describe("orders")).partitions[0]
        assert (described.start_offset, described.end_offset) == (partition.first, 6010)
        assert (await again.publish("orders", "next")).offset == 6010


def planned_from_the_beginning(made: Manifest, directory: Path) -> Path:
    directory.mkdir()
    (topic,) = made.topics
    partitions = [msgspec.structs.replace(each, first=0, files=[]) for each in topic.partitions]
    topics = [msgspec.structs.replace(topic, partitions=partitions)]
    planned = msgspec.structs.replace(made, topics=topics, finished_ms=None)
    backup_format.save(directory, backup_format.PLAN, planned)
    return directory


async def a_node_that_joins_gets_everything(backup: Path, root: Path, first: int) -> None:
    """Also what the control log never said, and logs that do not begin at 0; here as the second one of a pair."""
    await restore(backup, root / "n1")
    nodes = Nodes(root, count=2, is_pair=True)
    await nodes.start()
    try:
        orders = PartitionId(TopicName("orders"), 0)
        joined = nodes.backends["n2"]
        await until(lambda: joined.topic(orders.topic) is not None and joined.end_offset(orders) == 6010)
        assert joined.start_offset(orders) == first
        assert joined.cursor(orders.topic, CursorName("billing")) == {0: 4000}
        batches = [await nodes.backends[name].read(orders, Offset(first), MIB) for name in ("n1", "n2")]
        assert b"".join(batches[0]) == b"".join(batches[1])
    finally:
        await nodes.stop()


def test_cursor_behind_the_end_of_the_backup_is_brought_back() -> None:
    topic = backup_format.TopicBackup(
        topic="orders",
        created_ms=1,
        retention_ms=None,
        retention_bytes=None,
        partitions=[backup_format.PartitionBackup(partition=0, first=3, end=10)],
    )

    def cursor(topic: str, offset: int) -> CursorDescription:
        position = CursorPosition(partition=0, offset=offset, end_offset=offset, lag=0)  # type: ignore[arg-type]
        return CursorDescription(topic=topic, name="c", lag=0, partitions=[position])  # type: ignore[arg-type]

    found = planning.clipped([cursor("orders", 12), cursor("orders", 7), cursor("gone", 1)], [topic])
    assert [each.offsets for each in found] == [{0: 10}, {0: 7}]


async def test_subscription_whose_place_is_not_in_the_backup_is_not_in_it_either() -> None:
    """As of one to a topic with a processor, where only that topic was chosen: it would get everything once more."""
    hook = backup_format.SubscriptionBackup(
        topic="orders", name="hook", callback="127.0.0.1:9000", format="plain", created_ms=1
    )
    cursor = backup_format.CursorBackup(topic="orders", name="callback:hook", offsets={0: 1})
    elsewhere = msgspec.structs.replace(cursor, topic="orders.processed", name="callback:orders:hook")
    empty = Manifest(cluster="c", version="1", begun_ms=1, topics=[], cursors=[], writers=[])

    def paired(*cursors: backup_format.CursorBackup, hooks: list[backup_format.SubscriptionBackup]) -> Manifest:
        return keeping.paired(msgspec.structs.replace(empty, cursors=list(cursors), subscriptions=hooks))

    assert paired(hooks=[hook]).subscriptions == []
    assert paired(cursor, elsewhere, hooks=[]).cursors == []
    assert (both := paired(elsewhere, hooks=[hook])).cursors == [elsewhere] and both.subscriptions == [hook]


async def test_directories_are_on_the_disk_before_the_backup_is_called_done(
    broker: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()

    def sync_directory(path: Path) -> None:
        synced.add(path)
        durable.sync_directory(path)

    for module in (chunks, backup_format, directory):
        monkeypatch.setattr(module, "sync_directory", sync_directory)
    await broker.publish("orders", "x")
    backup = tmp_path / "deep" / "backup"
    await create(broker, backup)
    made = {each for each in (tmp_path / "deep").rglob("*") if each.is_dir()}
    assert len(made) == 4 and synced >= {each.parent for each in made} | {tmp_path}


# --- damage ------------------------------------------------------------------------------------------------------


def damage(backup: Path, what: str) -> tuple[str, str]:
    """Do it; which file is wrong then, and what verify says of it."""
    (file,) = backup.glob("topics/orders@*/0/*.batches")
    content = bytearray(file.read_bytes())
    manifest = backup / "manifest.json"
    if what == "a flipped byte":
        content[80] ^= 1
        file.write_bytes(content)
        return str(file), "does not match its CRC32C"
    if what == "a flipped byte that no sum of a batch covers":
        content[15] ^= 1
        file.write_bytes(content)
        return str(file), "SHA-256"
    if what == "a missing file":
        file.unlink()
        return str(file), "No such file"
    if what == "a truncated file":
        file.write_bytes(content[:-7])
        return str(file), "does not fit"
    if what == "batches that are gone":
        file.write_bytes(b"")
        return str(file), "bytes, the manifest says"
    if what == "a manifest with a field that this version does not know, edited":
        stored = manifest.read_bytes().replace(b'\n "cluster"', b'\n "colour": "blue",\n "cluster"', 1)
        summed = json.loads(stored)["sha256"].encode()
        total = hashlib.sha256(stored.replace(summed, b"")).hexdigest().encode()
        manifest.write_bytes(stored.replace(summed, total))
        assert findings(backup) == [], "a later version may add one"
        manifest.write_bytes(manifest.read_bytes().replace(b"blue", b"plue"))
        return str(manifest), "its sum does not match"
    if what == "a manifest that was edited":
        told = json.loads(manifest.read_bytes())
        told["cursors"][0]["offsets"]["0"] = 1
        manifest.write_text(json.dumps(told))
        return str(manifest), "its sum does not match"
    if what == "a manifest with another format by one bit":
        manifest.write_bytes(manifest.read_bytes().replace(b'"format": 1', b'"format": 3'))
        return str(manifest), "its sum does not match"
    if what == "a file that would fill the memory":
        os.truncate(file, 1 << 40)
        return str(file), "belong there"
    if what == "a file that nobody will ever write to":
        file.unlink()
        os.mkfifo(file)
        return str(file), "no file"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    return str(manifest), "is damaged"


@pytest.fixture(scope="module")
def sound_backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")

    async def make() -> None:
        async with serving(root / "served") as client:
            await fill(client)
            await create(client, root / "backup")

    asyncio.run(make())
    return root / "backup"


@pytest.mark.parametrize(
    "what",
    [
        "a flipped byte",
        "a flipped byte that no sum of a batch covers",
        "a missing file",
        "a truncated file",
        "batches that are gone",
        "a manifest that was edited",
        "a manifest with a field that this version does not know, edited",
        "a manifest with another format by one bit",
        "a truncated manifest",
        "a file that would fill the memory",
        "a file that nobody will ever write to",
    ],
)
def test_damage_is_found_named_and_not_restored(sound_backup: Path, tmp_path: Path, what: str) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(sound_backup, backup)
    assert findings(backup) == []
    file, problem = damage(backup, what)
    found = findings(backup)
    assert found and any(Path(file).name in each and problem in each for each in found), found
    with pytest.raises(BackupDamaged):
        asyncio.run(restore(backup, tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


def hostile(manifest: Manifest, what: str) -> Manifest:
    replace = msgspec.structs.replace
    orders = next(topic for topic in manifest.topics if topic.topic == "orders")
    (billing,) = (cursor for cursor in manifest.cursors if cursor.name == "billing")
    hook = backup_format.SubscriptionBackup(
        topic="orders", name="hook", callback="127.0.0.1:9000", format="plain", created_ms=1
    )
    place = replace(billing, name="callback:hook")
    writer = backup_format.WriterBackup(writer="nightly", last_number=1, committed_ms=1)
    far = backup_format.PartitionBackup(partition=0, first=2**63, end=2**63)
    changes: dict[str, dict[str, Any]] = {
        "a topic of the broker's own": {"topics": [replace(orders, topic=".holdfast.decisions", partitions=[])]},
        "a topic that is a path": {"topics": [replace(orders, topic="..", partitions=[])]},
        "a topic twice": {"topics": [orders, orders]},
        "a topic aside that has another's files": {"aside": [orders]},
        "a cursor of the broker's own": {"cursors": [replace(billing, topic=".holdfast.queues")]},
        "a cursor twice": {"cursors": [billing, billing]},
        "a callback that is no address": {"subscriptions": [replace(hook, callback="/etc/passwd")], "cursors": [place]},
        "a callback of no topic": {
            "subscriptions": [replace(hook, topic="nowhere")],
            "cursors": [replace(place, topic="nowhere")],
        },
        "a callback that stands nowhere": {"subscriptions": [hook]},
        "a place of no callback": {"cursors": [place]},
        "a partition beyond all offsets": {"topics": [replace(orders, partitions=[far])], "cursors": []},
        "a cursor beyond all offsets": {"cursors": [replace(billing, offsets={0: 2**63})]},
        "a writer beyond all numbers": {"writers": [replace(writer, last_number=2**63)]},
        "a writer before all numbers": {"writers": [replace(writer, last_number=-5)]},
        "a topic from before all times": {"topics": [replace(orders, created_ms=-1, partitions=[])]},
        "a retention beyond all times": {"topics": [replace(orders, retention_ms=2**63)]},
        "a queue beyond the last": {"next_queue_number": 2**63},
        "a queue below the first": {"next_queue_number": 0},
    }
    return replace(manifest, **changes[what])


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("a topic of the broker's own", "begins the broker's own"),
        ("a topic that is a path", "is not allowed"),
        ("a topic twice", "the topic orders is named twice"),
        ("a topic aside that has another's files", "is named twice"),
        ("a cursor of the broker's own", "there is no such topic"),
        ("a cursor twice", "the cursor orders/billing is named twice"),
        ("a callback that is no address", "is no callback address"),
        ("a callback of no topic", "there is no such topic"),
        ("a callback that stands nowhere", "the callback 'hook' of 'orders' has no cursor"),
        ("a place of no callback", "the callback 'hook' of 'orders' has no subscription"),
        ("a partition beyond all offsets", r"topics\[0\].partitions\[0\].first"),
        ("a cursor beyond all offsets", "cursors"),
        ("a writer beyond all numbers", r"writers\[0\].last_number"),
        ("a writer before all numbers", r"writers\[0\].last_number"),
        ("a topic from before all times", r"topics\[0\].created_ms"),
        ("a retention beyond all times", r"topics\[0\].retention_ms"),
        ("a queue beyond the last", "next_queue_number"),
        ("a queue below the first", "no queue can get the number 0"),
    ],
)
def test_manifest_of_an_enemy_is_not_restored(sound_backup: Path, tmp_path: Path, what: str, told: str) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(sound_backup, backup)
    manifest = backup_format.load(backup)
    assert manifest is not None
    backup_format.save(backup, backup_format.MANIFEST, hostile(manifest, what))
    with pytest.raises(BackupDamaged, match=told):
        asyncio.run(restore(backup, tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


def test_verify_says_it_to_people_and_machines(sound_backup: Path, tmp_path: Path) -> None:
    well = holdfast("backup", "verify", str(sound_backup))
    assert well.code == 0 and "All is well" in well.text
    backup = tmp_path / "backup"
    shutil.copytree(sound_backup, backup)
    damage(backup, "a missing file")
    told = holdfast("backup", "verify", str(backup), "--json")
    assert told.code == 1
    found = told.json
    assert not found["sound"] and len(found["findings"]) == 1
    assert found["findings"][0]["file"].endswith("/0/00000000000000000000.batches")
    nothing = holdfast("backup", "verify", str(tmp_path))
    assert nothing.code == 2 and "backup_unusable" in nothing.err


# --- refusals ----------------------------------------------------------------------------------------------------


def test_newer_format_and_used_directories_are_refused(sound_backup: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "notes.txt").write_text("mine")
    with pytest.raises(BackupUnusable, match="not empty"):
        asyncio.run(restore(sound_backup, used))
    assert names(used) == ["notes.txt"]
    newer = tmp_path / "newer"
    shutil.copytree(sound_backup, newer)
    made = backup_format.load(newer)
    assert made is not None
    backup_format.save(newer, "manifest.json", msgspec.structs.replace(made, format=2))
    with pytest.raises(BackupUnusable, match="format 2"):
        asyncio.run(restore(newer, tmp_path / "restored"))


async def test_backup_of_another_cluster_is_not_updated(broker: Client, sound_backup: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await asyncio.to_thread(shutil.copytree, sound_backup, backup)
    with pytest.raises(BackupUnusable, match="of the cluster"):
        await create(broker, backup, update=True)


@pytest.mark.root
async def test_full_disk_says_so_and_the_rest_is_fetched_when_there_is_room(broker: Client, tmp_path: Path) -> None:
    await broker.publish_many("large", [os.urandom(1000) for _ in range(6000)])
    with small_disk(tmp_path / "small", 4 * MIB) as small:
        with pytest.raises(DiskFull, match="is full; make room"):
            await create(broker, small / "backup")
        with pytest.raises(BackupUnusable, match="not finished"):
            findings(small / "backup")
        told = await asyncio.to_thread(
            holdfast_process, "backup", "create", str(small / "backup"), "--server", server_of(broker)
        )
        assert told.code == 1 and "disk_full" in told.err
        made: Manifest = await create(broker, tmp_path / "backup")
        with pytest.raises(DiskFull):
            await restore(tmp_path / "backup", small / "restored")
    assert made.messages == 6000
