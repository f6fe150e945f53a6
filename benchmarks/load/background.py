"""A generator in a process of its own, so that neither the driver nor an earlier run slows it.

`in_child` runs a load of a known length and waits for it. `background` runs one until it is told to stop, while the
driver does something to the servers: it kills one, starts another, looks how far they are.
"""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, TypeVar, cast

from benchmarks.load.wire import LoadFailed

Spec = TypeVar("Spec")
Outcome = TypeVar("Outcome")

READY_TIMEOUT_S = 30.0
OUTCOME_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 5.0


class Told:
    """What the generator sees of its driver: whether it should stop, also because the driver is gone."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @property
    def to_stop(self) -> bool:
        # A pipe whose other end was closed counts as readable.
        return self._pipe.poll(0)

    def say_ready(self) -> None:
        """The first message is acknowledged: from here on it counts."""
        self._pipe.send(("ready", None))


Generator = Callable[[Spec, Told], Outcome]


class Running(Generic[Outcome]):
    """The driver's end."""

    def __init__(self, child: SpawnProcess, pipe: Connection) -> None:
        self._child = child
        self._pipe = pipe

    def wait_until_ready(self) -> None:
        kind, content = self._receive(READY_TIMEOUT_S)
        if kind != "ready":
            raise LoadFailed(content if kind == "error" else "the generator ended at once")

    def stop(self) -> Outcome:
        """Ask for the end; what came of it."""
        with suppress(BrokenPipeError):  # it has ended on its own, and what it said is there to be read
            self._pipe.send("stop")
        return self.outcome(OUTCOME_TIMEOUT_S)

    def outcome(self, timeout_s: float) -> Outcome:
        kind, content = self._receive(timeout_s)
        if kind != "outcome":
            raise LoadFailed(str(content))
        return cast(Outcome, content)

    def check(self) -> None:
        """Raise when it has ended on its own."""
        if self._pipe.poll(0):
            _, content = self._receive(0)
            raise LoadFailed(str(content))

    def _receive(self, timeout_s: float) -> tuple[str, object]:
        if not self._pipe.poll(timeout_s):
            raise LoadFailed(f"the generator said nothing for {timeout_s:.0f} s")
        try:
            return cast(tuple[str, object], self._pipe.recv())
        except EOFError as ended:
            raise LoadFailed("the generator ended without a result") from ended

    def end(self) -> None:
        self._pipe.close()
        self._child.join(JOIN_TIMEOUT_S)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()


@contextmanager
def _started(
    function: "Generator[Spec, Outcome]", spec: Spec, cores: set[int] | None = None
) -> Iterator[Running[Outcome]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(function, spec, theirs, cores), daemon=True)
    child.start()
    theirs.close()
    running: Running[Outcome] = Running(child, ours)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def background(function: "Generator[Spec, Outcome]", spec: Spec) -> Iterator[Running[Outcome]]:
    """Have `function(spec, told)` run beside the body of the context, from its first acknowledgement on."""
    with _started(function, spec) as running:
        running.wait_until_ready()
        yield running


def in_child(
    function: Callable[[Spec], Outcome], spec: Spec, timeout_s: float, cores: set[int] | None = None
) -> Outcome:
    """Call `function(spec)` in a fresh interpreter on these cores; a child that takes too long is ended."""
    with _started(partial(_untold, function), spec, cores) as running:
        return running.outcome(timeout_s)


def _untold(function: Callable[[Spec], Outcome], spec: Spec, _told: Told) -> Outcome:
    return function(spec)


def _serve(function: "Generator[Spec, Outcome]", spec: Spec, pipe: Connection, cores: set[int] | None) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    # A collection in the middle of a run would show as a latency of the server.
    gc.disable()
    try:
        answer: tuple[str, object] = ("outcome", function(spec, Told(pipe)))
    except (LoadFailed, OSError, ValueError) as error:
        answer = ("error", f"{type(error).__name__}: {error}")
    try:
        pipe.send(answer)
    except OSError:
        return  # nobody waits for it any more
    finally:
        pipe.close()
