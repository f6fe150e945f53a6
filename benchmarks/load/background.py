"""A generator that runs beside the driver until it is told to stop, in a process of its own.

`child` runs a load of a known length and waits for it. Here the driver does something to the servers in the
meantime: it kills one, starts another, looks how far they are.
"""

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        kind, content = self._receive(OUTCOME_TIMEOUT_S)
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
def background(function: "Generator[Spec, Outcome]", spec: Spec) -> Iterator[Running[Outcome]]:
    """Have `function(spec, told)` run beside the body of the context, from its first acknowledgement on."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(function, spec, theirs), daemon=True)
    child.start()
    theirs.close()
    running: Running[Outcome] = Running(child, ours)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.end()


def _serve(function: "Generator[Spec, Outcome]", spec: Spec, pipe: Connection) -> None:
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
