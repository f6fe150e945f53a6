"""SIGKILL in the middle of a flood: nothing acknowledged is lost, nothing is out of order, nothing is there twice."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.batches import ForeignRecord
from testkit.flood import Flood, Sent
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK

TOPICS = ["a", "b", "c", "d", "e"]
ROUNDS = scaled(5, 15)


def lines(round_number: int, with_ids: bool) -> Iterator[Sent]:
    for i in itertools.count():
        value = b"%d/%d" % (round_number, i) + b"." * (i % 97)
        yield Sent(TOPICS[i % len(TOPICS)], value, f"{round_number}-{i}" if with_ids else None)


def id_of(record: ForeignRecord) -> str:
    return dict(record.headers)["holdfast-id"].decode()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "flags", [(), ("--segment-bytes", "20000"), ("--sync", "none")], ids=["", "rolling", "no sync"]
)
def test_acknowledged_messages_survive_kills_in_order(data: Path, flags: tuple[str, ...]) -> None:
    """Without ids: what is stored is a beginning of what was sent, at least as long as what was acknowledged."""
    rolled = dice(f"kill {flags}")
    before: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    acknowledged_in_all = 0
    broker = BrokerProcess(data, *flags)
    with broker:
        for round_number in range(ROUNDS):
            flood = Flood(broker, lines(round_number, with_ids=False))
            least = rolled.choice([1, 50, 2_000])
            flood.wait_for(lambda flood=flood, least=least: len(flood.answers) >= least)
            time.sleep(rolled.random() * 0.1)
            broker.kill()
            flood.end()
            assert set(flood.answers) <= {PUBACK}
            acknowledged = flood.acknowledged
            acknowledged_in_all += len(acknowledged)
            broker.restart()
            for topic in TOPICS:
                stored = broker.stored_values(topic) if topic in broker.topics() else []
                assert stored[: len(before[topic])] == before[topic], "older messages changed"
                new = stored[len(before[topic]) :]
                sent = [each.value for each in flood.sent if each.topic == topic]
                promised = sum(each.topic == topic for each in acknowledged)
                assert new == sent[: len(new)], "messages are out of order, or nobody sent them"
                assert len(new) >= promised, f"{promised - len(new)} acknowledged messages are lost"
                if stored:
                    assert broker.stored_values(topic) == stored, "a second reader sees something else"
                before[topic] = stored
        print(f"{acknowledged_in_all} messages were acknowledged in {ROUNDS} rounds")
        broker.terminate()
        broker.restart()
        for topic in TOPICS:
            assert broker.stored_values(topic) == before[topic]


def test_messages_with_ids_are_there_exactly_once_after_kills_and_resends(data: Path) -> None:
    """The publisher resends whatever was not acknowledged, and some that was, to the restarted broker."""
    rolled = dice("kill with ids")
    expected: dict[str, Sent] = {}
    offsets: dict[tuple[str, str], int] = {}
    broker = BrokerProcess(data, "--segment-bytes", "100000")
    with broker:
        for round_number in range(ROUNDS):
            flood = Flood(broker, itertools.islice(lines(round_number, with_ids=True), 3_000))
            flood.wait_for(lambda flood=flood: len(flood.answers) >= rolled.choice([1, 100, 1_000]))
            time.sleep(rolled.random() * 0.1)
            broker.kill()
            flood.end()
            acknowledged = {each.message_id for each in flood.acknowledged}
            broker.restart()
            stored = {(topic, id_of(r)): r.offset for topic in broker.topics() for r in broker.stored(topic)}
            for each in flood.acknowledged:
                assert (each.topic, each.message_id) in stored, f"acknowledged {each.message_id} is lost"
            for key, offset in offsets.items():
                assert stored[key] == offset, "a message moved to another offset"
            resent = [each for each in flood.sent if each.message_id not in acknowledged or rolled.random() < 0.3]
            with broker.connect() as client:
                for start in range(0, len(resent), 500):
                    part = resent[start : start + 500]
                    client.send(b"".join(each.line for each in part))
                    assert client.lines(len(part)) == [PUBACK] * len(part)
            expected |= {f"{each.topic}/{each.message_id}": each for each in flood.sent}
            found: dict[str, bytes] = {}
            for topic in broker.topics():
                for record in broker.stored(topic):
                    key = f"{topic}/{id_of(record)}"
                    assert key not in found, f"{key} is stored twice"
                    found[key] = record.value or b""
                    offsets[topic, id_of(record)] = record.offset
            assert found == {key: each.value for key, each in expected.items()}


def test_kill_while_topics_are_being_created(data: Path) -> None:
    """Each line creates a topic: one that was acknowledged is there with its message, one that was not may be."""
    rolled = dice("kill while creating")
    broker = BrokerProcess(data)
    with broker:
        for round_number in range(scaled(3, 20)):
            flood = Flood(broker, (Sent(f"r{round_number}-{i}", b"%d" % i) for i in range(2_000)), window=40)
            least = rolled.choice([1, 20, 60])
            flood.wait_for(lambda flood=flood, least=least: len(flood.answers) >= least)
            broker.kill()
            flood.end()
            broker.restart()
            topics = broker.topics()
            for each in flood.acknowledged:
                assert broker.stored_values(each.topic) == [each.value]
            sent = {each.topic: each.value for each in flood.sent}
            for topic in [name for name in topics if name.startswith(f"r{round_number}-")]:
                assert broker.stored_values(topic) in ([], [sent[topic]])
            with broker.connect() as client:
                for each in flood.sent[:50]:
                    assert client.ask(each.line.strip()) == PUBACK


def test_kill_while_topics_are_being_deleted_and_made_again(data: Path) -> None:
    broker = BrokerProcess(data)
    rolled = dice("kill while deleting")
    with broker:
        for turn in range(scaled(4, 30)):
            with broker.connect() as client:
                for number in range(6):
                    assert client.ask(b"PUBLISH|t%d|%d old" % (number, turn)) == PUBACK
            deleted = []
            for number in rolled.sample(range(6), 3):
                status, _ = broker.call("DELETE", f"/v1/topics/t{number}")
                assert status == 204
                deleted.append(f"t{number}")
            broker.kill()
            broker.restart()
            assert not set(deleted) & set(broker.topics()), "a deleted topic is back"
            for number in range(6):
                if f"t{number}" not in deleted:
                    assert broker.stored_values(f"t{number}")[-1] == b"%d old" % turn
