"""A publisher that never waits, and remembers exactly what it sent and what it was promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from testkit.processes import BrokerProcess
from testkit.text_client import PUBACK
from testkit.wait import PATIENCE_S, wait_until


class Sent(NamedTuple):
    """One line: where it goes and what it holds; with an id it may be sent again."""

    topic: str
    value: bytes
    message_id: str | None = None

    @property
    def line(self) -> bytes:
        if self.message_id is None:
            return b"PUBLISH|%b|%b\n" % (self.topic.encode(), self.value)
        return b"PUBLISH_ID|%b|%b|%b\n" % (self.message_id.encode(), self.topic.encode(), self.value)


class Flood:
    """Sends lines as fast as they are taken, in one thread, and reads answers in another, until it is cut off."""

    def __init__(self, broker: BrokerProcess, lines: Iterator[Sent], *, window: int = 5_000) -> None:
        self.sent: list[Sent] = []
        self.answers: list[bytes] = []
        self._client = broker.connect()
        self._lines = lines
        self._stopping = threading.Event()
        self._window = threading.Semaphore(window)
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        pending: list[bytes] = []
        try:
            for sent in self._lines:
                while not self._window.acquire(blocking=False):
                    if pending:
                        self._client.send(b"".join(pending))
                        pending = []
                    if self._window.acquire(timeout=0.05):
                        break
                    if self._stopping.is_set():
                        return
                if self._stopping.is_set():
                    break
                self.sent.append(sent)
                pending.append(sent.line)
                if len(pending) >= 50:
                    self._client.send(b"".join(pending))
                    pending = []
            self._client.send(b"".join(pending))
        except OSError:
            pass  # the broker is gone: what was not answered was not promised

    def _read(self) -> None:
        try:
            while True:
                self.answers.append(self._client.line())
                self._window.release()
        except (OSError, EOFError):
            pass

    @property
    def acknowledged(self) -> list[Sent]:
        """What the broker promised to keep: answers come in the order of the lines."""
        return [sent for sent, answer in zip(self.sent, self.answers, strict=False) if answer == PUBACK]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, "the flood gets that far")

    def stop_sending(self) -> None:
        self._stopping.set()

    def half_close(self) -> None:
        """Tell the broker that nothing more comes; its answers are still read."""
        self._client.half_close()

    def end(self) -> None:
        """After the broker went away: everything it said has been read."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the connection did not end with the broker"
        self._client.close()
