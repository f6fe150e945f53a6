"""Clients that never read, never finish a line, or come in thousands: bounded, told, and nobody else suffers."""

from __future__ import annotations

import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import scaled
from testkit.text_client import PUBACK, SUBACK, TextClient, publishes
from testkit.wait import wait_until

MIB = 1 << 20


def test_over_long_line_is_refused_and_ends_the_connection(broker: BrokerProcess, topic: str) -> None:
    with broker.connect() as client:
        client.send(b"PUBLISH|%b|" % topic.encode() + b"x" * 20_000)
        client.expect_error("line_too_long")
        client.wait_closed()
    assert topic not in broker.topics()


def test_client_that_sends_on_reads_why_it_is_hung_up_on(broker: BrokerProcess, topic: str) -> None:
    """It sends far more than the broker's machine takes without being read, and only then looks for an answer."""
    with broker.connect() as client:
        client.send(b"PUBLISH|%b|" % topic.encode() + b"x" * (16 * MIB))
        client.expect_error("line_too_long")
        client.wait_closed()
    with broker.connect() as client:
        assert client.ask(b"PING") == b"PONG"


def test_publishes_before_an_over_long_line_are_answered_before_it_ends_the_connection(
    broker: BrokerProcess, topic: str
) -> None:
    """They were taken: without an answer their sender would have to guess."""
    with broker.connect() as client:
        client.send(publishes(topic, [b"1", b"2", b"3"]) + b"PUBLISH|%b|" % topic.encode() + b"x" * 20_000)
        answers = client.rest()
    assert answers[:3] == [PUBACK] * 3, answers
    assert len(answers) == 4 and answers[3].startswith(b"ERROR|line_too_long|")
    assert broker.stored_values(topic) == [b"1", b"2", b"3"]


def test_half_a_line_and_silence_ends_the_connection(data: Path) -> None:
    with BrokerProcess(data, "--half-line-timeout-ms", "300") as broker:
        with broker.connect() as silent, broker.connect() as idle:
            silent.send(b"PUBLISH|t|never finis")
            started = time.monotonic()
            silent.expect_error("half_line_timeout")
            silent.wait_closed()
            assert time.monotonic() - started < 10
            # Silence without half a line costs nothing and is allowed.
            assert idle.ask(b"PING") == b"PONG"
        assert broker.topics() == {}


def test_steady_publisher_is_not_taken_for_a_silent_one(data: Path) -> None:
    """Its chunks end in the middle of a line every time, and yet no line is ever late."""
    with BrokerProcess(data, "--half-line-timeout-ms", "400") as broker, broker.connect() as client:
        deadline = time.monotonic() + 3
        sent = 0
        client.send(b"PUBLISH|t|0")
        while time.monotonic() < deadline:
            sent += 1
            client.send(b"\nPUBLISH|t|%d" % sent)
            assert client.line() == PUBACK
            time.sleep(0.02)
        client.send(b"\n")
        assert client.line() == PUBACK
        assert broker.stored_values("t") == [b"%d" % i for i in range(sent + 1)]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_publisher_that_never_reads_its_acknowledgements_is_stopped_and_costs_little(data: Path, loop: str) -> None:
    with BrokerProcess(data, environment={"HOLDFAST_LOOP": loop}) as broker:
        with broker.connect() as other:
            assert other.ask(b"PUBLISH|other|warm up") == PUBACK
            before = broker.resident_bytes()
            with broker.connect(receive_buffer_bytes=4_096) as rude:
                rude.socket.settimeout(0.5)
                chunk = publishes("t", [b"x" * 90] * 2_000)
                sent = 0
                with pytest.raises(TimeoutError):
                    while sent < 400 * MIB:
                        rude.send(chunk)
                        sent += len(chunk)
                for i in range(20):
                    started = time.monotonic()
                    assert other.ask(b"PUBLISH|other|%d" % i) == PUBACK
                    assert time.monotonic() - started < 2, "others wait for a client that does not read"
                grown = broker.resident_bytes() - before
                assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB for one client that does not read"
                # It may come to its senses: then everything it sent whole is answered.
                rude.socket.settimeout(20)
                rude.half_close()
                answers = rude.rest()
        stored = len(broker.stored_values("t"))
        assert set(answers) <= {PUBACK}
        assert len(answers) <= stored


def test_hundred_stalled_subscribers_cost_little_and_slow_nobody_down(data: Path) -> None:
    count = scaled(100, 400)
    with BrokerProcess(data) as broker, broker.connect() as publisher, broker.connect() as reader:
        stalled = [broker.connect(receive_buffer_bytes=4_096) for _ in range(count)]
        try:
            for number, client in enumerate(stalled):
                # Every other one is durable, which must not make a difference.
                client.say(b"SUBSCRIBE|t" if number % 2 else b"SUBSCRIBE|t|s%d" % number)
                client.expect(SUBACK)
            assert reader.ask(b"SUBSCRIBE|t") == SUBACK
            before = broker.resident_bytes()
            value = b"v" * 1_000
            messages = scaled(20_000, 100_000)
            sender = threading.Thread(target=publisher.send, args=(publishes("t", [value] * messages),))
            sender.start()
            acknowledged = threading.Thread(target=publisher.lines, args=(messages,))
            acknowledged.start()
            assert reader.lines(messages) == [b"MESSAGE|t|" + value] * messages
            sender.join(60)
            acknowledged.join(60)
            grown = broker.resident_bytes() - before
            # Each may hold its own buffer (256 KiB and what was read at once); the stream itself is 20 MB and more.
            assert grown < count * 0.75 * MIB + 64 * MIB, f"{grown / MIB:.0f} MiB for {count} stalled subscribers"
            assert stalled[0].line() == b"MESSAGE|t|" + value, "a stalled subscriber was given up"
        finally:
            for client in stalled:
                client.close()
        wait_until(lambda: broker.metric("holdfast_text_connections") == 2, "stalled connections are let go")


def test_connections_beyond_the_limit_are_refused_in_words_and_room_is_given_back(data: Path) -> None:
    with BrokerProcess(data, "--connections-max", "5") as broker:
        clients = [broker.connect() for _ in range(5)]
        for _ in range(3):
            with TextClient(broker.text_address, greeted=False) as refused:
                refused.expect_error("too_many_connections")
                refused.wait_closed()
        assert all(client.ask(b"PING") == b"PONG" for client in clients)
        clients.pop().close()

        def fits() -> bool:
            with TextClient(broker.text_address, greeted=False) as client:
                return client.line().startswith(b"CONNACK|")

        wait_until(fits, "a place that was given back is used")
        for client in clients:
            client.close()


def test_two_thousand_connections_are_served(data: Path) -> None:
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * count:
        pytest.skip(f"this process may only open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * count), hard))
    clients: list[TextClient] = []
    try:
        with BrokerProcess(data) as broker:
            before = broker.resident_bytes()
            clients += [broker.connect() for _ in range(count)]
            for client in clients[: count // 2]:
                client.say(b"SUBSCRIBE|t")
            for client in clients[: count // 2]:
                client.expect(SUBACK)
            assert clients[-1].ask(b"PUBLISH|t|to all of you") == PUBACK
            for client in clients[: count // 2]:
                client.expect(b"MESSAGE|t|to all of you")
            for client in clients[count // 2 :]:
                client.say(b"PING")
            for client in clients[count // 2 :]:
                client.expect(b"PONG")
            grown = broker.resident_bytes() - before
            assert grown < count * 40_000, f"{grown / count:.0f} bytes for each connection"
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "lines", [[b"SUBSCRIBE|t|same"], [b"SUBSCRIBE|t", b"UNSUBSCRIBE|t"]], ids=["durable", "unsubscribed"]
)
def test_subscriber_that_reconnects_does_not_use_up_the_connections(data: Path, lines: list[bytes]) -> None:
    """A client that closed is gone, also if nothing was sent to it since."""
    with BrokerProcess(data, "--connections-max", "10") as broker:
        for turn in range(30):

            def is_served() -> bool:
                with TextClient(broker.text_address, greeted=False) as client:
                    if not client.line().startswith(b"CONNACK|"):
                        return False
                    client.say(*lines)
                    client.expect(SUBACK)
                    return True

            wait_until(is_served, f"connection {turn} is served", timeout_s=5)


def test_connections_that_come_and_go_leave_nothing_behind(data: Path) -> None:
    with BrokerProcess(data) as broker:
        for i in range(scaled(150, 3_000)):
            client = broker.connect()
            client.say(b"SUBSCRIBE|t" if i % 2 else b"SUBSCRIBE|t|same")
            if i % 3 == 0:
                client.expect(SUBACK)
            if i % 5 == 0:
                client.say(b"UNSUBSCRIBE|t")
            client.reset() if i % 4 == 0 else client.close()
        # A subscriber may have closed its sending half only; the next message tells.
        with broker.connect() as client:
            assert client.ask(b"PUBLISH|t|x") == PUBACK
            assert client.ask(b"PUBLISH|t|y") == PUBACK
        wait_until(lambda: broker.metric("holdfast_text_connections") == 0, "connections are let go")
        wait_until(lambda: broker.metric("holdfast_subscriptions") == 0, "subscriptions are let go")
        assert "Traceback" not in broker.log(), broker.log()


def test_publisher_whose_connection_breaks_leaves_whole_messages_only(broker: BrokerProcess, topic: str) -> None:
    for number in range(20):
        client = broker.connect()
        client.send(publishes(topic, [b"%d/%d" % (number, i) for i in range(50)]) + b"PUBLISH|%b|half" % topic.encode())
        client.reset()
    with broker.connect() as client:
        assert client.ask(f"PUBLISH|{topic}|last".encode()) == PUBACK
    values = broker.stored_values(topic)
    assert b"half" not in values and values[-1] == b"last"
    for number in range(20):
        of_this = [value for value in values if value.startswith(b"%d/" % number)]
        assert of_this == [b"%d/%d" % (number, i) for i in range(len(of_this))], "messages are out of order"


def test_connection_that_only_listens_is_kept(broker: BrokerProcess) -> None:
    with socket.create_connection(broker.text_address, 10) as listener:
        listener.settimeout(0.3)
        assert listener.recv(1_000).startswith(b"CONNACK|")
        with pytest.raises(TimeoutError):
            listener.recv(1)
        listener.settimeout(10)
        listener.sendall(b"PING\n")
        assert listener.recv(100) == b"PONG\n"
