"""The `holdfast` command: run in this process to its end, or in one of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import IO, Any, Final
from unittest import mock

from holdfast.cli.app import main
from testkit.wait import PATIENCE_S

HOLDFAST: Final = (sys.executable, "-m", "holdfast.cli")
# A command that takes longer than this is broken.
DEADLINE_S: Final = 60.0


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
    """This process's variables without Holdfast's own, and with a screen that does not break words."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**plain, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", **more}


def holdfast(*arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end, in this process: milliseconds, where a process of its own takes 0.4 s.

    For commands that serve nothing, start nothing and get no signal. Their streams are files, as in a shell that
    redirects them.
    """
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(given)
        stdin.seek(0)
        with _as_if_typed(arguments, environment(**(env or {}))), _streams(stdin, stdout, stderr):
            code = _run_main()
        wait_for_input_threads()
        stdout.seek(0)
        stderr.seek(0)
        return Ended(code, stdout.read(), stderr.read())


def wait_for_input_threads() -> None:
    """Call it before an input of `holdfast publish` is closed.

    The thread that reads it may be about to read once more, and would take what the next file or socket of the same
    number gets.
    """
    for thread in threading.enumerate():
        if thread.name == "input":
            thread.join(PATIENCE_S)


def _run_main() -> int:
    """The exit code; what is raised and not told in a line is a bug, and passes through."""
    try:
        main()
    except SystemExit as ended:
        assert isinstance(ended.code, int), ended
        return ended.code
    return 0


@contextmanager
def _as_if_typed(arguments: tuple[str, ...], variables: Mapping[str, str]) -> Iterator[None]:
    """Put back what a command changes in its process, which is otherwise gone with it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client_log = logging.getLogger("holdfast.client")
    with (
        mock.patch.object(sys, "argv", ["holdfast", *arguments]),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(client_log, "handlers", []),
        mock.patch.object(client_log, "propagate", client_log.propagate),
    ):
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def _streams(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> Iterator[None]:
    wrapped = [TextIOWrapper(each, encoding="utf-8", write_through=True) for each in (stdin, stdout, stderr)]
    names = ("stdin", "stdout", "stderr")
    before = [getattr(sys, name) for name in names]
    try:
        for name, stream in zip(names, wrapped, strict=True):
            setattr(sys, name, stream)
        yield
    finally:
        for name, stream in zip(names, before, strict=True):
            setattr(sys, name, stream)
        for each in wrapped:
            each.flush()
            each.detach()


def holdfast_process(
    *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Ended:
    """Run a command to its end, in a process of its own."""
    done = subprocess.run(
        [*HOLDFAST, *arguments],
        input=given,
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
        """How it ended, and what it said that nobody has read. `communicate` would lose what `line` has read ahead."""
        process = self.process
        assert process.stdout is not None and process.stderr is not None
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        with ThreadPoolExecutor(2) as readers:
            out, err = readers.submit(process.stdout.read), readers.submit(process.stderr.read)
            try:
                code = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return Ended(code, out.result(), err.result())
