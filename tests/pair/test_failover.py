"""Either of two brokers carries on when the other is killed, paused or cut off, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from testkit.text_client import PUBACK, SUBACK, TextClient
from testkit.wait import wait_until

from holdfast.model.ids import LogIndex
from holdfast.node import rejoining
from tests.pair.pairs import HEARTBEAT_MS, MISSES, Pair, running


def publish(pair: Pair, node: str, *values: bytes) -> None:
    """Publish with ids, and wait until all are acknowledged."""
    with pair[node].connect() as client:
        client.say(*(b"PUBLISH_ID|%s|t|%s" % (value, value) for value in values))
        for _ in values:
            client.expect(PUBACK)


class Refusing(BaseHTTPRequestHandler):
    """A broker that takes nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"error": {"code": "bad_topic", "message": "it takes nothing"}}'
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def subscribed(pair: Pair, node: str) -> TextClient:
    client = pair[node].connect()
    client.say(b"SUBSCRIBE|t")
    client.expect(SUBACK)
    return client


def test_each_takes_over_from_the_other_with_everything_and_the_other_catches_up(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        publish(pair, "a", b"1", b"2")
        expected = [b"1", b"2"]
        for primary, other in (("a", "b"), ("b", "a")):
            with subscribed(pair, other) as subscriber:
                publish(pair, primary, b"before " + primary.encode())
                assert pair.status(other)["role"] == "backup"
                pair[primary].kill()
                publish(pair, other, b"alone " + other.encode())
                while subscriber.line() != b"MESSAGE|t|alone " + other.encode():
                    pass
            expected += [b"before " + primary.encode(), b"alone " + other.encode()]
            status = pair.status(other)
            assert (status["role"], status["is_alone"], status["failovers"]) == ("primary", True, 1)
            pair[primary].restart()
            pair.wait_until_together()
            assert pair.status(other)["role"] == "primary", "nobody gives way who serves"
            assert pair.values(primary, "t") == pair.values(other, "t") == expected
        # It was the backup that was gone, and the primary that goes on alone.
        pair["b"].kill()
        pair.wait_until_alone("a")
        publish(pair, "a", b"without a backup")
        pair["b"].restart()
        pair.wait_until_together()
        pair["a"].kill()
        pair.wait_until_alone("b")
        assert pair.values("b", "t") == [*expected, b"without a backup"]


def test_primary_refuses_without_the_backup_it_requires(tmp_path: Path) -> None:
    with running(tmp_path, "--require-backup") as pair:
        publish(pair, "a", b"1")
        pair["b"].kill()
        pair.wait_until_alone("a")
        with pair["a"].connect() as client:
            client.say(b"PUBLISH|t|2")
            answer = client.line()
        assert answer.startswith(b"ERROR|unavailable|") and b"backup" in answer
        pair["b"].restart()
        pair.wait_until_together()
        publish(pair, "a", b"3")
        assert pair.values("a", "t") == [b"1", b"3"]


def test_primary_that_stood_still_finds_that_it_was_replaced(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        publish(pair, "a", b"1")
        os.kill(pair["a"].pid, signal.SIGSTOP)
        try:
            stopped_at = time.monotonic()
            pair.wait_until_alone("b")
            assert time.monotonic() - stopped_at > HEARTBEAT_MS * MISSES / 1000 - 0.2, "it did not wait for its misses"
            publish(pair, "b", b"2")
        finally:
            os.kill(pair["a"].pid, signal.SIGCONT)
        pair.wait_until_together()
        assert pair.status("b")["role"] == "primary"
        publish(pair, "a", b"3")
        assert pair.values("a", "t") == pair.values("b", "t") == [b"1", b"2", b"3"]


def test_what_both_sides_of_a_split_acknowledged_is_there_afterwards(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        publish(pair, "a", b"before")
        pair.cut()
        # Nobody knows of the cut yet: this waits for the other one, and is acknowledged when that is given up.
        publish(pair, "a", b"under way")
        with pair["a"].connect() as client:
            client.say(b"PUBLISH|t|under way without an id")
            client.expect(PUBACK)
        pair.wait_until_alone("a")
        pair.wait_until_alone("b")
        publish(pair, "a", b"a1", b"a2")
        with pair["a"].connect() as client:
            client.say(b"PUBLISH|t|without an id", b"PUBLISH|only-here|x")
            client.expect(PUBACK)
            client.expect(PUBACK)
        publish(pair, "b", b"b1", b"b2", b"b3")
        assert pair.status("b")["epoch"] > pair.status("a")["epoch"]
        pair.mend()
        pair.wait_until_together()
        assert pair.status("b")["role"] == "primary"
        expected = [b"before", b"a1", b"a2", b"b1", b"b2", b"b3", b"without an id"]
        expected += [b"under way", b"under way without an id"]
        pair.wait_until_both_have(lambda node: len(pair.values(node, "t")) >= 9)
        for node in ("a", "b"):
            assert sorted(pair.values(node, "t")) == sorted(expected)
            assert pair.values(node, "only-here") == [b"x"]
        publish(pair, "b", b"a1")
        assert len(pair.values("b", "t")) == len(expected), "what was given has its id"


def test_both_boxes_lose_their_power_and_come_back(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        publish(pair, "a", *(b"%d" % number for number in range(100)))
        for broker in pair.brokers.values():
            broker.kill()
        for broker in pair.brokers.values():
            broker.restart()
        pair.wait_until_together()
        publish(pair, "b", b"again")
        expected = [*(b"%d" % number for number in range(100)), b"again"]
        pair.wait_until_both_have(lambda node: pair.values(node, "t") == expected)


def test_backup_that_does_not_have_everything_yet_does_not_take_over(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        values = [b"%d" % number for number in range(200)]
        publish(pair, "a", *values)
        pair["b"].kill()
        shutil.rmtree(pair["b"].data)
        pair.wait_until_alone("a")
        pair["b"].restart()
        pair["a"].kill()
        # Whether it had everything by then or not: it never serves less than what was acknowledged.
        wait_until(lambda: pair.status("b")["role"] in ("primary", "joining", "backup"), "b says how it stands")
        pair["a"].restart()
        pair.wait_until_together()
        pair.wait_until_both_have(lambda node: pair.values(node, "t") == values)


def test_one_that_cannot_give_what_it_has_goes_on_with_it(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        publish(pair, "a", b"before")
        pair.cut()
        pair.wait_until_alone("a")
        pair.wait_until_alone("b")
        publish(pair, "a", b"a1")
        pair["a"].kill()
        pair["b"].kill()
        pair.mend()
        # It was told to give way, and then the other one took nothing any more.
        with refusing() as address:
            rejoining.note(pair["a"].data, rejoining.Replaced("b", address))
            pair["a"].restart()
            pair.wait_until_alone("a")
        assert pair.values("a", "t") == [b"before", b"a1"]
        pair["b"].restart()
        pair.wait_until_together()
        pair.wait_until_both_have(lambda node: sorted(pair.values(node, "t")) == [b"a1", b"before"])


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12), st.lists(st.integers(1, 5), max_size=12), st.integers(0, 12)
)
def test_logs_part_behind_their_last_common_entry(first: list[int], second: list[int], shared: int) -> None:
    """Terms of the two never mix: what one wrote alone is of terms that the other cannot have."""
    common = sorted(first)[:shared]
    base = max(common, default=0)
    ours = common + sorted(base + 2 * term for term in first)
    theirs = common + sorted(base + 2 * term + 1 for term in second)

    def runs(terms: list[int]) -> list[tuple[int, int]]:
        return [(index + 1, term) for index, term in enumerate(terms) if not index or terms[index - 1] != term]

    found = rejoining.last_common(runs(ours), LogIndex(len(ours)), runs(theirs), LogIndex(len(theirs)))
    assert found == (len(common) if common else -1)
