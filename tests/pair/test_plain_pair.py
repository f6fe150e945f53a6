"""Two of ours that speak the plain packets with each other take over from each other like any pair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.commands import holdfast
from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK, SUBACK
from testkit.wait import until, wait_until

from holdfast.client import PairPublisher, PairSubscriber
from holdfast.testing.ports import free_port
from tests.pair.partners import plain, status, wait_until_alone, wait_until_in_step
from tests.pair.test_plain_clients import boxes

Two = tuple[BrokerProcess, BrokerProcess]


@contextlib.contextmanager
def running(root: Path, *flags: str) -> Iterator[Two]:
    ports = free_port(), free_port()
    first = plain(root, "primary", f"127.0.0.1:{ports[1]}", *flags, node="a", text_port=ports[0])
    second = plain(root, "backup", f"127.0.0.1:{ports[0]}", *flags, node="b", text_port=ports[1])

    def in_step() -> Two | None:
        for primary, backup in ((first, second), (second, first)):
            leading, following = status(primary), status(backup)
            # A backup that dies before it has noted whose it is takes over in an epoch no later than its primary's.
            knows = bool(following["partner_is_up"]) and following["epoch"] == leading["epoch"]
            if leading["role"] == "primary" and leading["is_alone"] is False and knows:
                return primary, backup
        return None

    with first, second:
        # Where the first starts so slowly that it misses heartbeats, the second is the primary.
        found = wait_until(in_step, "the backup has everything and knows whose it is")
        assert found is not None
        yield found


def test_monitor_of_both_raises_no_alarm_while_the_backup_follows(tmp_path: Path) -> None:
    with running(tmp_path) as two:
        both = ",".join(f"127.0.0.1:{each.http_port}" for each in two)
        shown = holdfast("check", "--server", both)
        assert shown.code == 0 and "is the backup, and follows its primary" in shown.text, shown
        facts = holdfast("check", "--server", both, "--json").json_lines
        assert [(each["ready"], each["follows"]) for each in facts] == [(True, False), (False, True)]


def test_monitor_raises_an_alarm_where_a_backup_hears_no_primary(tmp_path: Path) -> None:
    with plain(tmp_path, "backup", f"127.0.0.1:{free_port()}") as alone:
        shown = holdfast("check", "--server", f"127.0.0.1:{alone.http_port}")
        assert shown.code == 1 and "is not ready" in shown.text, shown


def publish(broker: BrokerProcess, *values: bytes) -> None:
    """With ids, until each is acknowledged."""
    with broker.connect() as client:
        for value in values:
            line = b"PUBLISH_ID|%s|t|%s" % (value, value)
            wait_until(lambda: client.ask(line) == PUBACK, f"{value!r} is acknowledged")  # noqa: B023


async def _through_failovers(
    two: Two, messages: int, killed_at: dict[int, BrokerProcess]
) -> tuple[list[str], list[str]]:
    """Publish while brokers die and come back; the ids that were acknowledged, and those that were received."""
    both = [f"127.0.0.1:{each.text_port}" for each in two]
    received: list[str] = []
    acknowledged: list[str] = []
    async with PairSubscriber("t", *both) as subscriber, PairPublisher(*both) as publisher:

        async def receive() -> None:
            async for message in subscriber:
                received.append(message.id)

        receiving = asyncio.create_task(receive())
        for number in range(messages):
            if (broker := killed_at.get(number)) is not None:
                broker.kill()
            published = await publisher.publish("t", b"%d" % number)
            acknowledged.append(published.id)
            if broker is not None:
                await asyncio.to_thread(broker.restart)
                other = two[1] if broker is two[0] else two[0]
                await asyncio.to_thread(wait_until_in_step, other)
        await until(lambda: len(received) >= len(acknowledged))
        receiving.cancel()
    return acknowledged, received


def test_nothing_is_lost_or_repeated_when_either_is_killed_under_load(tmp_path: Path) -> None:
    with running(tmp_path, "--compute-ms", "1:2") as (first, second):
        acknowledged, received = asyncio.run(_through_failovers((first, second), 150, {50: first, 100: second}))
        assert sorted(received) == sorted(acknowledged), "each once, also through a processor on each of the two"
        assert status(first)["role"] == "primary" and status(second)["role"] == "backup"
        wait_until(lambda: status(second)["replicas_held"] == 0, "what is delivered is pruned")
        first.kill()
        wait_until(lambda: status(second)["role"] == "primary", "the other one serves")
        assert set(second.stored_values("t")) == {b"%d" % number for number in range(150)}


def test_what_was_acknowledged_alone_reaches_the_other_one_whoever_starts_first(tmp_path: Path) -> None:
    with running(tmp_path) as (first, second):
        publish(first, b"together")
        wait_until_in_step(first)  # on a busy machine it may have taken the other one for lost meanwhile
        second.kill()
        wait_until_alone(first)
        publish(first, b"alone")
        first.kill()
        second.restart()
        wait_until(lambda: status(second)["role"] == "primary", "the backup has to go on without that")
        publish(second, b"meanwhile")
        first.restart()
        wait_until(lambda: status(first)["role"] == "backup", "it gives way")
        wait_until_in_step(second)
        assert set(second.stored_values("t")) == {b"together", b"alone", b"meanwhile"}
        assert "gave_to_partner" in first.log()
        # Its own copy is void: should the message come back by its id, it is stored and delivered anew.
        assert json.loads((first.data / "plain.json").read_bytes())["void"] == {"t": [[1, 2]]}
        # Both restart, the primary last; then the other one has to know everything.
        second.kill()
        first.kill()
        first.restart()
        second.restart()
        wait_until(lambda: {status(first)["role"], status(second)["role"]} == {"primary", "backup"}, "one serves")
        primary, backup = (first, second) if status(first)["role"] == "primary" else (second, first)
        wait_until_in_step(primary)
        publish(primary, b"after")
        primary.kill()
        wait_until(lambda: status(backup)["role"] == "primary", "it takes over")
        everything = {b"together", b"alone", b"meanwhile", b"after"}
        wait_until(lambda: set(backup.stored_values("t")) == everything, "nothing is lost")


def test_a_primary_that_stood_still_gives_way_and_no_publisher_waits_for_ever(tmp_path: Path) -> None:
    with running(tmp_path) as (first, second):
        publish(first, b"before")
        answers: list[bytes] = []
        with first.connect() as client, second.connect() as subscriber:
            subscriber.say(b"SUBSCRIBE_ID|t")
            subscriber.expect(SUBACK)
            os.kill(first.pid, signal.SIGSTOP)
            try:
                client.say(*(b"PUBLISH_ID|stuck-%d|t|x" % number for number in range(50)))
                wait_until(lambda: status(second)["role"] == "primary", "the backup takes over")
                publish(second, b"new")
            finally:
                os.kill(first.pid, signal.SIGCONT)
            listening = threading.Thread(target=lambda: answers.extend(client.lines(50)))
            listening.start()
            listening.join(30)
            assert len(answers) == 50, "each line is answered, one way or the other"
            wait_until(lambda: status(first)["role"] == "backup", "it learns that it was replaced")
            wait_until_in_step(second)
            stored = second.stored("t")
            acked = answers.count(PUBACK)
            assert sum(record.value == b"x" for record in stored) >= acked, "what was acknowledged is at the winner"
            assert [record.value for record in stored].count(b"new") == 1
            with first.connect() as late:
                late.say(b"PUBLISH|t|late")
                assert f"127.0.0.1:{second.text_port}" in late.expect_error("unavailable").decode()


def test_two_that_both_serve_in_the_same_epoch_agree_on_one(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    first = plain(tmp_path, "primary", f"127.0.0.1:{ports[1]}", node="a", text_port=ports[0])
    second = plain(tmp_path, "primary", f"127.0.0.1:{ports[0]}", node="b", text_port=ports[1])
    with first:
        wait_until_alone(first)
        publish(first, b"of the first")
        first.kill()
        with second:
            wait_until_alone(second)
            publish(second, b"of the second")
            assert status(second)["epoch"] == 1
            first.restart()
            wait_until(lambda: {status(first)["role"], status(second)["role"]} == {"primary", "backup"}, "one serves")
            winner = first if status(first)["role"] == "primary" else second
            wait_until_in_step(winner)
            assert set(winner.stored_values("t")) == {b"of the first", b"of the second"}


def test_commands_run_a_plain_pair_and_the_client_commands_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = holdfast("primary", "8080", "--plain")
    assert refused.code == 2 and "two brokers" in refused.err
    with boxes(tmp_path, "--plain") as (primary, backup):
        both = [f"127.0.0.1:{box.port}" for box in (primary, backup)]
        published = holdfast("publish", "t", "hello", *both)
        assert published.code == 0, published
        wait_until(lambda: primary.stands() == "primary", "they are in step")
        primary.kill()
        again = holdfast("publish", "t", "again", *both)
        assert again.code == 0, again
    examined = holdfast("doctor", str(tmp_path / f"holdfast-{backup.port}"))
    assert examined.code == 0, examined


def test_what_was_acknowledged_alone_is_given_though_a_backup_is_required_by_now(tmp_path: Path) -> None:
    with running(tmp_path) as (first, second):
        publish(first, b"together")
        second.kill()
        wait_until_alone(first)
        publish(first, b"alone")
        first.kill()
        second.restart()
        wait_until(lambda: status(second)["role"] == "primary", "the other one takes over")
        first.flags = (*first.flags, "--require-backup")
        first.restart()
        wait_until_in_step(second)
        assert sorted(set(second.stored_values("t"))) == [b"alone", b"together"]
