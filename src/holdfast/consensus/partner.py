"""What one of two thinks of the other: whether it is gone, and who gives way when both went on alone.

Time is an argument, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model.ids import Term

# Who looks less often than this was not running.
_STANDSTILL_S: Final = 0.15


class PairSettings(NamedTuple):
    """How long a partner may be silent, and whether one may go on without it."""

    heartbeat_s: float = 1.0
    misses: int = 3
    requires_backup: bool = False
    # Whether this one begins a new pair when it has never been in one; the other waits for it.
    founds: bool = False

    @property
    def patience_s(self) -> float:
        return self.heartbeat_s * self.misses


class Standing(NamedTuple):
    """What one of two says of itself when they meet."""

    term: Term
    is_alone: bool

    def yields_to(self, other: Standing) -> bool:
        """Whether both went on alone, and the other one did later. Terms of two are never equal (`Raft.take_over`)."""
        return self.is_alone and other.is_alone and self.term < other.term

    def encode(self) -> str:
        return f"{self.term} {'alone' if self.is_alone else 'together'}"

    @classmethod
    def decode(cls, text: str) -> Standing:
        """Raises `ValueError` for anything `encode` does not make."""
        term, _, how = text.partition(" ")
        if how not in ("alone", "together") or not (term.isascii() and term.isdigit()):
            raise ValueError(f"not the standing of one of a pair: {text[:60]!a}")
        return cls(Term(int(term)), how == "alone")


class PartnerWatch:
    """Gone is who refuses a new connection after the old one broke, or was silent for too long.

    Where the partner speaks only when it is asked (`asked`), a heartbeat is missed when it has no answer after half an
    interval. Silence between an answer and the next question says nothing: with one miss allowed, an answer that comes
    a moment later than the one before would make a healthy partner look gone.
    """

    def __init__(self, settings: PairSettings, now_s: float) -> None:
        self.settings = settings
        self.is_away = False
        self.heard_at_s = self._looked_at_s = now_s
        self._was_heard = False
        self._is_linked = False
        # Whether it is asked at all, and since when a question has no answer.
        self._asks = False
        self._asked_s: float | None = None

    def linked(self, now_s: float) -> bool:
        """There is a connection to it; whether it was thought to be gone."""
        self._is_linked = True
        return self.heard(now_s)

    def unlinked(self) -> None:
        self._is_linked = False
        self._asked_s = None

    def asked(self, now_s: float) -> None:
        """A heartbeat left over the connection there is, and is to be answered."""
        self._asks = True
        if self._asked_s is None:
            self._asked_s = now_s

    def heard(self, now_s: float) -> bool:
        """It said something; whether it was thought to be gone."""
        self.heard_at_s = now_s
        self._was_heard = True
        self._asked_s = None
        was_away, self.is_away = self.is_away, False
        return was_away

    def refused(self) -> bool:
        """No process listens there: is it gone since just now? One that was never seen may be about to start."""
        return self._was_heard and not self._is_linked and self._gone()

    def look(self, now_s: float) -> bool:
        """A moment has passed; whether it is gone since just now."""
        if now_s - self._looked_at_s > max(_STANDSTILL_S, min(self.settings.heartbeat_s, self.settings.patience_s / 2)):
            # It was this one that stood still: what the partner said meanwhile was not read yet.
            self.heard_at_s = now_s
        self._looked_at_s = now_s
        return now_s - self._silent_since_s(now_s) > self.settings.patience_s and self._gone()

    def _silent_since_s(self, now_s: float) -> float:
        if not self._asks or not self._is_linked:
            return self.heard_at_s
        if self._asked_s is None:
            return now_s
        return max(self.heard_at_s, self._asked_s - self.settings.heartbeat_s / 2)

    def _gone(self) -> bool:
        was_away, self.is_away = self.is_away, True
        return not was_away
