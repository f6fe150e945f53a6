"""A broker for commands to talk to, what they publish, and a terminal for them."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

from testkit.commands import DEADLINE_S, HOLDFAST, Ended, Running, environment, holdfast
from testkit.processes import BrokerProcess

from holdfast.client import BlockingClient, connect_blocking
from holdfast.testing.ports import free_port


class Broker(BrokerProcess):
    """On an HTTP port that stays the same over restarts."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory / "data", *flags, http_port=free_port())

    def run(self, *arguments: str, given: bytes = b"") -> Ended:
        """A command that talks to this broker."""
        return holdfast(*arguments, "--server", self.server, given=given)

    def ok(self, *arguments: str, given: bytes = b"") -> Ended:
        """A command that has to work."""
        ended = self.run(*arguments, given=given)
        assert ended.code == 0, ended
        return ended

    def running(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> Running:
        return Running(*arguments, "--server", self.server, stdin=stdin)

    def client(self) -> BlockingClient:
        """For looking at the broker without a command."""
        return connect_blocking(self.server)


def numbered(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, count + 1))


class Seen(NamedTuple):
    code: int
    screen: str
    out: bytes


def on_terminal(
    *arguments: str, given: bytes | None = None, typed: bytes = b"", view: bool = False, columns: int = 200
) -> Seen:
    """Run a command whose standard error is a terminal; its input too, unless it is `given`.

    With `view` its output is the terminal as well.
    """
    master, slave = pty.openpty()
    pieces: list[bytes] = []

    def watch() -> None:
        try:
            while piece := os.read(master, 65_536):
                pieces.append(piece)
        except OSError:  # how a terminal says that nobody is left on the other side
            pass

    watching = threading.Thread(target=watch)
    watching.start()
    process = subprocess.Popen(
        [*HOLDFAST, *arguments],
        stdin=slave if given is None else subprocess.PIPE,
        stdout=slave if view else subprocess.PIPE,
        stderr=slave,
        env=environment(TERM="xterm-256color", COLUMNS=str(columns)),
    )
    os.close(slave)
    try:
        os.write(master, typed)
        out, _ = process.communicate(given, timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        watching.join()
        os.close(master)
    return Seen(process.returncode, b"".join(pieces).decode("utf-8", "replace"), out or b"")
