"""Runs a generator in a process of its own, so that neither the driver nor an earlier run slows it."""

import gc
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from benchmarks.load.wire import LoadFailed

Spec = TypeVar("Spec")
Outcome = TypeVar("Outcome")

JOIN_TIMEOUT_S = 5.0


def in_child(
    function: Callable[[Spec], Outcome], spec: Spec, timeout_s: float, cores: set[int] | None = None
) -> Outcome:
    """Call `function(spec)` in a fresh interpreter on these cores; a child that takes too long is ended."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(function, spec, sender, cores), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            raise LoadFailed(f"the generator gave no result within {timeout_s:.0f} s")
        try:
            outcome, error = receiver.recv()
        except EOFError as ended:
            raise LoadFailed("the generator ended without a result") from ended
        if error is not None:
            raise LoadFailed(error)
        return cast(Outcome, outcome)
    finally:
        child.join(JOIN_TIMEOUT_S)
        if child.is_alive():
            child.kill()
            child.join()
        receiver.close()


def _serve(function: Callable[[Spec], Outcome], spec: Spec, sender: Connection, cores: set[int] | None) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    # A collection in the middle of a run would show as a latency of the server.
    gc.disable()
    try:
        sender.send((function(spec), None))
    except (LoadFailed, OSError, ValueError) as error:
        sender.send((None, f"{type(error).__name__}: {error}"))
    finally:
        sender.close()
