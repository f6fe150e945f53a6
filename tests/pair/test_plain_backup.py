"""A backup of somebody else's primary keeps what it is handed, and goes on with what was not called delivered."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK, SUBACK, TextClient
from testkit.wait import wait_until

from tests.pair.partners import HEARTBEAT_MS, MISSES, Partner, plain, status


def replicate(client: TextClient, *lines: bytes) -> None:
    """Hand lines over, and wait until the last number among them is confirmed."""
    last = lines[-1].split(b"|")[2]
    client.say(*lines)
    while client.line() != b"REPLICATED|" + last:
        pass


def wait_until_met(broker: BrokerProcess) -> None:
    wait_until(lambda: bool(status(broker)["partner_is_up"]), "the primary answers")


def test_backup_keeps_replicas_through_a_kill_and_delivers_exactly_what_was_not_marked(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker:
        with broker.connect() as client:
            replicate(client, *(b"REPLICATE|m%d|%d|t|value | %d" % (n, n, n) for n in range(1, 7)))
        broker.kill()
        broker.restart()
        assert status(broker)["replicas_held"] == 6
        with broker.connect() as client, broker.connect() as subscriber:
            subscriber.say(b"SUBSCRIBE_ID|t")
            subscriber.expect(SUBACK)
            replicate(client, b"REPLICATE|m7|7|t|value | 7", b"REPLICATE|m7|7|t|value | 7")
            # What was not confirmed before the restart comes again, be it twice.
            replicate(
                client, b"REPLICATE|m5|5|t|value | 5", b"REPLICATE|m6|6|t|value | 6", b"REPLICATE|m6|6|t|value | 6"
            )
            assert status(broker)["replicas_held"] == 7
            client.say(b"MARK_DELIVERED|m1|1", b"MARK_DELIVERED|m4|4", b"MARK_DELIVERED|m2|2", b"MARK_DELIVERED|??|9")
            wait_until(lambda: broker.stored_values("t") == [b"value | 1", b"value | 2"], "they are history")
            client.say(b"PUBLISH|t|no")
            assert primary.address in client.expect_error("unavailable").decode()
            assert status(broker)["role"] == "backup" and subscriber.peek_lines() == [], "the primary delivers"
            primary.close()
            for number in (3, 5, 6, 7):
                subscriber.expect(b"MESSAGE_ID|m%d|t|value | %d" % (number, number))
            wait_until(lambda: status(broker)["role"] == "primary", "it takes over")
            wait_until(lambda: client.ask(b"PUBLISH_ID|m5|t|value | 5") == PUBACK, "it serves")
            client.say(b"PUBLISH_ID|mine|t|mine", b"REPLICATE|m9|9|t|late", b"MARK_DELIVERED|m9|9")
            client.expect(PUBACK)
            client.expect_error("replaced")
            client.expect_error("replaced")
            subscriber.expect(b"MESSAGE_ID|mine|t|mine")
        found = status(broker)
        assert (found["role"], found["is_alone"], found["failovers"]) == ("primary", True, 1)
        # It stays what it has become, and puts nothing into the topics a second time.
        broker.kill()
        broker.restart()
        wait_until(lambda: status(broker)["role"] == "primary", "it is in charge again")
        values = [b"value | %d" % n for n in (1, 2, 4, 3, 5, 6, 7)]
        assert broker.stored_values("t") == [*values, b"mine"]


def test_replicas_are_delivered_in_the_order_of_their_numbers_and_not_of_their_arrival(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker:
        wait_until_met(broker)
        with broker.connect() as client:
            replicate(client, *(b"REPLICATE|old%d|%d|t|old %d" % (n, n, n) for n in (3, 1, 5, 2, 4)))
            client.say(b"MARK_DELIVERED|old2|2", b"PING")
            client.expect(b"PONG")
        broker.kill()
        broker.restart()
        with broker.connect() as client, broker.connect() as subscriber:
            subscriber.say(b"SUBSCRIBE|t")
            subscriber.expect(SUBACK)
            # What was marked before the restart may come again, since the marks of single messages are not kept.
            client.say(b"MARK_DELIVERED|old2|2")
            # The primary has begun anew, and so have its numbers.
            replicate(client, *(b"REPLICATE|new%d|%d|t|new %d" % (n, n, n) for n in (2, 1, 3)))
            replicate(client, b"REPLICATE|old5|5|t|old 5")
            assert status(broker)["replicas_held"] == 8
            primary.close()
            for value in (b"old 1", b"old 3", b"old 4", b"old 5", b"new 1", b"new 2", b"new 3"):
                subscriber.expect(b"MESSAGE|t|" + value)
            wait_until(lambda: status(broker)["role"] == "primary", "it takes over")
        broker.kill()
        broker.restart()
        wait_until(lambda: status(broker)["role"] == "primary", "it is in charge again")
        assert broker.stored_values("t") == [
            b"old 2",
            *(b"old %d" % n for n in (1, 3, 4, 5)),
            b"new 1",
            b"new 2",
            b"new 3",
        ]


def test_one_id_in_two_topics_is_marked_where_its_number_says(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker:
        wait_until_met(broker)
        with broker.connect() as client:
            replicate(client, b"REPLICATE|x|1|a|in a", b"REPLICATE|x|2|b|in b")
            client.say(b"MARK_DELIVERED|x|2", b"MARK_DELIVERED|x|2", b"PING")
            client.expect(b"PONG")
            with broker.connect() as at_a, broker.connect() as at_b:
                for subscriber, topic in ((at_a, b"a"), (at_b, b"b")):
                    subscriber.say(b"SUBSCRIBE|" + topic)
                    subscriber.expect(SUBACK)
                primary.close()
                at_a.expect(b"MESSAGE|a|in a")
                wait_until(lambda: status(broker)["role"] == "primary", "it takes over")
                wait_until(lambda: client.ask(b"PUBLISH|b|new") == PUBACK, "it serves")
                at_b.expect(b"MESSAGE|b|new")


def test_backup_waits_for_its_misses_before_it_replaces_a_silent_primary(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker:
        wait_until_met(broker)
        silent_s = time.monotonic()
        primary.is_silent = True
        wait_until(lambda: status(broker)["role"] == "primary", "it takes over")
        assert time.monotonic() - silent_s > HEARTBEAT_MS * (MISSES - 1) / 1000


def test_backup_of_the_bare_form_clears_by_payload(tmp_path: Path) -> None:
    flags = ("--text-dialect", "ack")
    with (
        Partner() as primary,
        plain(tmp_path, "backup", primary.address, *flags) as broker,
        broker.connect(greeted=False) as client,
        broker.connect(greeted=False) as subscriber,
    ):
        wait_until_met(broker)
        subscriber.say(b"SUBSCRIBE|t")
        client.say(b"REPLICATE|t|same", b"REPLICATE|t|1|2|3", b"REPLICATE|t|same")
        client.say(b"CLEAR|t|same", b"CLEAR|t|never came", b"PING")
        client.expect(b"PONG")
        wait_until(lambda: "t" in broker.topics(), "the subscriber is there")
        wait_until(lambda: broker.stored_values("t") == [b"same"], "the first is cleared, and its twin is not")
        primary.close()
        subscriber.expect(b"1|2|3", b"same")


def test_many_replicas_are_confirmed_together_and_pruned(tmp_path: Path) -> None:
    with Partner() as primary, plain(tmp_path, "backup", primary.address) as broker, broker.connect() as client:
        lines = [b"REPLICATE|m%d|%d|t%d|%d" % (n, n, n % 3, n) for n in range(1, 3001)]
        client.say(*lines, *(b"MARK_DELIVERED|m%d|%d" % (n, n) for n in range(1, 3001)))
        answers = 0
        while client.line() != b"REPLICATED|3000":
            answers += 1
        assert answers < 300
        wait_until(lambda: status(broker)["replicas_held"] == 0, "all are marked")
        wait_until(lambda: sum(topic["messages"] for topic in broker.topics().values()) == 3000, "all are history")


WRONG = [
    (b"REPLICATE", "bad_command"),
    (b"REPLICATE|t", "bad_command"),
    (b"REPLICATE|id|1|no\tpath|x", "bad_topic"),
    (b"REPLICATE|id|1||x", "bad_topic"),
    (b"REPLICATE||1|t|x", "bad_command"),
    (b"REPLICATE|x|notanumber|t|p", "bad_command"),
    (b"REPLICATE|t|without id and number", "bad_command"),
    (b"REPLICATE|\xff|1|t|x", "bad_command"),
    (b"REPLICATE|%s|1|t|x" % (b"i" * 300), "bad_id"),
    (b"REPLICATE|id|1|t|%s" % (b"x" * 2000), "too_large"),
    (b"REPLICATE|id|4611686018427387905|t|x", "bad_command"),
    (b"REPLICATE|id|99999999999999999999|t|x", "bad_command"),
    (b"MARK_DELIVERED", "bad_command"),
    (b"MARK_DELIVERED|id", "bad_command"),
    (b"MARK_DELIVERED|id|x", "bad_command"),
    (b"MARK_DELIVERED|id|99999999999999999999", "bad_command"),
    (b"CLEAR|t", "bad_command"),
    (b"ROLE|king|x|1|x|0||0|0|0|0", "bad_command"),
    (b"ROLE|primary|x|99999999999999999999|x|0||0|0|0|0", "bad_command"),
    (b"REPLICATED|1", "bad_command"),
]


def test_what_is_no_packet_for_it_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    flags = ("--message-bytes-max", "1024")
    with Partner() as primary, plain(tmp_path, "backup", primary.address, *flags) as broker, broker.connect() as client:
        # A stranger cannot talk it out of its role.
        client.say(b"ROLE|primary|stranger|9|stranger|8|x|5|5|7|0", b"PING")
        assert client.line().startswith(b"ROLE|backup|") and client.line() == b"PONG"
        client.say(b"REPLICATE|id|8|t|x")
        client.expect_error("not_backup")
        assert status(broker)["epoch"] == 0
        # Nor hand it anything without a number.
        with broker.connect() as another:
            assert another.ask(b"ROLE|primary|token|0||0||0|0|0|0").startswith(b"ROLE|backup|")
            another.say(b"REPLICATE|t|without a number", b"PING")
            another.expect_error("bad_command")
            another.expect(b"PONG")
            another.say(b"REPLICATE|id|0|t|numbers begin with 1", b"PING")
            another.expect_error("not_backup")
            another.expect(b"PONG")
        for line, code in WRONG:
            with broker.connect() as another:
                another.say(line)
                another.expect_error(code)
        with broker.connect() as another:
            another.say(WRONG[2][0])
            another.expect_error("bad_topic")
            # A number that was refused is never confirmed by a later one.
            another.say(b"MARK_DELIVERED|unknown|7", b"REPLICATE|id|2|t|x", b"PING")
            another.expect_error("not_backup")
            another.expect(b"PONG")
        with broker.connect() as another:
            replicate(another, b"REPLICATE|id|3|t|x")
        assert status(broker)["replicas_held"] == 2 and broker.topics() == {}, "kept, though not confirmed"
        assert "AssertionError" not in broker.log()


def test_broker_that_is_no_backup_says_how_it_becomes_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "alone") as broker, broker.connect() as client:
        client.say(b"REPLICATE|id|1|t|x", b"REPLICATE|t|x", b"MARK_DELIVERED|id|1", b"CLEAR|t|x", b"PING")
        for _ in range(4):
            assert "--plain" in client.expect_error("not_backup").decode()
        client.expect(b"PONG")
        assert broker.topics() == {}


def test_backup_without_room_for_another_topic_keeps_replicas_and_takes_over(tmp_path: Path) -> None:
    topics = 80
    with Partner() as primary:
        broker = plain(tmp_path, "backup", primary.address)
        # A quarter of the open files are for topics.
        broker.wrapper = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
        with broker, broker.connect() as client:
            for n in range(1, topics + 1):
                client.say(b"REPLICATE|m%d|%d|topic-%d|v" % (n, n, n), b"MARK_DELIVERED|m%d|%d" % (n, n))
            wait_until(lambda: "no_history" in broker.log(), "there is no room")
            replicate(client, b"REPLICATE|last|%d|topic-1|not delivered" % (topics + 1))
            wait_until(lambda: status(broker)["replicas_held"] == 1, "the rest is history, or none")
            primary.close()
            wait_until(lambda: client.ask(b"PUBLISH|topic-1|mine") == PUBACK, "it takes over and serves")
            assert broker.stored_values("topic-1") == [b"v", b"not delivered", b"mine"]


@pytest.mark.parametrize("dialect", ["standard", "ack"])
def test_a_refused_replica_does_not_cost_those_behind_it_where_the_primary_does_not_listen(
    tmp_path: Path, dialect: str
) -> None:
    with (
        Partner() as primary,
        plain(tmp_path, "backup", primary.address, "--text-dialect", dialect) as broker,
        broker.connect(greeted=dialect == "standard") as client,
    ):
        wait_until_met(broker)
        fields = [b"m%d|%d|" % (n, n) if dialect == "standard" else b"" for n in range(3)]
        client.say(b"REPLICATE|%bno\ttopic|lost" % fields[1], b"REPLICATE|%bt|kept" % fields[2], b"PING")
        client.expect_error("bad_topic")
        if dialect == "standard":
            assert b"kept" in client.expect_error("not_backup"), "it is not confirmed: that would speak for the first"
        client.expect(b"PONG")
        primary.close()
        wait_until(lambda: broker.stored_values("t") == [b"kept"] if "t" in broker.topics() else False, "it has it")
