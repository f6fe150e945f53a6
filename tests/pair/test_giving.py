"""What one of a pair gives when it gives way is stored once by the other one, however often and late it is given."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.crashes import Crashed

from holdfast.client.client import Client
from holdfast.client.results import PublishResults
from holdfast.model.ids import TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.node import rejoining
from holdfast.node.known_ids import KnownIds
from holdfast.testing import LocalCluster
from holdfast.wire.batch_builder import build_batch

# So many ids are recognised by the winner, and far more messages are given.
WINDOW = 10
COUNT = 60
GIVEN = Counter([f"{kind} {number}" for kind in ("plain", "named") for number in range(COUNT)])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one that was alone, in terms that the other one never had."""
    with LocalCluster(nodes=1, data=tmp_path_factory.mktemp("stopped")) as cluster:
        with cluster.connect_blocking() as client:
            client.create_topic("t", partitions=2)
        for _ in range(4):
            cluster.restart()
        with cluster.connect_blocking() as client:
            client.publish_many("t", [f"plain {number}" for number in range(COUNT)], partition=0)
            named = [NewMessage(value=f"named {number}".encode(), id=f"id {number}") for number in range(COUNT)]
            for first in range(0, COUNT, COUNT // 4):
                client.publish_many("t", named[first : first + COUNT // 4], partition=1)
        return cluster.node(0).data


@pytest.fixture
def loser(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "loser")


@pytest.fixture
def winner(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, data=tmp_path / "winner", settings={"dedupe_ids_max": WINDOW}) as cluster:
        yield cluster


async def give(loser: Path, winner: LocalCluster) -> None:
    """As the loser's start does, once it was told to give way."""
    host, port = winner.http_addresses[0].rsplit(":", 1)
    rejoining.note(loser, rejoining.Replaced("b", f"{host}:{port}"))
    await rejoining.give_up(loser, "n1", TimestampMs(int(time.time() * 1000)), patience_s=0)
    assert rejoining.found(loser) is None and (loser / "given").is_dir(), "it did not give everything"


async def stored(winner: LocalCluster, *, first: int = 0) -> Counter[str]:
    async with winner.connect() as client:
        described = await client.describe("t")
        found: Counter[str] = Counter()
        for partition in described.partitions:
            messages = await client.read("t", partition.partition, first, messages_max=10 * COUNT)
            found.update(message.text for message in messages)
        return found


async def test_messages_that_are_given_again_after_a_kill_are_not_stored_twice(
    loser: Path, winner: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = rejoining.note

    def killed_when_given(directory: Path, replaced: rejoining.Replaced) -> None:
        if replaced.is_given:
            raise Crashed
        note(directory, replaced)

    with monkeypatch.context() as killing:
        killing.setattr(rejoining, "note", killed_when_given)
        with pytest.raises(Crashed):
            await give(loser, winner)
    assert await stored(winner) == GIVEN
    await give(loser, winner)
    assert await stored(winner) == GIVEN


async def test_one_that_stored_nothing_alone_gives_nothing_and_starts(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, data=tmp_path / "winner") as cluster:
        with cluster.connect_blocking() as client:
            client.publish_many("t", ["1", "2"])
        data = cluster.node(0).data
    shutil.copytree(data, tmp_path / "loser")
    with LocalCluster(nodes=1, data=tmp_path / "winner") as winner:
        await give(tmp_path / "loser", winner)
        assert await stored(winner) == Counter(["1", "2"])


async def test_message_sent_to_both_sides_of_a_long_split_is_stored_once(loser: Path, winner: LocalCluster) -> None:
    newer = Counter([f"newer {number}" for number in range(3 * WINDOW)])
    async with winner.connect() as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", "named 0", id="id 0", partition=1)
        await client.publish_many("t", list(newer), partition=1, retry_safe=True)
    await give(loser, winner)
    assert await stored(winner) == GIVEN + newer


async def test_message_that_its_publisher_sends_again_while_it_waits_to_be_given_is_stored_once(
    loser: Path, winner: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Counter([f"newer {number}" for number in range(3 * WINDOW)])
    publish_many = Client.publish_many
    last = f"id {COUNT - 1}"

    async def and_a_publisher_goes_on(
        client: Client, topic: str, messages: list[NewMessage], *, partition: int
    ) -> PublishResults:
        given = await publish_many(client, topic, messages, partition=partition)
        if messages[0].id == "id 0":
            async with winner.connect() as publisher:
                await publisher.publish("t", f"named {COUNT - 1}", id=last, partition=1)
                await publish_many(publisher, "t", list(newer), partition=1, retry_safe=True)
        return given

    # One batch of the log is given at a time.
    monkeypatch.setattr(rejoining, "_READ_BYTES", 1)
    monkeypatch.setattr(Client, "publish_many", and_a_publisher_goes_on)
    await give(loser, winner)
    assert await stored(winner) == GIVEN + newer


async def test_partner_with_fewer_partitions_gets_everything_once(loser: Path, winner: LocalCluster) -> None:
    async with winner.connect() as client:
        await client.create_topic("t", partitions=1)
    await give(loser, winner)
    assert await stored(winner) == GIVEN


async def test_damage_on_the_partners_disk_keeps_nothing_from_being_given(loser: Path, winner: LocalCluster) -> None:
    async with winner.connect() as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", "damaged", partition=0)
        await client.publish("t", "sound", partition=0)
    winner.stop()
    (segment,) = (winner.node(0).data / "topics" / "t" / "0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"dAmaged"))
    winner.start()
    await give(loser, winner)
    assert await stored(winner, first=1) == GIVEN + Counter(["sound"]) - Counter(["named 0"])


def test_any_number_of_ids_is_known_until_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(b"what a crash left")
    with KnownIds(path) as known:
        known.add(str(number) for number in range(100_000))
        known.add(["7", "half a \udc80 pair"])
        assert all(str(number) in known for number in range(100_000))
        assert "100000" not in known and "half a \udc80 pair" in known
    assert not path.exists()


def test_header_of_a_publisher_neither_stops_the_giving_nor_keeps_a_message_from_it() -> None:
    def message(message_id: str, epoch: bytes) -> NewMessage:
        return NewMessage(value=b"x", id=message_id, headers=[("holdfast-given", epoch)])

    published = [message("order 7", b"no number"), message("order 8", b"3"), message("0-3-5", b"4")]
    batch = build_batch([*published, message("0-3-5", b"3")], 0)
    given = [each.id for each in rejoining._given(bytes(batch), 0, {3, 4})]
    assert given == ["order 7", "order 8", "0-3-5"], "only the last one came from the other side"
