"""A broker for commands to talk to, and what they publish."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testkit.commands import Ended, Running, holdfast
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
