"""Brokers of a plain pair beside the two programs whose packets they speak."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from testkit.text_client import PUBACK, TextClient
from testkit.wait import wait_until

from holdfast.testing.ports import free_port
from tests.pair.originals import AckBackup, AckPrimary, AckPublisher, NumberedBackup, NumberedPrimary, NumberedPublisher
from tests.pair.partners import plain, status

FLAGS = ("--text-dialect", "ack")
QUICK = (0.0, 0.0)


def test_backup_of_an_ack_primary_leaves_it_in_charge_while_it_is_alive(tmp_path: Path) -> None:
    port = free_port()
    with (
        AckPrimary(("127.0.0.1", port), compute_s=QUICK) as primary,
        plain(tmp_path, "backup", primary.address, *FLAGS, text_port=port) as broker,
    ):
        wait_until(lambda: bool(status(broker)["partner_is_up"]), "the primary answers")
        wait_until(lambda: primary.has_backup, "the primary has dialled")
        with broker.connect(greeted=False) as subscriber:
            subscriber.say(b"SUBSCRIBE|t")
            wait_until(lambda: "t" in broker.topics(), "the subscriber is there")
            with TextClient(("127.0.0.1", primary.port), greeted=False) as publisher:
                publisher.say(b"PUBLISH|t|delivered")
                publisher.expect(b"ACK")
            wait_until(lambda: broker.stored_values("t") == [b"delivered"], "it is called delivered")
            wait_until(lambda: primary.lines.count("PING||") > 2, "it was asked for a while")
            assert status(broker)["role"] == "backup"
            primary.compute_s = (60.0, 60.0)
            with TextClient(("127.0.0.1", primary.port), greeted=False) as publisher:
                publisher.say(b"PUBLISH|t|held")
                publisher.expect(b"ACK")
                wait_until(lambda: status(broker)["replicas_held"] == 1, "the backup has it")
            primary.kill()
            subscriber.expect(b"held")
        assert status(broker)["failovers"] == 1
        assert "it refuses connections" in broker.log(), "the misses need not pass when the process is dead"


def test_first_publish_does_not_wait_for_confirmations_that_the_original_backup_does_not_have(tmp_path: Path) -> None:
    port = free_port()
    with (
        NumberedBackup(("127.0.0.1", port), compute_s=QUICK) as backup,
        # Whoever waits for the misses waits for longer than this test.
        plain(tmp_path, "primary", backup.address, "--heartbeat-ms", "60000", text_port=port) as broker,
        broker.connect() as client,
    ):
        wait_until(lambda: client.ask(b"PUBLISH|t|first") == PUBACK, "it is acknowledged")
        assert status(broker)["is_alone"] is True and broker.log().count("backup_does_not_confirm") == 1
        wait_until(lambda: any(line.startswith("MARK_DELIVERED|") for line in backup.lines), "it is called delivered")
        client.say(b"PUBLISH|t|second")
        client.expect(PUBACK)
        wait_until(lambda: sum(line.startswith("MARK_DELIVERED|") for line in backup.lines) == 2, "that as well")
        broker.kill()
        wait_until(lambda: backup.is_primary, "the original takes over")
        assert backup.delivered == [], "what was delivered is not delivered again"


class _Busy(NumberedPrimary):
    """Computes for others before it comes to each second heartbeat."""

    def _do(self, connection: socket.socket, line: str) -> None:
        if line == "HEARTBEAT" and self.lines.count(line) % 2 == 0:
            time.sleep(0.3)
        super()._do(connection, line)


def test_one_missed_heartbeat_is_enough_and_a_late_answer_is_none(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--heartbeat-ms", "1000", "--misses", "1")
    with (
        _Busy(("127.0.0.1", port)) as primary,
        plain(tmp_path, "backup", primary.address, *flags, text_port=port) as broker,
    ):
        wait_until(lambda: primary.lines.count("HEARTBEAT") > 3, "it was asked for a while")
        assert status(broker)["failovers"] == 0 and status(broker)["role"] == "backup"
        primary.hang()
        wait_until(lambda: status(broker)["role"] == "primary", "it takes over")


@pytest.mark.parametrize("dialect", ["standard", "ack"])
def test_no_message_of_a_publisher_that_reads_no_answers_is_lost_while_the_primary_hangs(
    tmp_path: Path, dialect: str
) -> None:
    port = free_port()
    here = ("127.0.0.1", port)
    primary = AckPrimary(here, compute_s=QUICK) if dialect == "ack" else NumberedPrimary(here, compute_s=QUICK)
    flags = ("--heartbeat-ms", "500", "--misses", "3", "--text-dialect", dialect)
    with primary, plain(tmp_path, "backup", primary.address, *flags, text_port=port) as broker:
        wait_until(lambda: bool(status(broker)["partner_is_up"]), "the primary answers")
        wait_until(lambda: not isinstance(primary, AckPrimary) or primary.has_backup, "the primary has dialled")
        there = ("127.0.0.1", primary.port)
        publisher = (AckPublisher if dialect == "ack" else NumberedPublisher)(there, here, "t")
        sent = 0
        hung_at = 10
        deadline_s = time.monotonic() + 60
        while sent < hung_at + 10 or status(broker)["role"] != "primary":
            assert time.monotonic() < deadline_s
            if sent == hung_at:
                primary.hang()
            if publisher.publish(f"{sent}") is not False:
                sent += 1
            time.sleep(0.02)
        assert publisher.is_with_backup
        everything = {b"%d" % number for number in range(sent)}
        delivered = {value.encode() for value in primary.delivered}
        wait_until(lambda: "t" in broker.topics(), "it puts what it has into the topic")
        wait_until(lambda: delivered | set(broker.stored_values("t")) >= everything, "nothing is lost")


def test_what_is_published_to_the_backup_of_a_living_primary_is_refused_once_that_has_answered(tmp_path: Path) -> None:
    port = free_port()
    with (
        NumberedPrimary(("127.0.0.1", port), compute_s=QUICK) as primary,
        plain(tmp_path, "backup", primary.address, "--heartbeat-ms", "60000", text_port=port) as broker,
        broker.connect() as client,
        broker.connect() as other,
    ):
        wait_until(lambda: bool(status(broker)["partner_is_up"]), "the primary answers")
        client.say(b"PUBLISH|t|no")
        assert primary.address in client.expect_error("unavailable").decode()
        primary.hang()
        client.say(b"PUBLISH|t|held")
        other.say(b"PUBLISH_ID|x|t|held as well", b"PING")
        with broker.connect() as third:
            assert third.ask(b"PING") == b"PONG"
        assert client.peek_lines() == other.peek_lines() == []
        primary.go_on()
        assert primary.address in client.expect_error("unavailable").decode()
        assert primary.address in other.expect_error("unavailable").decode()
        other.expect(b"PONG")


def test_a_backup_that_answers_nothing_has_what_was_not_delivered_when_its_primary_dies(tmp_path: Path) -> None:
    port = free_port()
    flags = (*FLAGS, "--compute-ms", "1000:1000")
    with (
        AckBackup(("127.0.0.1", port), compute_s=QUICK) as backup,
        plain(tmp_path, "primary", backup.address, *flags, text_port=port) as broker,
        broker.connect(greeted=False) as client,
    ):
        wait_until(lambda: client.ask(b"PUBLISH|t|delivered") == b"ACK", "it is acknowledged")
        wait_until(lambda: "REPLICATE|t|delivered" in backup.lines, "the backup gets it")
        wait_until(lambda: "CLEAR|t|delivered" in backup.lines, "and hears that it is delivered")
        backup.kill()
        assert status(broker)["is_alone"] is True
        with AckBackup(("127.0.0.1", port), compute_s=QUICK, own_port=backup.port) as again:
            client.say(b"PUBLISH|t|not delivered")
            client.expect(b"ACK")
            wait_until(lambda: ("t", "not delivered") in again.held, "it is handed over")
            assert status(broker)["is_alone"] is True
            broker.kill()
            wait_until(lambda: "not delivered" in again.delivered, "the backup delivers it")
            assert "delivered" not in again.delivered
