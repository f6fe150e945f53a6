"""A primary hands everything to a backup that somebody else wrote, and acknowledges what both have."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK, SUBACK, TextClient
from testkit.wait import wait_until

from tests.pair.partners import (
    HEARTBEAT_MS,
    MISSES,
    Partner,
    confirming,
    plain,
    silent,
    status,
    wait_until_alone,
    wait_until_in_step,
)


def subscribed(broker: BrokerProcess) -> TextClient:
    client = broker.connect()
    client.say(b"SUBSCRIBE|t")
    client.expect(SUBACK)
    return client


def test_publisher_and_subscriber_wait_until_the_backup_has_it(tmp_path: Path) -> None:
    with Partner(silent) as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client, broker.connect() as again, subscribed(broker) as subscriber:
            client.say(b"PUBLISH_ID|order-1|t|a | b", b"PUBLISH|t|without an id")
            again.say(b"PUBLISH_ID|order-1|t|a | b")
            first, second = backup.packets(b"REPLICATE", 2)
            assert (first[1:4], b"|".join(first[4:])) == ([b"order-1", b"1", b"t"], b"a | b")
            assert second[2:] == [b"2", b"t", b"without an id"] and second[1]
            assert client.peek_lines() == again.peek_lines() == subscriber.peek_lines() == [], "nobody confirmed it"
            backup.say(b"REPLICATED|1")
            client.expect(PUBACK)
            again.expect(PUBACK)
            subscriber.expect(b"MESSAGE|t|a | b")
            assert client.peek_lines() == [], "the second is not confirmed"
            backup.say(b"REPLICATED|2")
            client.expect(PUBACK)
            subscriber.expect(b"MESSAGE|t|without an id")
            backup.wait_for(b"MARK_DELIVERED|order-1|1", b"MARK_DELIVERED|%s|2" % second[1])
            backup.lines.clear()
            client.say(b"PUBLISH_ID|order-3|t|under way")
            backup.wait_for(b"REPLICATE|order-3|3|t|under way")
        broker.kill()
        backup.lines.clear()
        broker.restart()
        # The same message has the same number, however often it is sent.
        backup.wait_for(b"REPLICATE|order-3|3|t|under way")
        assert broker.topics()["t"]["messages"] == 2, "nobody sees what the backup may not have"
        backup.say(b"REPLICATED|3")
        wait_until(lambda: broker.topics()["t"]["messages"] == 3, "now it may be seen")


def _numbered(backup: Partner, first: int) -> list[tuple[int, bytes]]:
    """Number and id of what was replicated, from a number on."""
    packets = [(int(each[2]), each[1]) for each in backup.packets(b"REPLICATE")]
    return [each for each in packets if each[0] >= first]


def test_what_was_acknowledged_alone_reaches_the_backup_though_it_was_delivered(tmp_path: Path) -> None:
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client, subscribed(broker) as subscriber:
            client.say(b"PUBLISH_ID|1|t|together")
            client.expect(PUBACK)
            backup.wait_for(b"MARK_DELIVERED|1|1")
            backup.close()
            wait_until_alone(broker)
            assert broker.metric("holdfast_pair_alone") == 1
            client.say(*(b"PUBLISH_ID|%d|t|alone %d" % (n, n) for n in range(2, 6)))
            client.expect(*[PUBACK] * 4)
            subscriber.expect(b"MESSAGE|t|together", *(b"MESSAGE|t|alone %d" % n for n in range(2, 6)))
            backup.lines.clear()
            broker.kill()
            broker.restart()
            backup.open()
            wait_until_in_step(broker)
            # Where it was killed before it noted that they were delivered, they are on their way when both are in step.
            wait_until(lambda: len(_numbered(backup, 2)) >= 4, "the backup has got what was acknowledged without it")
            assert _numbered(backup, 2) == [(n, b"%d" % n) for n in range(2, 6)]
            backup.wait_for(*(b"MARK_DELIVERED|%d|%d" % (n, n) for n in range(2, 6)))
        assert broker.log().count("in_step") == 1


@pytest.mark.parametrize("flags", [(), ("--require-backup",)])
def test_an_error_is_never_a_confirmation(tmp_path: Path, flags: tuple[str, ...]) -> None:
    def refusing(line: bytes) -> bytes:
        return b"ERROR|too_large|no\n" if b"|big" in line else confirming(line)

    with Partner(refusing) as backup, plain(tmp_path, "primary", backup.address, *flags) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client:
            client.say(b"PUBLISH_ID|x|t|big")
            if flags:
                client.expect_error("leader_changed")
                client.say(b"PUBLISH_ID|y|t|small")
                client.expect_error("unavailable")
            else:
                client.expect(PUBACK)
                assert status(broker)["is_alone"] is True
            dials = backup.dials
            wait_until(lambda: backup.dials > dials, "it tries again")
            wait_until(lambda: "backup_refuses" in broker.log(), "it is refused again")
            wait_until(lambda: status(broker)["is_alone"] is True, "and takes that for no confirmation")
            backup.answers = confirming
            wait_until_in_step(broker)
            wait_until(lambda: client.ask(b"PUBLISH_ID|x|t|big") == PUBACK, "it has made sure of what it has")
            client.say(b"PUBLISH_ID|y|t|small")
            client.expect(PUBACK)
        assert broker.stored_values("t") == [b"big", b"small"]


def test_a_backup_that_never_confirms_leaves_the_primary_alone_and_it_says_so(tmp_path: Path) -> None:
    with Partner(silent) as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client:
            asked_s = time.monotonic()
            client.say(b"PUBLISH|t|0")
            client.expect(PUBACK)
            assert time.monotonic() - asked_s > HEARTBEAT_MS * (MISSES - 1) / 1000, "it might have confirmed"
            for number in range(1, 4):
                client.say(b"PUBLISH|t|%d" % number)
                client.expect(PUBACK)
        assert [each[4] for each in backup.packets(b"REPLICATE", 4)] == [b"0", b"1", b"2", b"3"]
        assert broker.log().count("backup_does_not_confirm") == 1
        assert (status(broker)["is_alone"], status(broker)["partner_is_up"]) == (True, True)


def test_a_backup_that_refuses_the_packet_of_ours_counts_as_soon_as_it_confirms(tmp_path: Path) -> None:
    role_refused = b"ERROR|unknown packet type: ROLE\n"
    with Partner(silent, on_role=role_refused) as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_alone(broker)
        with broker.connect() as client:
            client.say(b"PUBLISH_ID|1|t|not waited for")
            client.expect(PUBACK)
            backup.packets(b"REPLICATE", 1)
            assert status(broker)["is_alone"] is True
            backup.say(b"REPLICATED|1")
            wait_until_in_step(broker)
            client.say(b"PUBLISH_ID|2|t|waited for")
            backup.packets(b"REPLICATE", 2)
            assert client.peek_lines() == []
            backup.say(b"REPLICATED|2")
            client.expect(PUBACK)


def test_a_backup_that_hangs_is_given_up_after_the_misses(tmp_path: Path) -> None:
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client:
            client.say(b"PUBLISH|t|1")
            client.expect(PUBACK)
            backup.is_silent = True
            client.say(b"PUBLISH|t|2")
            client.expect(PUBACK)
            assert status(broker)["is_alone"] is True
            backup.is_silent = False
            wait_until_in_step(broker)


def test_a_confirmation_of_what_was_never_sent_is_not_believed_and_redials_are_paused(tmp_path: Path) -> None:
    with (
        Partner(lambda line: b"REPLICATED|4611686018427387904\n") as backup,
        plain(tmp_path, "primary", backup.address) as broker,
        broker.connect() as client,
    ):
        wait_until_in_step(broker)
        client.say(b"PUBLISH|t|1")
        client.expect(PUBACK)
        assert status(broker)["is_alone"] is True and "backup_is_confused" in broker.log()
        dials, since_s = backup.dials, time.monotonic()
        wait_until(lambda: backup.dials >= dials + 3, "it tries again")
        assert time.monotonic() - since_s > 2 * HEARTBEAT_MS / 1000


def test_a_partner_that_closes_on_words_it_does_not_know_is_spoken_to_without(tmp_path: Path) -> None:
    with Partner(on_role=None) as backup, plain(tmp_path, "primary", backup.address) as broker:
        with broker.connect() as client:
            wait_until_in_step(broker)
            client.say(b"PUBLISH_ID|1|t|x")
            client.expect(PUBACK)
        assert backup.packets(b"REPLICATE") == [[b"REPLICATE", b"1", b"1", b"t", b"x"]]


def test_what_the_packets_cannot_carry_is_refused_at_once(tmp_path: Path) -> None:
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        bodies: list[dict[str, object]] = [
            {"value": "two\nlines"},
            {"value": "ends\r"},
            {"value": "x", "id": "a|b"},
            {"value": "x", "key": "k"},
            {"value": "x", "headers": {"h": "v"}},
        ]
        for body in bodies:
            code, answer = broker.call("POST", "/v1/topics/t/messages", {"messages": [body]})
            assert code == 400 and b"not_replicable" in answer, (body, answer)
        code, answer = broker.call("POST", "/v1/topics", {"topic": "many", "partitions": 2})
        assert code == 400 and b"not_replicable" in answer, answer
        with broker.connect() as client:
            client.say(b"PUBLISH|t|\x00\xff binary is fine")
            client.expect(PUBACK)
        assert broker.stored_values("t") == [b"\x00\xff binary is fine"]


def test_a_topic_that_was_deleted_and_made_again_is_replicated_anew(tmp_path: Path) -> None:
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        with broker.connect() as client:
            client.say(b"PUBLISH_ID|1|t|old")
            client.expect(PUBACK)
            broker.call("DELETE", "/v1/topics/t")
            backup.wait_for(b"MARK_DELIVERED|1|1")
            backup.answers = silent
            client.say(b"PUBLISH_ID|1|t|new")
            backup.wait_for(b"REPLICATE|1|2|t|new")
            assert client.peek_lines() == [], "the backup does not have this one"
            backup.say(b"REPLICATED|2")
            client.expect(PUBACK)
        assert broker.stored_values("t") == [b"new"]


def test_bare_form_is_sent_with_the_ack_dialect_and_promises_this_disk_only(tmp_path: Path) -> None:
    flags = ("--text-dialect", "ack")
    with Partner(silent) as backup, plain(tmp_path, "primary", backup.address, *flags) as broker:
        wait_until(lambda: status(broker)["role"] == "primary", "it serves")
        with broker.connect(greeted=False) as client, broker.connect(greeted=False) as subscriber:
            subscriber.say(b"SUBSCRIBE|t")
            wait_until(lambda: "t" in broker.topics(), "the subscriber is there")
            wait_until(lambda: client.ask(b"PUBLISH|t|a|b") == b"ACK", "it takes publishes")
            subscriber.expect(b"a|b")
            backup.wait_for(b"REPLICATE|t|a|b", b"CLEAR|t|a|b")
        assert status(broker)["is_alone"] is True


def test_what_is_confirmed_behind_a_refusal_does_not_speak_for_what_was_refused(tmp_path: Path) -> None:
    with (
        Partner(silent) as backup,
        plain(tmp_path, "primary", backup.address, "--require-backup") as broker,
        broker.connect() as client,
    ):
        wait_until_in_step(broker)
        client.say(b"PUBLISH_ID|refused|t|1", b"PUBLISH_ID|later|t|2")
        backup.packets(b"REPLICATE", 2)
        backup.say(b"ERROR|too_large|not this one\nREPLICATED|2")
        client.expect_error("leader_changed")
        client.expect_error("leader_changed")
        wait_until_alone(broker)
        assert broker.topics()["t"]["messages"] == 0, "nothing is seen that the backup refused"


def test_a_backup_that_repeats_an_old_confirmation_is_not_waited_for_without_an_end(tmp_path: Path) -> None:
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker, broker.connect() as client:
        wait_until_in_step(broker)
        client.say(b"PUBLISH|t|confirmed")
        client.expect(PUBACK)
        backup.answers = silent
        client.say(b"PUBLISH|t|never confirmed")
        until_s = time.monotonic() + 4 * MISSES * HEARTBEAT_MS / 1000
        while not client.peek_lines() and time.monotonic() < until_s:
            with contextlib.suppress(OSError):  # it is given up on at some time
                backup.say(b"REPLICATED|1")
            time.sleep(HEARTBEAT_MS / 2000)
        client.expect(PUBACK)
        assert "backup_is_stuck" in broker.log()


def test_a_dead_letter_is_known_by_its_own_place_whatever_headers_it_came_with(tmp_path: Path) -> None:
    """A letter keeps the headers of the message that it was: the place of that one, too."""
    letter = {"value": "dead", "id": "letter", "headers": {"holdfast-place": "9.other.70"}}
    with Partner() as backup, plain(tmp_path, "primary", backup.address) as broker:
        wait_until_in_step(broker)
        broker.json("POST", "/v1/topics/t.dead/messages", {"messages": [letter]})
        backup.wait_for(b"MARK_DELIVERED|letter|1")
        broker.kill()
        broker.restart()
        wait_until_in_step(broker)
        broker.json("POST", "/v1/topics/t.dead/messages", {"messages": [{"value": "next"}]})
        assert broker.stored_values("t.dead") == [b"dead", b"next"]
