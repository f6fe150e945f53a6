"""What an error says about the request that it answers, by one of three disjoint base classes.

- `Refused`: nothing was changed, and the same request will be refused again.
- `NotStored`: nothing was changed, and a later try may work.
- `OutcomeUnknown`: all of it, a part of it or nothing may have been stored.

Only what failed with `NotStored` may be sent again without an id, or kept in a spill without a marker.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Final, Self


class HoldfastError(Exception):
    """Base of everything Holdfast raises on purpose; `code` is stable, the text is for people."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WorldError(HoldfastError):
    """The world's fault, such as a disk, a peer or a database; either of the two below says what is known."""


class Refused(HoldfastError):
    """Nothing was changed, and the same request will be refused again."""

    code = "bad_request"
    http_status = 400


class NotStored(WorldError):
    """Nothing was changed. The same request may be sent again, also without ids."""

    code = "unavailable"
    http_status = 503


class OutcomeUnknown(WorldError):
    """All of it, a part or nothing was stored. Only messages with ids may be sent again."""

    code = "outcome_unknown"
    http_status = 503


OUTCOMES: Final = (Refused, NotStored, OutcomeUnknown)


class RemoteError(HoldfastError):
    """An error a broker answered with; the client raises it with the broker's own code.

    Made of its code, it is also one of the three bases: `RemoteError("disk_full", …)` is `NotStored`.
    `next_offset` is where a reader goes on behind damage.
    """

    code = "remote"

    def __new__(cls, code: str, message: str = "", http_status: int = 500, next_offset: int | None = None) -> Self:
        kind: type = _remote_kind(code, http_status) if cls is RemoteError else cls
        return super().__new__(kind)

    def __init__(self, code: str, message: str, http_status: int = 500, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset
        self.code = code  # type: ignore[misc]
        self.http_status = http_status  # type: ignore[misc]

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders in job runners; the default would forget code and status.
        return type(self), (self.code, self.message, self.http_status, self.next_offset)


class RemoteRefused(RemoteError, Refused):
    pass


class RemoteNotStored(RemoteError, NotStored):
    pass


class RemoteOutcomeUnknown(RemoteError, OutcomeUnknown):
    pass


def codes_of(base: type[HoldfastError]) -> frozenset[str]:
    """The codes of all errors that a broker can answer with and that are of this base."""
    return frozenset(found.code for found in _kinds_of(base) if not issubclass(found, RemoteError))


def _kinds_of(base: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [base, *(found for kind in base.__subclasses__() for found in _kinds_of(kind))]


@functools.cache
def _remote_kinds() -> dict[str, type[RemoteError]]:
    kinds = ((Refused, RemoteRefused), (NotStored, RemoteNotStored), (OutcomeUnknown, RemoteOutcomeUnknown))
    return {code: remote for base, remote in kinds for code in codes_of(base)}


def _remote_kind(code: str, http_status: int) -> type[RemoteError]:
    """A code that only other versions know, or something that is no broker: only a 4xx says that nothing was done."""
    by_status = RemoteRefused if 400 <= http_status < 500 else RemoteOutcomeUnknown
    return _remote_kinds().get(code, by_status)
