"""A disk that is full, or whose syncs fail, under a running broker: refusals instead of false promises."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from testkit.flood import Flood, Sent
from testkit.mounts import fill, small_disk
from testkit.processes import BrokerProcess, traced
from testkit.sizes import scaled
from testkit.text_client import PUBACK, SUBACK
from testkit.wait import wait_until

MIB = 1 << 20


@pytest.mark.root
def test_full_disk_refuses_publishes_serves_readers_and_recovers_without_a_restart(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 12 * MIB) as place:
        ballast = place / "ballast"
        ballast.write_bytes(bytes(4 * MIB))
        broker = BrokerProcess(place / "data", "--segment-bytes", "1000000", files=tmp_path)
        value = b"v" * 20_000
        with broker, broker.connect() as client, broker.connect() as subscriber:
            assert subscriber.ask(b"SUBSCRIBE|t") == SUBACK
            acknowledged = 0
            while (answer := client.ask(b"PUBLISH|t|%d " % acknowledged + value)) == PUBACK:
                acknowledged += 1
                assert subscriber.line().startswith(b"MESSAGE|t|%d " % (acknowledged - 1))
            assert answer.startswith(b"ERROR|disk_full|"), answer
            assert acknowledged > 100
            for _ in range(3):
                client.say(b"PUBLISH|t|" + value, b"PUBLISH_ID|refused|t|" + value)
                client.expect_error("disk_full")
                client.expect_error("disk_full")
            # Reading goes on, old and new readers alike, and the broker says what is wrong.
            expected = [b"%d " % i + value for i in range(acknowledged)]
            assert broker.stored_values("t") == expected
            status, body = broker.call("GET", "/ready")
            assert status == 503 and b"full" in body
            assert subscriber.is_quiet(0.1)
            ballast.unlink()
            assert client.ask(b"PUBLISH_ID|refused|t|" + value) == PUBACK, "publishing does not go on with room"
            expected.append(value)
            subscriber.expect(b"MESSAGE|t|" + value)
            assert broker.call("GET", "/ready")[0] == 200
            broker.terminate()
            broker.restart()
            assert broker.stored_values("t") == expected


@pytest.mark.root
def test_pipelined_publishes_into_a_full_disk_keep_what_was_acknowledged(tmp_path: Path) -> None:
    """In one chunk some fit and some do not: the answers say which, and a kill does not change it."""
    with small_disk(tmp_path / "small", 6 * MIB) as place:
        broker = BrokerProcess(place / "data", "--segment-bytes", "500000", files=tmp_path)
        with broker:
            with broker.connect() as client:
                assert client.ask(b"PUBLISH|t|first") == PUBACK
            ballast = fill(place, 2 * MIB)
            lines = (Sent("t", b"%d " % i + b"x" * 3_000) for i in range(scaled(2_000, 10_000)))
            flood = Flood(broker, lines, window=200)
            flood.wait_for(lambda: any(answer.startswith(b"ERROR|disk_full|") for answer in flood.answers[-100:]))
            flood.stop_sending()
            broker.kill()
            flood.end()
            promised = [each.value for each in flood.acknowledged]
            assert len(promised) > 100
            ballast.unlink()
            broker.restart()
            stored = broker.stored_values("t")[1:]
            positions = {value: i for i, value in enumerate(stored)}
            assert len(positions) == len(stored), "a message is there twice"
            assert all(value in positions for value in promised), "an acknowledged message is lost"
            order = [positions[value] for value in promised]
            assert order == sorted(order)
            with broker.connect() as client:
                assert client.ask(b"PUBLISH|t|after") == PUBACK


def needs_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("there is no strace to make a real sync fail with")
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, timeout=20, check=False)
    if probe.returncode != 0:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode().strip()}")


@pytest.mark.parametrize("topics", [1, 8], ids=["one topic", "many topics"])
def test_failed_sync_stops_all_promises_and_reading_goes_on(data: Path, topics: int) -> None:
    """fdatasync fails for real, once: from then on nothing is acknowledged, whatever later syncs say."""
    needs_strace()
    calls = "fdatasync" if topics == 1 else "fdatasync,syncfs"
    # Calls are counted by thread. It shall be a sync of messages that fails, and not one of those that make a topic.
    failing, rounds = (12, 60) if topics == 1 else (100, 400)
    with traced(data, f"{calls}:error=EIO:when={failing}") as broker:
        acknowledged: dict[str, list[bytes]] = {f"t{n}": [] for n in range(topics)}
        refused: list[bytes] = []
        with broker.connect() as client:
            for i in range(rounds):
                chunk = [b"PUBLISH|t%d|%d" % (n, i) for n in range(topics)]
                client.say(*chunk)
                for number, answer in enumerate(client.lines(topics)):
                    if answer == PUBACK:
                        assert not refused, "something was acknowledged after a sync had failed"
                        acknowledged[f"t{number}"].append(b"%d" % i)
                    else:
                        assert answer.startswith(b"ERROR|storage_failed|"), answer
                        refused.append(answer)
            assert refused and acknowledged["t0"]
            assert client.ask(b"PING") == b"PONG"
        for topic, values in acknowledged.items():
            assert broker.stored_values(topic) == values, "readers see what was never synced"
        status, body = broker.call("GET", "/ready")
        assert status == 503 and b"sync" in body
        assert broker.is_running
        broker.kill()
    with BrokerProcess(data) as broker:
        for topic, values in acknowledged.items():
            assert broker.stored_values(topic)[: len(values)] == values, "acknowledged messages are lost"
        with broker.connect() as client:
            assert client.ask(b"PUBLISH|t0|works again") == PUBACK


def test_failed_sync_in_a_flood_never_acknowledges_what_it_covered(data: Path) -> None:
    needs_strace()
    with traced(data, "fdatasync:error=EIO:when=20") as broker:
        flood = Flood(broker, (Sent("t", b"%d" % i) for i in range(100_000)), window=300)
        flood.wait_for(lambda: bool(flood.answers) and flood.answers[-1].startswith(b"ERROR|storage_failed|"))
        flood.stop_sending()
        acknowledged = len(flood.acknowledged)
        assert flood.answers[:acknowledged] == [PUBACK] * acknowledged, "an acknowledgement came after a refusal"
        stored = broker.stored_values("t")
        assert stored == [b"%d" % i for i in range(acknowledged)], "visible is not the same as acknowledged"
        broker.kill()
        flood.end()
    with BrokerProcess(data) as broker:
        assert broker.stored_values("t")[:acknowledged] == [b"%d" % i for i in range(acknowledged)]


@pytest.mark.root
def test_retention_frees_a_full_disk_while_the_broker_runs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 4 * MIB) as place:
        flags = ["--segment-bytes", "200000", "--retention-ms", "1500", "--retention-check-ms", "100"]
        broker = BrokerProcess(place / "data", *flags, files=tmp_path)
        with broker, broker.connect() as client:
            acknowledged = 0
            line = b"PUBLISH|t|" + b"v" * 20_000
            while (answer := client.ask(line)) == PUBACK:
                acknowledged += 1
                if acknowledged > 20_000:
                    pytest.skip("this disk does not fill up faster than messages expire")
            assert answer.startswith(b"ERROR|disk_full|")
            wait_until(lambda: client.ask(line) == PUBACK, "retention makes room again")
