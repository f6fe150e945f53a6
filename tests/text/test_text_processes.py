"""What needs a broker in a process of its own: netcat, kills, connections that break, and how much memory it takes."""

from __future__ import annotations

import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import CONNACK, PUBACK, SUBACK, TextClient, publishes
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

MIB = 1 << 20
CURSOR = "/v1/topics/t/cursors/reader"

needs_netcat = pytest.mark.skipif(shutil.which("nc") is None, reason="there is no nc")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def number_of(line: bytes) -> int:
    """The number at the beginning of a delivered value."""
    kind, topic, value = line.split(b"|", 2)
    assert (kind, topic) == (b"MESSAGE", b"t"), line
    return int(value.split(b" ")[0])


def subscribed(
    broker: BrokerProcess, line: bytes = b"SUBSCRIBE|t|reader", receive_buffer_bytes: int | None = None
) -> TextClient:
    client = broker.connect(receive_buffer_bytes=receive_buffer_bytes)
    assert client.ask(line) == SUBACK
    return client


def publish(client: TextClient, values: list[bytes]) -> None:
    """All at once, while the acknowledgements are read."""
    sending = threading.Thread(target=client.send, args=(publishes("t", values),))
    sending.start()
    assert client.lines(len(values)) == [PUBACK] * len(values)
    sending.join(60)


# --- netcat -----------------------------------------------------------------------------------------


@needs_netcat
def test_anybody_can_speak_it_with_netcat(data: Path) -> None:
    with BrokerProcess(data) as broker:
        host, port = broker.text_address
        said = b"PUBLISH|t|from a shell\nping\nPUBLISH_ID|1|t|and again\nNONSENSE\n"
        done = subprocess.run(["nc", "-N", host, str(port)], input=said, capture_output=True, timeout=20, check=True)
        lines = done.stdout.splitlines()
        assert lines[:4] == [CONNACK, PUBACK, b"PONG", PUBACK]
        assert lines[4].startswith(b"ERROR|bad_command|") and len(lines) == 5
        assert broker.stored_values("t") == [b"from a shell", b"and again"]
        subscriber = subprocess.Popen(["nc", host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert subscriber.stdin is not None and subscriber.stdout is not None
            subscriber.stdin.write(b"SUBSCRIBE|t|reader\n")
            subscriber.stdin.flush()
            assert [subscriber.stdout.readline().strip() for _ in range(2)] == [CONNACK, SUBACK]
            broker.publish_http("t", b"one", b"two")
            assert [subscriber.stdout.readline() for _ in range(2)] == [b"MESSAGE|t|one\n", b"MESSAGE|t|two\n"]
            wait_until(lambda: broker.json("GET", CURSOR)["lag"] == 0, "the subscription remembers what it delivered")
        finally:
            subscriber.kill()
            subscriber.communicate()


# --- stops and kills --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "sync"), [("terminate", "group"), ("kill", "group"), pytest.param("kill", "none", marks=pytest.mark.night)]
)
def test_named_reader_loses_nothing_over_restarts_and_gets_again_only_what_was_not_confirmed(
    data: Path, end: str, sync: str
) -> None:
    rolled = dice(f"restarts {end} {sync}")
    published = 0
    seen: list[int] = []
    with BrokerProcess(data, "--sync", sync, text_port=free_port()) as broker:
        subscribed(broker).close()
        for _ in range(scaled(3, 20)):
            confirmed = broker.json("GET", CURSOR)["partitions"][0]["offset"]
            assert confirmed <= len(set(seen)), "the reader stands behind messages it never got"
            with subscribed(broker) as reader, broker.connect() as publisher:
                count = rolled.randrange(50, 400)
                publisher.send(publishes("t", [b"%d" % i for i in range(published, published + count)]))
                publisher.lines(rolled.randrange(1, count))
                getattr(broker, end)()
                # What came before the end is here, and so are the answers.
                again = [number_of(line) for line in reader.rest() if not line.startswith(b"ERROR|")]
            assert again == list(range(confirmed, confirmed + len(again))), "out of order, or not where it stood"
            seen += again
            broker.restart()
            published = len(broker.stored_values("t"))
        with subscribed(broker) as reader:
            while max(seen, default=-1) < published - 1:
                seen.append(number_of(reader.line()))
        assert sorted(set(seen)) == list(range(published))


def test_named_reader_that_confirmed_everything_gets_nothing_twice_after_a_restart(data: Path) -> None:
    with BrokerProcess(data) as broker:
        for turn, end in enumerate((broker.terminate, broker.kill, broker.terminate)):
            numbers = list(range(100 * turn, 100 * turn + 100))
            with subscribed(broker) as reader:
                with broker.connect() as publisher:
                    publish(publisher, [b"%d" % number for number in numbers])
                assert [number_of(line) for line in reader.lines(100)] == numbers
                wait_until(lambda: broker.json("GET", CURSOR)["lag"] == 0, "what was delivered is noted")
            end()
            broker.restart()


@pytest.mark.parametrize(
    ("loop", "ending"),
    [
        ("uvloop", "reset"),
        ("asyncio", "close"),
        pytest.param("uvloop", "close", marks=pytest.mark.night),
        pytest.param("asyncio", "reset", marks=pytest.mark.night),
    ],
)
def test_subscriber_that_is_cut_off_gets_everything_its_machine_did_not_take(
    data: Path, loop: str, ending: str
) -> None:
    """Bytes that waited in the broker, or on the way, when the connection broke were not delivered."""
    rolled = dice(f"cut off {loop} {ending}")
    total = scaled(6_000, 60_000)
    with BrokerProcess(data, environment={"HOLDFAST_LOOP": loop}) as broker:
        subscribed(broker).close()
        with broker.connect() as publisher:
            publish(publisher, [b"%d " % i + b"x" * 200 for i in range(total)])
        taken_up_to = 0
        for _ in range(scaled(6, 30)):
            client = subscribed(broker, receive_buffer_bytes=rolled.choice([4_096, 20_000, 100_000]))
            first = number_of(client.line())
            assert first <= taken_up_to, f"messages {taken_up_to} to {first - 1} were never delivered"
            client.lines(rolled.choice([0, 5, 200]))
            # It stops reading: its machine's buffer fills, then the broker's. Wait until nothing moves any more.
            held = -1
            while held != client.waiting_bytes():
                held = client.waiting_bytes()
                time.sleep(0.1)
            # What this machine took counts as delivered, and nothing beyond it.
            taken_up_to = max(taken_up_to, number_of(client.peek_lines()[-1]) + 1)
            client.reset() if ending == "reset" else client.close()
            time.sleep(0.05)
        with subscribed(broker) as client:
            numbers = [number_of(client.line())]
            assert numbers[0] <= taken_up_to, f"messages {taken_up_to} to {numbers[0] - 1} were never delivered"
            while numbers[-1] < total - 1:
                numbers.append(number_of(client.line()))
            assert numbers == list(range(numbers[0], total))


# --- memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.night)])
def test_publisher_that_never_reads_its_acknowledgements_is_stopped_and_costs_little(data: Path, loop: str) -> None:
    with BrokerProcess(data, environment={"HOLDFAST_LOOP": loop}) as broker, broker.connect() as other:
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
            assert [other.ask(b"PUBLISH|other|%d" % i) for i in range(20)] == [PUBACK] * 20
            grown = broker.resident_bytes() - before
            assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB for one client that does not read"
            # If it reads after all, everything it sent whole is answered.
            rude.socket.settimeout(20)
            rude.half_close()
            answers = rude.rest()
        assert set(answers) <= {PUBACK}
        assert len(answers) <= len(broker.stored_values("t"))


@pytest.mark.parametrize(
    ("count", "value_bytes"), [(20_000, 1_000), pytest.param(200_000, 60, marks=pytest.mark.night)]
)
def test_messages_flow_past_100_stalled_subscribers_in_little_memory(data: Path, count: int, value_bytes: int) -> None:
    values = [b"%d " % i + b"v" * value_bytes for i in range(count)]
    with BrokerProcess(data) as broker, broker.connect() as publisher, ExitStack() as stack:
        # Every other one is durable, which must not make a difference.
        lines = [b"SUBSCRIBE|t" if number % 2 else b"SUBSCRIBE|t|s%d" % number for number in range(100)]
        stalled = [stack.enter_context(subscribed(broker, line, 4_096)) for line in lines]
        reader = stack.enter_context(subscribed(broker, b"SUBSCRIBE|t"))
        before = broker.resident_bytes()
        got: list[bytes] = []
        reading = threading.Thread(target=lambda: got.extend(reader.lines(count)))
        reading.start()
        for start in range(0, count, 20_000):
            publish(publisher, values[start : start + 20_000])
        reading.join(60)
        grown = broker.resident_bytes() - before
        assert got == [b"MESSAGE|t|" + value for value in values], "the subscriber that reads missed something"
        # Each may hold its own buffer (256 KiB and what was read at once); the stream itself is 20 MB.
        assert grown < 140 * MIB, f"{grown / MIB:.0f} MiB for 100 stalled subscribers"
        for client in stalled[:3]:
            assert client.line() == b"MESSAGE|t|" + values[0], "a stalled subscriber was given up"
        for client in (*stalled, reader):
            client.close()
        wait_until(lambda: broker.metric("holdfast_text_connections") == 1, "stalled connections are let go")


@contextmanager
def files_allowed(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"this process may only open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_thousand_connections_are_served_and_each_takes_little_memory(data: Path) -> None:
    count = 2_000
    with files_allowed(3 * count), BrokerProcess(data) as broker, ExitStack() as stack:
        before = broker.resident_bytes()
        clients = [stack.enter_context(broker.connect()) for _ in range(count)]
        for number, client in enumerate(clients):
            client.say(b"SUBSCRIBE|t" if number % 2 else b"PING")
        for number, client in enumerate(clients):
            client.expect(SUBACK if number % 2 else b"PONG")
        assert clients[0].ask(b"PUBLISH|t|to all of you") == PUBACK
        for client in clients[1::2]:
            client.expect(b"MESSAGE|t|to all of you")
        grown = broker.resident_bytes() - before
        assert grown < count * 40_000, f"{grown / count:.0f} bytes for each connection"
