"""What a store that buffers on its own can tell of that: the numbers of seed 003's file buffer."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.broker.backend import Backend


class Buffered(NamedTuple):
    """Messages that wait on this broker's disk, that waited and are stored now, and that the store refused."""

    pending: int = 0
    flushed: int = 0
    failed: int = 0


@runtime_checkable
class Buffering(Protocol):
    """A backend that takes messages while the store behind it is away."""

    def buffered(self) -> Buffered: ...


def buffered(backend: Backend) -> Buffered:
    """What a backend has buffered; one that does not buffer has nothing."""
    return backend.buffered() if isinstance(backend, Buffering) else Buffered()
