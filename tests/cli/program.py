"""Running the program under test: commands that end, commands that are watched, and brokers to use them on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from testkit.wait import wait_until

from holdfast.client import BlockingClient, connect_blocking
from holdfast.testing.ports import free_port

HOLDFAST = (sys.executable, "-m", "holdfast.cli")
# A command or a broker that takes longer than this is broken.
DEADLINE_S = 60.0


class Ended:
    """A command that has ended: its code and what it said."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"<exit {self.code}, out {self.out[-2000:]!r}, err {self.err[-2000:]!r}>"


def environment(**more: str) -> dict[str, str]:
    """Ours without settings of whoever runs the tests, and with a screen that does not break words."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**plain, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", **more}


def holdfast(
    *arguments: str, given: bytes | None = None, env: dict[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Ended:
    """Run a command to its end."""
    done = subprocess.run(
        [*HOLDFAST, *arguments],
        input=b"" if given is None else given,
        capture_output=True,
        env=environment(**(env or {})),
        timeout=deadline_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that runs while something else happens."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [*HOLDFAST, *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def line(self) -> bytes:
        """The next line of its output; the test's own timeout is the deadline."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, how: signal.Signals) -> Ended:
        self.process.send_signal(how)
        return self.ended()

    def ended(self) -> Ended:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return Ended(self.process.returncode, out, err)


class Broker:
    """`holdfast serve` on a directory, on an HTTP port that stays the same over restarts."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.data = directory / "data"
        self.http = f"127.0.0.1:{free_port()}"
        self.text = ""
        self._options = options
        self._ready_file = directory / "ready.json"
        self._log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        places = ("--data", str(self.data), "--http", self.http, "--text", "127.0.0.1:0")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*HOLDFAST, "serve", *places, "--ready-file", str(self._ready_file), *self._options],
                stdout=log,
                stderr=log,
                env=environment(),
            )
        process = self._process
        wait_until(lambda: self._ready_file.exists() or process.poll() is not None, "the broker starts")
        assert process.poll() is None, self._log.read_text()
        self.text = json.loads(self._ready_file.read_text())["text"]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(how)
        code = self._process.wait(DEADLINE_S)
        self._process = None
        return code

    def run(self, *arguments: str, given: bytes | None = None) -> Ended:
        """A command that talks to this broker."""
        return holdfast(*arguments, "--server", self.http, given=given)

    def running(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> Running:
        return Running(*arguments, "--server", self.http, stdin=stdin)

    def client(self) -> BlockingClient:
        """For looking at the broker without starting a program for it."""
        return connect_blocking(self.http)

    def ok(self, *arguments: str, given: bytes | None = None) -> Ended:
        """A command that has to work."""
        ended = self.run(*arguments, given=given)
        assert ended.code == 0, ended
        return ended


def numbered(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, count + 1))
