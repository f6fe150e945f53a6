"""Durable subscriptions: whatever ends the connection, the next one goes on with what was not delivered."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK, SUBACK, UNSUBACK, TextClient, publishes
from testkit.wait import wait_until

TEXT = {"Accept": "text/plain"}


def number_of(line: bytes) -> int:
    kind, _, payload = line.split(b"|", 2)
    assert kind == b"MESSAGE", line
    return int(payload.split(b" ")[0])


def lag(broker: BrokerProcess, topic: str, name: str) -> int:
    found = broker.json("GET", f"/v1/topics/{topic}/cursors/{name}")
    return int(found["lag"])


def test_subscription_goes_on_after_a_disconnect(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    seen: list[int] = []
    with broker.connect() as publisher:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
        for turn in range(5):
            publisher.send(publishes(topic, [b"%d" % i for i in range(20 * turn, 20 * turn + 20)]))
            assert publisher.lines(20) == [PUBACK] * 20
            with broker.connect() as client:
                assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
                seen += [number_of(line) for line in client.lines(20)]
                wait_until(lambda: lag(broker, topic, "reader") == 0, "what was delivered is noted")
    assert seen == list(range(100))


def test_unsubscribing_keeps_the_place(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    with broker.connect() as client:
        assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
        client.say(b"PUBLISH|%b|0" % name)
        assert sorted(client.lines(2)) == sorted([PUBACK, b"MESSAGE|%b|0" % name])
        wait_until(lambda: lag(broker, topic, "reader") == 0, "what was delivered is noted")
        assert client.ask(b"UNSUBSCRIBE|" + name) == UNSUBACK
        assert client.ask(b"PUBLISH|%b|1" % name) == PUBACK
        assert client.is_quiet()
        assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
        client.expect(b"MESSAGE|%b|1" % name)


def test_newest_connection_takes_the_subscription_over_without_loss(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    seen: set[int] = set()
    clients: list[TextClient] = []
    with broker.connect() as publisher:
        for turn in range(6):
            client = broker.connect()
            clients.append(client)
            assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
            if turn:
                old = clients[turn - 1]
                line = old.line()
                while line.startswith(b"MESSAGE|"):
                    seen.add(number_of(line))
                    line = old.line()
                assert line.startswith(b"ERROR|taken_over|"), line
                assert old.ask(b"PING") == b"PONG", "the connection stays, only the subscription is gone"
                assert old.is_quiet(0.05), "two connections get the same subscription"
            publisher.send(publishes(topic, [b"%d" % i for i in range(30 * turn, 30 * turn + 30)]))
            assert publisher.lines(30) == [PUBACK] * 30
            # Read some, leave some for the next one.
            seen |= {number_of(line) for line in client.lines(10)}
    wait_until(lambda: lag(broker, topic, "reader") == 0, "the last one gets the rest")
    clients[-1].socket.settimeout(0.5)
    try:
        while True:
            seen.add(number_of(clients[-1].line()))
    except TimeoutError:
        pass
    for client in clients:
        client.close()
    assert seen == set(range(180)), "messages were lost in a takeover"


@pytest.mark.parametrize("ending", ["reset", "close"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_subscriber_that_is_cut_off_gets_everything_its_machine_did_not_take(
    tmp_path: Path, loop: str, ending: str
) -> None:
    """Bytes that waited in the broker, or on the way, when the connection broke were not delivered."""
    rolled = dice(f"cut off {loop} {ending}")
    total = scaled(6_000, 60_000)
    payload = b"x" * 200
    with BrokerProcess(tmp_path / "data", environment={"HOLDFAST_LOOP": loop}) as broker:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        with broker.connect() as publisher:
            reading = threading.Thread(target=publisher.lines, args=(total,))
            reading.start()
            publisher.send(publishes("t", [b"%d %b" % (i, payload) for i in range(total)]))
            reading.join(30)
        taken_up_to = 0
        for _ in range(scaled(6, 30)):
            client = broker.connect(receive_buffer_bytes=rolled.choice([4_096, 20_000, 100_000]))
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
            first = number_of(client.line())
            assert first <= taken_up_to, f"messages {taken_up_to} to {first - 1} were never delivered"
            for _ in range(rolled.choice([0, 5, 200])):
                client.line()
            # It stops reading: its machine's buffer fills, then the broker's. Wait until nothing moves any more.
            held = -1
            while held != client.waiting_bytes():
                held = client.waiting_bytes()
                time.sleep(0.1)
            here = client.peek_lines()
            taken_up_to = max(taken_up_to, number_of(here[-1]) + 1)
            client.reset() if ending == "reset" else client.close()
            # What this machine took counts as delivered, and nothing beyond it.
            time.sleep(0.05)
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
            numbers = [number_of(client.line())]
            assert numbers[0] <= taken_up_to, f"messages {taken_up_to} to {numbers[0] - 1} were never delivered"
            while numbers[-1] < total - 1:
                numbers.append(number_of(client.line()))
            assert numbers == list(range(numbers[0], total))


def test_subscriber_closed_for_a_half_line_loses_nothing(tmp_path: Path) -> None:
    """The broker closes the connection while messages still wait for a slow reader."""
    total = scaled(5_000, 50_000)
    with BrokerProcess(tmp_path / "data", "--half-line-timeout-ms", "300") as broker:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        client = broker.connect(receive_buffer_bytes=4_096)
        assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        with broker.connect() as publisher:
            reading = threading.Thread(target=publisher.lines, args=(total,))
            reading.start()
            publisher.send(publishes("t", [b"%d " % i + bytes(300) for i in range(total)]))
            client.send(b"PING\nhalf a li")
            reading.join(30)
        told = '"half_line_timeout"'
        wait_until(lambda: told in broker.call("GET", "/metrics", headers=TEXT)[1].decode(), "it loses its patience")
        lines = [line for line in client.rest() if line.startswith(b"MESSAGE|")]
        client.close()
        seen = [number_of(line) for line in lines]
        assert seen == list(range(len(seen)))
        with broker.connect() as again:
            assert again.ask(b"SUBSCRIBE|t|reader") == SUBACK
            with broker.connect() as publisher:
                assert publisher.ask(b"PUBLISH|t|%d last" % total) == PUBACK
            first = number_of(again.line())
            assert first <= len(seen), f"messages {len(seen)} to {first - 1} were never delivered"
            rest = [first]
            while rest[-1] < total:
                rest.append(number_of(again.line()))
            assert rest == list(range(first, total + 1))


def test_seek_sends_a_connected_subscriber_where_it_was_told(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    with broker.connect() as client:
        assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
        for i in range(3):
            client.say(b"PUBLISH|%b|%d" % (name, i))
            assert sorted(client.lines(2)) == sorted([PUBACK, b"MESSAGE|%b|%d" % (name, i)])
        broker.json("PUT", f"/v1/topics/{topic}/cursors/reader", {"to": "earliest"})
        client.expect_error("taken_over")
        assert client.ask(b"SUBSCRIBE|%b|reader" % name) == SUBACK
        assert client.lines(3) == [b"MESSAGE|%b|%d" % (name, i) for i in range(3)]


def test_two_names_are_two_readers(broker: BrokerProcess, topic: str) -> None:
    name = topic.encode()
    with broker.connect() as one, broker.connect() as two:
        assert one.ask(b"SUBSCRIBE|%b|one" % name) == SUBACK
        assert two.ask(b"SUBSCRIBE|%b|two" % name) == SUBACK
        with broker.connect() as publisher:
            assert publisher.ask(b"PUBLISH|%b|both" % name) == PUBACK
        one.expect(b"MESSAGE|%b|both" % name)
        two.expect(b"MESSAGE|%b|both" % name)
