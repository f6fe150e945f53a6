"""Clients that know nothing of pairs: a connection for each publish, no ids, a bare SUBSCRIBE on both brokers."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.commands import Running
from testkit.text_client import CONNACK, PUBACK, SUBACK, TextClient
from testkit.wait import wait_until

from holdfast.testing.ports import free_port

WAIT_S = 20.0


class Box:
    """One broker, started with the command that people type."""

    def __init__(self, role: str, port: int, partner: int, root: Path, *flags: str) -> None:
        self.port = port
        self._ready = root / f"{role}.json"
        self._running = Running(
            *(role, str(port), f"localhost:{partner}", "--ready-file", str(self._ready), *flags),
            *("--heartbeat-ms", "150"),
        )

    def wait_until_ready(self) -> None:
        wait_until(lambda: self._ready.exists() and bool(self._ready.read_text().strip()), "it serves")

    def stands(self) -> str:
        """Its role, or that it is alone."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port + 10}/v1/cluster") as answer:
            pair = json.load(answer)["pair"]
        return "alone" if pair["is_alone"] or pair["lag"] else str(pair["role"])

    def kill(self) -> None:
        self._running.process.send_signal(signal.SIGKILL)
        self._running.process.wait()

    def close(self) -> None:
        self._running.__exit__()

    def dial(self, *, greeted: bool) -> TextClient:
        return TextClient(("127.0.0.1", self.port), greeted=greeted)


@contextlib.contextmanager
def boxes(root: Path, *flags: str) -> Iterator[tuple[Box, Box]]:
    first, second = free_port(), free_port()
    started = [Box("primary", first, second, root, *flags), Box("backup", second, first, root, *flags)]
    try:
        for each in started:
            each.wait_until_ready()
        wait_until(lambda: sorted(each.stands() for each in started) == ["backup", "primary"], "they are together")
        yield started[0], started[1]
    finally:
        for each in started:
            each.close()


def publish(box: Box, dialect: str, value: bytes) -> None:
    """As the seeds' publisher: connect, publish, wait for the answer, hang up."""
    with box.dial(greeted=dialect == "standard") as client:
        client.say(b"PUBLISH|topicC|%s" % value)
        client.expect(PUBACK if dialect == "standard" else b"ACK")


def publish_until_taken(box: Box, dialect: str, value: bytes) -> None:
    """A broker that is about to take over may refuse, or leave it open."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with box.dial(greeted=dialect == "standard") as client:
            client.say(b"PUBLISH|topicC|%s" % value)
            answer = client.line()
        if answer == (PUBACK if dialect == "standard" else b"ACK"):
            return
        assert answer.startswith(b"ERROR|"), answer
        assert time.monotonic() < deadline, answer


def subscribe(box: Box, dialect: str) -> TextClient:
    client = box.dial(greeted=dialect == "standard")
    client.say(b"SUBSCRIBE|topicC")
    if dialect == "standard":
        client.expect(SUBACK)
    else:  # nothing is answered: what was asked before was done before
        client.say(b"PING")
        client.expect(b"PONG")
    return client


@pytest.mark.parametrize(
    ("dialect", "memory"), [("standard", ()), ("ack", ("--memory",))], ids=["standard, on disk", "ack, in memory"]
)
def test_each_acknowledged_message_reaches_a_bare_subscriber_across_the_death_of_the_primary(
    tmp_path: Path, dialect: str, memory: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = [b"before %d" % number for number in range(20)]
    after = [b"after %d" % number for number in range(20)]
    with boxes(tmp_path, "--text-dialect", dialect, *memory) as (primary, backup):
        with subscribe(primary, dialect) as from_primary, subscribe(backup, dialect) as from_backup:
            for value in before:
                publish(primary, dialect, value)
            head = b"MESSAGE|topicC|" if dialect == "standard" else b""
            assert [from_primary.line() for _ in before] == [head + value for value in before]
            primary.kill()
            publish_until_taken(backup, dialect, after[0])
            for value in after[1:]:
                publish(backup, dialect, value)
            seen: list[bytes] = []
            while not seen or seen[-1] != head + after[-1]:
                seen.append(from_backup.line())
        # What the primary had delivered and not noted yet may come again, in order; the rest comes once.
        again = len(seen) - len(after)
        assert seen == [head + value for value in (before[len(before) - again :] if again else []) + after]
    kept = sorted(path.name for path in tmp_path.glob("holdfast-*"))
    assert kept == ([] if memory else sorted(f"holdfast-{box.port}" for box in (primary, backup)))


def test_memory_leaves_nothing_behind_when_it_is_asked_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    port = free_port()
    ready = tmp_path / "ready.json"
    with Running("primary", str(port), "--memory", "--ready-file", str(ready)) as alone:
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "it serves")
        assert json.loads(ready.read_text())["text"].endswith(str(port))
        assert any((tmp_path / "scratch").iterdir())
        with TextClient(("127.0.0.1", port), greeted=False) as client:
            client.expect(CONNACK)
            client.say(b"PUBLISH|t|x")
            client.expect(PUBACK)
        assert alone.end(signal.SIGTERM).code == 0
    assert not any((tmp_path / "scratch").iterdir())
