"""Thousands of lines to a real broker without waiting: each is answered, in order, and what was answered is stored."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK, SUBACK, UNSUBACK, publishes


def test_thousands_of_lines_are_acknowledged_one_by_one_in_order(broker: BrokerProcess, topic: str) -> None:
    count = scaled(20_000, 500_000)
    values = [b"%d" % i for i in range(count)]
    with broker.connect() as client:
        sender = threading.Thread(target=client.send, args=(publishes(topic, values) + b"PING\n",))
        sender.start()
        assert client.lines(count) == [PUBACK] * count
        client.expect(b"PONG")
        sender.join(20)
    assert broker.stored_values(topic) == values


def test_mixed_lines_are_answered_in_their_order(broker: BrokerProcess, topic: str) -> None:
    """Topics that must be created, ids that must be looked up and errors that are known at once, all in one chunk."""
    rolled = dice("mixed lines")
    lines: list[bytes] = []
    expected: list[bytes] = []
    stored: dict[str, list[bytes]] = {}
    for i in range(scaled(2_000, 50_000)):
        name = f"{topic}-{rolled.randrange(7)}"
        kind = rolled.randrange(8)
        if kind < 4:
            lines.append(f"PUBLISH|{name}|{i}".encode())
            expected.append(PUBACK)
            stored.setdefault(name, []).append(b"%d" % i)
        elif kind == 4:
            lines.append(f"PUBLISH_ID|{topic}-{i}|{name}|{i}".encode())
            expected.append(PUBACK)
            stored.setdefault(name, []).append(b"%d" % i)
        elif kind == 5:
            lines.append(b"ping")
            expected.append(b"PONG")
        elif kind == 6:
            lines.append(b"PUBLISH|bad,name|x")
            expected.append(b"ERROR|bad_topic")
        else:
            lines.append(b"NONSENSE|%d" % i)
            expected.append(b"ERROR|bad_command")
    with broker.connect() as client:
        sender = threading.Thread(target=client.say, args=lines)
        sender.start()
        got = client.lines(len(expected))
        sender.join(20)
    assert [b"|".join(line.split(b"|")[:2]) if line.startswith(b"ERROR") else line for line in got] == expected
    for name, values in stored.items():
        assert broker.stored_values(name) == values, "order within a topic is lost"


def test_lines_that_look_alike_reach_their_own_topics(broker: BrokerProcess, topic: str) -> None:
    """All lines have one length, and now and then one goes to another topic of a name of the same length."""
    rolled = dice("lines that look alike")
    stored: dict[str, list[bytes]] = {}
    lines: list[bytes] = []
    for i in range(scaled(5_000, 100_000)):
        name = f"{topic}-{'b' if rolled.random() < 0.01 or i in (64, 8_192) else 'a'}"
        stored.setdefault(name, []).append(b"%07d" % i)
        lines.append(f"PUBLISH|{name}|{i:07d}".encode())
    with broker.connect() as client:
        for start in range(0, len(lines), 1_000):
            client.say(*lines[start : start + 1_000])
        assert client.lines(len(lines)) == [PUBACK] * len(lines)
    for name, values in stored.items():
        assert broker.stored_values(name) == values, "an acknowledged message is in another topic"


def test_lines_cut_anywhere_by_the_network_are_the_same_lines(broker: BrokerProcess, topic: str) -> None:
    rolled = dice("cut lines")
    noise = [rolled.randbytes(rolled.randrange(60)).replace(b"\n", b"").replace(b"\r", b"") for _ in range(300)]
    values = [b"%d|" % i + each for i, each in enumerate(noise)]
    stream = publishes(topic, values)
    with broker.connect() as client:
        while stream:
            cut = rolled.choice([1, 2, 7, 100, 1_000])
            client.send(stream[:cut])
            stream = stream[cut:]
        assert client.lines(300) == [PUBACK] * 300
    assert broker.stored_values(topic) == values


@pytest.mark.parametrize("sync", ["group", "none", "interval:10"])
@pytest.mark.parametrize("exists", [False, True], ids=["new topic", "old topic"])
def test_publish_behind_a_subscribe_in_one_chunk_is_delivered(data: Path, sync: str, exists: bool) -> None:
    """The subscription is in front of the publish on the same wire: it must see it."""
    with BrokerProcess(data, "--sync", sync) as broker:
        for number in range(scaled(5, 100)):
            name = b"t%d" % number
            with broker.connect() as client:
                if exists:
                    assert client.ask(b"PUBLISH|%b|before" % name) == PUBACK
                client.say(b"SUBSCRIBE|" + name, b"PUBLISH|%b|one" % name, b"PUBLISH_ID|1|%b|two" % name)
                got = client.lines(5)
                assert got[0] == SUBACK
                assert [line for line in got if line == PUBACK] == [PUBACK, PUBACK]
                delivered = [line for line in got if line.startswith(b"MESSAGE|")]
                assert delivered == [b"MESSAGE|%b|one" % name, b"MESSAGE|%b|two" % name]


def test_subscribe_and_unsubscribe_in_one_chunk_leaves_no_subscription(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    with broker.connect() as client:
        for _ in range(20):
            client.say(b"SUBSCRIBE|" + name, b"UNSUBSCRIBE|" + name)
            client.expect(SUBACK, UNSUBACK)
        assert client.ask(b"PUBLISH|%b|x" % name) == PUBACK
        assert client.is_quiet()


def test_good_message_is_not_refused_for_its_neighbour(broker: BrokerProcess, topic: str) -> None:
    """Lines that arrive together are stored together, but each is answered for itself."""
    name = topic.encode()
    with broker.connect() as client:
        client.say(b"PUBLISH|%b|fine" % name, b"PUBLISH|%b|" % name + b"x" * 10_001, b"PUBLISH|%b|fine too" % name)
        answers = client.lines(3)
    assert answers[0] == PUBACK and answers[2] == PUBACK, answers
    assert answers[1].startswith(b"ERROR|too_large|")
    assert broker.stored_values(topic) == [b"fine", b"fine too"]


def test_half_closed_publisher_gets_all_its_acknowledgements(broker: BrokerProcess, topic: str) -> None:
    """`printf … | nc` closes its sending half at once and waits."""
    values = [b"%d" % i for i in range(500)]
    with broker.connect() as client:
        client.send(publishes(topic, values))
        client.half_close()
        assert client.rest() == [PUBACK] * 500
    assert broker.stored_values(topic) == values


def test_one_connection_for_each_publish(broker: BrokerProcess, topic: str) -> None:
    count = scaled(200, 5_000)
    for i in range(count):
        with broker.connect() as client:
            assert client.ask(f"PUBLISH|{topic}|{i}".encode()) == PUBACK
    assert broker.stored_values(topic) == [b"%d" % i for i in range(count)]


def test_many_publishers_each_keep_their_own_order(broker: BrokerProcess, topic: str) -> None:
    publishers, count = 12, scaled(300, 5_000)
    errors: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            with broker.connect() as client:
                client.send(publishes(topic, [b"%d/%d" % (number, i) for i in range(count)]))
                assert client.lines(count) == [PUBACK] * count
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    stored = [tuple(map(int, value.split(b"/"))) for value in broker.stored_values(topic)]
    assert len(stored) == publishers * count
    for number in range(publishers):
        assert [i for publisher, i in stored if publisher == number] == list(range(count))


def test_random_bytes_never_take_the_broker_down(broker: BrokerProcess, topic: str) -> None:
    rolled = dice("random bytes")
    for _ in range(scaled(30, 1_000)):
        with broker.connect() as client:
            data = rolled.randbytes(rolled.choice([1, 10, 300, 3_000]))
            client.send(data + rolled.choice([b"", b"\n", b"|", b"\r\n"]))
            client.half_close()
            assert all(line.startswith(b"ERROR|") for line in client.rest())
    with broker.connect() as client:
        assert client.ask(f"PUBLISH|{topic}|alive".encode()) == PUBACK
