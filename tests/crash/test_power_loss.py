"""The power fails: what was synced stays, the rest of the disk's cache is gone, and no acknowledgement was a lie."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.campaign import Campaign
from testkit.mounts import PowerDisk, power_disk
from testkit.processes import BrokerProcess
from testkit.sizes import scaled
from testkit.text_client import PUBACK

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path) as made:
        yield made


def broker_on(disk: PowerDisk, *flags: str) -> BrokerProcess:
    """The broker's messages are on the disk that will fail; what the test itself writes is not."""
    return BrokerProcess(disk.place / "data", *flags, files=disk.place.parent)


@pytest.mark.parametrize(
    ("with_ids", "flags"), [(False, ()), (True, ("--segment-bytes", "30000"))], ids=["plain", "ids and rolling"]
)
def test_acknowledged_messages_survive_a_power_loss(disk: PowerDisk, with_ids: bool, flags: tuple[str, ...]) -> None:
    with broker_on(disk, *flags) as broker:
        campaign = Campaign(broker, f"power loss {with_ids}", with_ids=with_ids)

        def lose_power() -> None:
            disk.cut_power()
            time.sleep(campaign.dice.choice([0, 0.05]))  # it may go on for a moment, and may promise nothing now
            broker.kill()
            disk.come_back()

        for _ in range(scaled(2, 10)):
            campaign.round(lose_power, answers=(1, 300, 3_000))


def test_what_was_found_after_a_kill_survives_a_power_loss_right_behind_it(disk: PowerDisk) -> None:
    """A killed broker leaves unsynced messages in memory. After the restart they are visible: they must be on disk."""
    with broker_on(disk, "--segment-bytes", "4096") as broker:
        campaign = Campaign(broker, "power loss behind a kill", with_ids=True)
        flood = campaign.round(broker.kill, answers=(500,))
        # Resends are recognised: their acknowledgement promises what the killed broker wrote.
        campaign.resend(flood)
        disk.cut_power()
        broker.kill()
        disk.come_back()
        broker.restart()
        campaign.check_nothing_changed()


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
