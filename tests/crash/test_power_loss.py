"""The power fails: what was synced stays, the rest of the disk's cache is gone, and no acknowledgement was a lie."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.flood import Flood
from testkit.mounts import PowerDisk, power_disk
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK

from tests.crash.test_kill import TOPICS, id_of, lines

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path) as made:
        yield made


def broker_on(disk: PowerDisk, *flags: str) -> BrokerProcess:
    """The broker's messages are on the disk that will fail; what the test itself writes is not."""
    return BrokerProcess(disk.place / "data", *flags, files=disk.place.parent)


@pytest.mark.parametrize("with_ids", [False, True], ids=["plain", "ids"])
@pytest.mark.parametrize("flags", [(), ("--segment-bytes", "30000")], ids=["", "rolling"])
def test_acknowledged_messages_survive_a_power_loss(disk: PowerDisk, with_ids: bool, flags: tuple[str, ...]) -> None:
    rolled = dice(f"power loss {with_ids} {flags}")
    before: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    broker = broker_on(disk, *flags)
    with broker:
        for round_number in range(scaled(3, 10)):
            flood = Flood(broker, lines(round_number, with_ids))
            least = rolled.choice([1, 300, 3_000])
            flood.wait_for(lambda flood=flood, least=least: len(flood.answers) >= least)
            time.sleep(rolled.random() * 0.1)
            disk.cut_power()
            time.sleep(rolled.choice([0, 0.05]))  # the machine may go on for a moment: it may promise nothing now
            broker.kill()
            flood.end()
            disk.come_back()
            broker.restart()
            topics = broker.topics()
            for topic in TOPICS:
                records = broker.stored(topic) if topic in topics else []
                stored = [record.value or b"" for record in records]
                promised = [each.value for each in flood.acknowledged if each.topic == topic]
                sent = [each.value for each in flood.sent if each.topic == topic]
                assert stored[: len(before[topic])] == before[topic], "older messages changed"
                new = stored[len(before[topic]) :]
                assert new == sent[: len(new)], "messages are out of order, or nobody sent them"
                assert len(new) >= len(promised), f"{len(promised) - len(new)} acknowledged messages are lost"
                if with_ids:
                    ids = [id_of(record) for record in records]
                    assert len(set(ids)) == len(ids)
                if topic in topics:
                    (partition,) = topics[topic]["partitions"]
                    assert partition["damaged_batches"] == 0, "a torn tail is called damage"
                before[topic] = stored


def test_what_was_found_after_a_kill_survives_a_power_loss_right_behind_it(disk: PowerDisk) -> None:
    """A killed broker leaves unsynced messages in memory. After the restart they are visible: they must be on disk."""
    broker = broker_on(disk, "--segment-bytes", "4096")
    with broker:
        flood = Flood(broker, lines(0, with_ids=True))
        flood.wait_for(lambda: len(flood.answers) >= 500)
        broker.kill()
        flood.end()
        broker.restart()
        seen = {topic: broker.stored(topic) for topic in broker.topics()}
        # Resends are recognised: their acknowledgement promises what the killed broker wrote.
        resent = flood.sent[-200:]
        with broker.connect() as client:
            client.send(b"".join(each.line for each in resent))
            assert client.lines(len(resent)) == [PUBACK] * len(resent)
        disk.cut_power()
        broker.kill()
        disk.come_back()
        broker.restart()
        for topic, records in seen.items():
            assert broker.stored(topic)[: len(records)] == records, "messages that were visible are gone"
        stored_ids = {id_of(record) for topic in broker.topics() for record in broker.stored(topic)}
        assert {each.message_id for each in resent} <= stored_ids, "acknowledged resends are lost"


def test_deleted_topic_and_moved_cursor_survive_a_power_loss(disk: PowerDisk) -> None:
    broker = broker_on(disk)
    with broker:
        with broker.connect() as client:
            for i in range(10):
                assert client.ask(b"PUBLISH|kept|%d" % i) == PUBACK
                assert client.ask(b"PUBLISH|gone|%d" % i) == PUBACK
        broker.json("PUT", "/v1/topics/kept/cursors/reader", {"to": 7})
        assert broker.call("DELETE", "/v1/topics/gone")[0] == 204
        broker.json("POST", "/v1/topics", {"topic": "made", "partitions": 3})
        disk.cut_power()
        broker.kill()
        disk.come_back()
        broker.restart()
        assert sorted(broker.topics()) == ["kept", "made"], "a deletion or a creation was forgotten"
        assert len(broker.topics()["made"]["partitions"]) == 3
        assert broker.stored_values("kept") == [b"%d" % i for i in range(10)]
        cursor = broker.json("GET", "/v1/topics/kept/cursors/reader")
        assert cursor["partitions"][0]["offset"] == 7


def test_broker_whose_disk_is_gone_promises_nothing_more(disk: PowerDisk) -> None:
    with broker_on(disk) as broker, broker.connect() as client:
        assert client.ask(b"PUBLISH|t|before") == PUBACK
        disk.cut_power()
        for i in range(5):
            client.say(b"PUBLISH|t|%d" % i)
            client.expect_error("storage_failed")
        assert client.ask(b"PING") == b"PONG"
        assert broker.call("GET", "/ready")[0] == 503
        broker.kill()
        disk.come_back()
        broker.restart()
        assert broker.stored_values("t")[0] == b"before"
