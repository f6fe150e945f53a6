"""SIGKILL in the middle of a flood: nothing acknowledged is lost, nothing is out of order, nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.campaign import Campaign
from testkit.flood import Flood, Sent
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK


@pytest.mark.parametrize("flags", [("--segment-bytes", "20000"), ("--sync", "none")], ids=["rolling", "no sync"])
def test_acknowledged_messages_survive_kills_in_order(data: Path, flags: tuple[str, ...]) -> None:
    with BrokerProcess(data, *flags) as broker:
        campaign = Campaign(broker, f"kill {flags}")
        for _ in range(scaled(3, 15)):
            flood = campaign.round(broker.kill)
            assert set(flood.answers) <= {PUBACK}, "something was refused before the end"
        print(f"{campaign.acknowledged} messages were acknowledged")
        broker.terminate()
        broker.restart()
        campaign.check_nothing_changed()


def test_messages_with_ids_are_there_exactly_once_after_kills_and_resends(data: Path) -> None:
    """The publisher resends whatever was not acknowledged, and some that was, to the restarted broker."""
    with BrokerProcess(data, "--segment-bytes", "100000") as broker:
        campaign = Campaign(broker, "kill with ids", with_ids=True)
        for _ in range(scaled(3, 15)):
            flood = campaign.round(broker.kill, answers=(1, 100, 1_000))
            campaign.resend(flood)


def test_kill_while_topics_are_being_created(data: Path) -> None:
    """Each line creates a topic: one that was acknowledged is there with its message, one that was not may be."""
    rolled = dice("kill while creating")
    with BrokerProcess(data) as broker:
        for number in range(scaled(2, 20)):
            flood = Flood(broker, (Sent(f"r{number}-{i}", b"%d" % i) for i in range(2_000)), window=40)
            least = rolled.choice([1, 20, 60])
            flood.wait_for(lambda flood=flood, least=least: len(flood.answers) >= least)  # type: ignore[misc]
            broker.kill()
            flood.end()
            broker.restart()
            sent = {each.topic: each.value for each in flood.sent}
            promised = {each.topic for each in flood.acknowledged}
            there = {name for name in broker.topics() if name in sent}
            assert promised <= there, "a topic that was acknowledged is gone"
            for topic in there:
                stored = broker.stored_values(topic)
                assert stored == [sent[topic]] or (not stored and topic not in promised)
            with broker.connect() as client:
                for each in flood.sent[:50]:
                    assert client.ask(each.line.strip()) == PUBACK


def test_kill_while_topics_are_being_deleted_and_made_again(data: Path) -> None:
    rolled = dice("kill while deleting")
    with BrokerProcess(data) as broker:
        for turn in range(scaled(3, 30)):
            with broker.connect() as client:
                for number in range(6):
                    assert client.ask(b"PUBLISH|t%d|%d old" % (number, turn)) == PUBACK
            deleted = [f"t{number}" for number in rolled.sample(range(6), 3)]
            for topic in deleted:
                assert broker.call("DELETE", f"/v1/topics/{topic}")[0] == 204
            broker.kill()
            broker.restart()
            assert not set(deleted) & set(broker.topics()), "a deleted topic is back"
            for topic in {f"t{number}" for number in range(6)} - set(deleted):
                assert broker.stored_values(topic)[-1] == b"%d old" % turn
