"""Stopping answers everything it received; starting copes with whatever it finds."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from testkit.campaign import Campaign
from testkit.flood import Flood, Sent
from testkit.logs import flip, frame_positions
from testkit.processes import BrokerProcess
from testkit.sizes import LONG, dice, scaled
from testkit.text_client import PUBACK, SUBACK, TextClient
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

# --- stopping -----------------------------------------------------------------------------------------


def test_every_line_that_was_received_is_answered_before_the_broker_leaves(data: Path) -> None:
    with BrokerProcess(data) as broker:
        campaign = Campaign(broker, "drain", topics=("t",))
        for turn in range(scaled(2, 20)):
            # From its next start on with the other event loop, which has its own way of closing connections.
            broker.environment["HOLDFAST_LOOP"] = ("asyncio", "uvloop")[turn % 2]
            flood = campaign.round(broker.terminate, answers=(500,))
            refused = [answer for answer in flood.answers if answer != PUBACK]
            assert all(answer.startswith(b"ERROR|shutting_down|") for answer in refused)
            assert campaign.acknowledged == campaign.stored, "stored and acknowledged are not the same"


def test_lines_sent_before_the_stop_are_all_answered(data: Path) -> None:
    """No line is in flight when the signal comes: each one has an answer, whichever it is."""
    broker = BrokerProcess(data)
    for turn in range(scaled(2, 20)):
        with broker, broker.connect() as client:
            count = 3_000
            client.send(b"".join(b"PUBLISH|t|%d/%d\n" % (turn, i) for i in range(count)) + b"PING\n")
            client.expect(PUBACK)  # it has begun to read them
            broker.terminate()
            answers = [PUBACK, *client.rest()]
            assert answers[-1] == b"PONG", f"{count + 1 - len(answers)} lines were never answered"
            assert len(answers) == count + 1
            refused = [answer for answer in answers if answer.startswith(b"ERROR|shutting_down|")]
            assert answers.count(PUBACK) + len(refused) == count


def test_broker_leaves_in_time_though_a_client_does_not_read(data: Path) -> None:
    flags = ("--drain-ms", "500")
    with (
        BrokerProcess(data, *flags) as broker,
        broker.connect(receive_buffer_bytes=4_096) as rude,
        broker.connect() as publisher,
    ):
        assert rude.ask(b"SUBSCRIBE|t|rude") == SUBACK
        publisher.send(b"".join(b"PUBLISH|t|%d %b\n" % (i, b"x" * 1_000) for i in range(3_000)))
        assert publisher.lines(3_000) == [PUBACK] * 3_000
        broker.terminate()  # waits for it, and not as long as somebody who does not read would take


# --- starting -----------------------------------------------------------------------------------------


def filled(broker: BrokerProcess) -> dict[str, list[bytes]]:
    expected: dict[str, list[bytes]] = {}
    broker.json("POST", "/v1/topics", {"topic": "made", "partitions": 3, "retention_ms": 10**10})
    with broker.connect() as client:
        for topic in ("one", "two", "three"):
            expected[topic] = [b"%d " % i + b"." * 300 for i in range(60)]
            client.send(b"".join(b"PUBLISH|%b|%b\n" % (topic.encode(), value) for value in expected[topic]))
            assert client.lines(60) == [PUBACK] * 60
    return expected


def check(broker: BrokerProcess, expected: dict[str, list[bytes]]) -> None:
    topics = broker.topics()
    assert set(topics) >= {*expected, "made"}, "topics are missing"
    assert len(topics["made"]["partitions"]) == 3 and topics["made"]["retention_ms"] == 10**10
    for topic, values in expected.items():
        assert broker.stored_values(topic) == values


def damage_state(state: Path, damage: str, rolled: random.Random) -> None:
    for suffix in ("-wal", "-shm"):
        state.with_name(state.name + suffix).unlink(missing_ok=True)
    if damage == "garbage":
        state.write_bytes(rolled.randbytes(20_000))
    elif damage == "flipped bits":
        # Where SQLite can notice: it has no checksums, and a flipped bit in a value is just another value.
        # Not in the version either: another version's file is refused in words, not taken for damaged.
        pages = range(4096, state.stat().st_size, 4096)
        spots = [*range(60), *range(64, 4096), *(page + i for page in pages for i in range(12))]
        for spot in rolled.sample(spots, rolled.choice([1, 5, 40])):
            flip(state, spot, 1 << rolled.randrange(8))
    elif damage == "a later SQLite":
        flip(state, 18, 4)  # in the version that may write it
    elif damage == "cut":
        os.truncate(state, 700)
    else:
        state.unlink()


def test_broker_starts_with_a_damaged_state_file_and_has_all_topics_and_messages(data: Path) -> None:
    rolled = dice("damaged state")
    with BrokerProcess(data) as broker:
        expected = filled(broker)
        for damage in ("garbage", "flipped bits", "a later SQLite", "cut", "missing"):
            for end in (broker.terminate, broker.kill) if LONG else (rolled.choice([broker.terminate, broker.kill]),):
                print(damage, end.__name__)
                end()
                damage_state(data / "state.sqlite", damage, rolled)
                broker.restart()
                check(broker, expected)
        broker.terminate()
        broker.restart()
        check(broker, expected)


def test_broker_starts_with_damaged_indexes_and_has_all_messages(data: Path) -> None:
    rolled = dice("indexes")
    broker = BrokerProcess(data, "--segment-bytes", "5000")
    with broker:
        expected = filled(broker)
        for damage in ("missing", "garbage", "flipped", "cut"):
            broker.terminate()
            files = sorted(data.glob("topics/*/*/*.index"))
            assert files
            for path in files:
                if damage == "missing":
                    path.unlink()
                elif damage == "garbage":
                    path.write_bytes(rolled.randbytes(300))
                elif damage == "flipped":
                    flip(path, rolled.randrange(path.stat().st_size))
                else:
                    os.truncate(path, path.stat().st_size // 2)
            broker.restart()
            check(broker, expected)


def test_broker_with_a_damaged_message_serves_all_others_to_everybody(data: Path) -> None:
    broker = BrokerProcess(data)
    with broker:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        with broker.connect() as client:
            for i in range(30):
                assert client.ask(b"PUBLISH_ID|%d|t|%d" % (i, i)) == PUBACK
        broker.terminate()
        (file,) = data.glob("topics/t/0/*.log")
        flip(file, frame_positions(file)[11][0] + 4)
        broker.restart()
        assert "damaged_batch" in broker.log()
        assert broker.topics()["t"]["partitions"][0]["damaged_batches"] == 1
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
            assert client.lines(29) == [b"MESSAGE|t|%d" % i for i in range(30) if i != 11]
            # The broker's loop must still turn: a reader sent in circles would stop it for everybody.
            assert client.ask(b"PING") == b"PONG"
            assert client.ask(b"PUBLISH_ID|30|t|30") in (PUBACK, b"MESSAGE|t|30")
        status, body = broker.call("GET", "/v1/topics/t/partitions/0/messages?offset=11")
        assert status == 500 and b"damaged_data" in body and b'"next_offset":12' in body.replace(b" ", b"")


def test_second_broker_on_the_same_data_is_refused_and_does_no_harm(data: Path) -> None:
    with BrokerProcess(data) as first:
        with first.connect() as client:
            assert client.ask(b"PUBLISH|t|1") == PUBACK
        second = BrokerProcess(data)
        with pytest.raises(AssertionError, match="in use by another broker"):
            second.start()
        with first.connect() as client:
            assert client.ask(b"PUBLISH|t|2") == PUBACK
        assert first.stored_values("t") == [b"1", b"2"]


def test_state_file_can_be_looked_at_while_the_broker_runs(data: Path) -> None:
    """A person with the sqlite3 shell must not make publishes or cursors fail."""
    with BrokerProcess(data) as broker, broker.connect() as client:
        assert client.ask(b"PUBLISH|t|1") == PUBACK
        connection = sqlite3.connect(data / "state.sqlite", isolation_level=None)
        try:
            # The file follows the control log a moment later.
            wait_until(lambda: connection.execute("SELECT name FROM topics").fetchall(), "the topic is in the file")
            connection.execute("BEGIN")
            assert connection.execute("SELECT name FROM topics").fetchall() == [("t",)]
            assert client.ask(b"PUBLISH|u|1") == PUBACK
            broker.json("PUT", "/v1/topics/t/cursors/c", {"to": "earliest"})
        finally:
            connection.close()


def test_copy_of_the_directory_of_a_stopped_broker_is_a_backup(data: Path, tmp_path: Path) -> None:
    with BrokerProcess(data) as broker:
        expected = filled(broker)
        broker.terminate()
    shutil.copytree(data, tmp_path / "copy")
    with BrokerProcess(tmp_path / "copy") as broker:
        check(broker, expected)


# --- durable subscriptions over restarts ----------------------------------------------------------------


TURNS = scaled(3, 40)


def test_durable_subscription_loses_nothing_over_disconnects_stops_and_kills(data: Path) -> None:
    rolled = dice("durable over restarts")
    broker = BrokerProcess(data, "--segment-bytes", "50000", text_port=free_port(), http_port=free_port())
    seen: list[int] = []
    published = 0
    with broker:
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
        for turn in range(TURNS):
            ending = ["disconnect", "stop", "kill"][turn % 3]
            subscriber = broker.connect()
            assert subscriber.ask(b"SUBSCRIBE|t|reader") == SUBACK
            flood = Flood(broker, (Sent("t", b"%d" % i) for i in range(published, published + 4_000)), window=500)
            got = [number_of(subscriber) for _ in range(rolled.choice([1, 200, 1_000]))]
            if ending == "disconnect":
                flood.wait_for(lambda flood=flood: len(flood.answers) == 4_000)  # type: ignore[misc]
                # It says that it wants no more, and reads what was on its way: all of that was delivered.
                subscriber.say(b"UNSUBSCRIBE|t")
                while (line := subscriber.line()).startswith(b"MESSAGE|"):
                    got.append(int(line.split(b"|")[2]))
                subscriber.close()
                flood.stop_sending()
                flood.half_close()
            else:
                broker.terminate() if ending == "stop" else broker.kill()
                got += [int(line.split(b"|")[2]) for line in subscriber.rest() if line.startswith(b"MESSAGE|")]
                subscriber.close()
                broker.restart()
            flood.end()
            seen += got
            published = len(broker.stored_values("t"))
            assert len(flood.acknowledged) <= published
        with broker.connect() as client:
            assert client.ask(b"SUBSCRIBE|t|reader") == SUBACK
            while not seen or seen[-1] != published - 1:
                seen.append(number_of(client))
    assert set(seen) == set(range(published)), f"never delivered: {sorted(set(range(published)) - set(seen))[:20]}"
    # At least once, and in order: going back only happens where the connection ended.
    steps_back = sum(later < earlier for earlier, later in itertools.pairwise(seen))
    assert steps_back <= TURNS


def number_of(client: TextClient) -> int:
    kind, _, payload = client.line().split(b"|", 2)
    assert kind == b"MESSAGE"
    return int(payload)


def test_cursor_over_http_stands_where_it_stood_after_a_kill(data: Path) -> None:
    broker = BrokerProcess(data)
    with broker:
        broker.publish_http("t", *[b"%d" % i for i in range(10)])
        path = "/v1/topics/t/cursors/c"
        assert len(broker.json("GET", f"{path}/messages?max=4")["messages"]) == 4
        broker.json("POST", f"{path}/ack", {"offsets": {"0": 4}})
        broker.kill()
        broker.restart()
        assert broker.json("GET", path)["partitions"][0]["offset"] == 4
        wait_until(lambda: broker.call("GET", "/ready")[0] == 200, "it is ready")
