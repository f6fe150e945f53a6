"""A broker that is stopped or killed and started again, and one that many stalled readers try to fill up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import dice, scaled
from testkit.text_client import PUBACK, SUBACK, TextClient, publishes
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

MIB = 1 << 20
CURSOR = "/v1/topics/t/cursors/reader"


def numbers_of(lines: list[bytes]) -> list[int]:
    deliveries = [line for line in lines if line.startswith(b"MESSAGE|t|")]
    assert len(deliveries) == len(lines), [line for line in lines if line not in deliveries][:3]
    return [int(line.split(b"|", 2)[2]) for line in deliveries]


@pytest.mark.parametrize(("end", "sync"), [("terminate", "group"), ("kill", "group"), ("kill", "none")])
def test_named_reader_loses_nothing_over_restarts_and_gets_again_only_what_was_not_confirmed(
    data: Path, end: str, sync: str
) -> None:
    rolled = dice(f"restarts {end} {sync}")
    text_port = free_port()
    published = 0
    seen: list[int] = []
    with BrokerProcess(data, "--sync", sync, text_port=text_port) as broker:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        for _ in range(scaled(3, 20)):
            confirmed = broker.json("GET", CURSOR)["partitions"][0]["offset"]
            assert confirmed <= len(set(seen)), "the reader stands behind messages it never got"
            with broker.connect() as reader, broker.connect() as publisher:
                assert reader.ask(b"SUBSCRIBE|t|reader") == SUBACK
                count = rolled.randrange(50, 400)
                publisher.send(publishes("t", [b"%d" % i for i in range(published, published + count)]))
                publisher.lines(rolled.randrange(1, count))
                getattr(broker, end)()
                # What came before the end is here, and so are the answers.
                again = [line for line in reader.rest() if not line.startswith(b"ERROR|")]
            if again:
                numbers = numbers_of(again)
                assert numbers == list(range(confirmed, confirmed + len(numbers))), (
                    "out of order, or not where it stood"
                )
                seen += numbers
            broker.restart()
            published = len(broker.stored_values("t"))
        with broker.connect() as reader:
            assert reader.ask(b"SUBSCRIBE|t|reader") == SUBACK
            while max(seen, default=-1) < published - 1:
                seen += numbers_of([reader.line()])
        assert sorted(set(seen)) == list(range(published))


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_named_reader_that_confirmed_everything_gets_nothing_twice_after_a_restart(data: Path, end: str) -> None:
    with BrokerProcess(data) as broker:
        for turn in range(2):
            with broker.connect() as reader:
                assert reader.ask(b"SUBSCRIBE|t|reader") == SUBACK
                with broker.connect() as publisher:
                    publisher.send(publishes("t", [b"%d" % i for i in range(100 * turn, 100 * turn + 100)]))
                    assert publisher.lines(100) == [PUBACK] * 100
                assert numbers_of(reader.lines(100)) == list(range(100 * turn, 100 * turn + 100))
                wait_until(lambda: broker.json("GET", CURSOR)["lag"] == 0, "what was delivered is noted")
            getattr(broker, end)()
            broker.restart()


def test_200000_messages_flow_past_100_stalled_subscribers_in_little_memory(data: Path) -> None:
    count, chunk = 200_000, 20_000
    value = b"v" * 60
    stalled: list[TextClient] = []
    with BrokerProcess(data) as broker, broker.connect() as publisher, broker.connect() as healthy:
        try:
            for _ in range(100):
                stalled.append(broker.connect(receive_buffer_bytes=4096))
                assert stalled[-1].ask(b"SUBSCRIBE|t") == SUBACK
            assert healthy.ask(b"SUBSCRIBE|t") == SUBACK
            got: list[int] = []
            failed: list[BaseException] = []

            def read() -> None:
                try:
                    stream = healthy.socket.makefile("rb", buffering=1 << 20)
                    for _ in range(count):
                        got.append(int(stream.readline()[10:17]))
                except BaseException as error:  # noqa: BLE001 - handed to the test, which raises it
                    failed.append(error)

            reading = threading.Thread(target=read)
            reading.start()
            largest = 0
            acknowledged = publisher.socket.makefile("rb", buffering=1 << 20)
            for first in range(0, count, chunk):
                sending = threading.Thread(
                    target=publisher.send,
                    args=(publishes("t", [b"%07d%b" % (i, value) for i in range(first, first + chunk)]),),
                )
                sending.start()
                for _ in range(chunk):
                    assert acknowledged.readline() == PUBACK + b"\n"
                sending.join(60)
                largest = max(largest, broker.resident_bytes())
            reading.join(60)
            assert not failed and got == list(range(count)), "the healthy subscriber missed something"
            assert max(largest, broker.resident_bytes()) < 200 * MIB, f"{largest / MIB:.0f} MiB"
            for client in stalled[:3]:
                assert client.line() == b"MESSAGE|t|0000000" + value
        finally:
            for client in stalled:
                client.close()
