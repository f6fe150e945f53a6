"""Long work that pauses, so that whoever does it can let others go on in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

from holdfast.model.limits import MESSAGES_AT_ONCE_MAX

T = TypeVar("T")
Paused = Generator[None, None, T]


def in_parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    """A row of messages, as many at once as others may wait for."""
    if len(whole) <= MESSAGES_AT_ONCE_MAX:
        yield whole
        return
    for first in range(0, len(whole), MESSAGES_AT_ONCE_MAX):
        yield whole[first : first + MESSAGES_AT_ONCE_MAX]


def without_pauses(work: Paused[T]) -> T:
    """What the work comes to, done in one go."""
    while True:
        try:
            next(work)
        except StopIteration as finished:
            result: T = finished.value
            return result
