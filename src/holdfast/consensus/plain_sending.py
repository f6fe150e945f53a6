"""What a primary may acknowledge, and what it sends to its backup next: rules of numbers, for any kind of backup.

Numbers are places in the journal; a position is the number of the next entry. An entry is *stored* when it is on this
broker's disk, and only then sent; *confirmed* when the backup said so; and *committed* when it may be acknowledged and
delivered. Together with a backup, that is when it is confirmed. Alone, it is when it is stored.

A primary that was alone is together with its backup again once everything that was committed before is confirmed.
Shortly before that, new entries begin to wait for the backup: otherwise there would always be one under way.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

# Sent and not answered: more is not sent, so that a backup that is behind is not drowned.
IN_FLIGHT_MAX: Final = 4096
# So few entries behind, and new ones wait for the backup.
NEAR: Final = 1000


class Mode(Enum):
    ALONE = "alone"
    CATCHING_UP = "catching up"
    TOGETHER = "together"


class BadConfirmation(Exception):
    """A backup confirmed what it was never sent."""


class Sending:
    """One reign of one primary. `committed`: what may be delivered already, as an earlier life knows."""

    def __init__(self, *, stored: int, committed: int, confirmed: int, requires_backup: bool) -> None:
        assert committed <= stored
        self.stored = stored
        self.committed = committed
        self.confirmed = min(confirmed, stored)
        self.mode = Mode.CATCHING_UP
        # The next entry to send on this connection, if there is one.
        self.sent: int | None = None
        # Whether the backup answers with confirmations; of a foreign one that is assumed until it does not.
        self.confirms = True
        self._requires_backup = requires_backup
        self._target = committed
        self._reached = 0

    @property
    def reached(self) -> int:
        """Below this the backup was heard to have read, if not to have stored: there is no need to send it again."""
        return max(self.confirmed, self._reached)

    @property
    def has_open(self) -> bool:
        """Whether something was sent on this connection that is not confirmed."""
        return self.sent is not None and self.sent > self.confirmed

    def stored_to(self, position: int) -> None:
        self.stored = max(self.stored, position)
        self._settle()

    # --- the connection -------------------------------------------------------------------------------

    def opened(self, position: int, *, confirms: bool) -> None:
        """There is a backup that has everything below `position`, and is not known to have more.

        That may be less than it once confirmed: its disk may be another one, or it may have none.
        """
        assert position <= self.stored
        self.sent = self.confirmed = self._reached = position
        self.confirms = confirms
        if not confirms or self.stored - position > NEAR:
            self.mode = Mode.ALONE
        elif self.mode is Mode.TOGETHER:
            self._begin_to_catch_up()
        self._settle()

    def closed(self) -> None:
        """The connection is lost; the backup is not known to be gone."""
        self.sent = None

    def gone(self) -> None:
        """The backup is away, or of no use: go on alone."""
        self.sent = None
        self.mode = Mode.ALONE
        self._settle()

    def never_confirms(self) -> None:
        """The backup reads and does not confirm: what is on this disk counts, until it does."""
        self.confirms = False
        self.mode = Mode.ALONE
        self._settle()

    # --- sending --------------------------------------------------------------------------------------

    def next_to_send(self) -> tuple[int, int] | None:
        """The entries to send now, if any: from a position up to another."""
        if self.sent is None:
            return None
        end = min(self.stored, self.reached + IN_FLIGHT_MAX)
        return (self.sent, end) if self.sent < end else None

    def sent_to(self, position: int) -> None:
        assert self.sent is not None and self.sent <= position <= self.stored
        self.sent = position
        self._settle()

    def confirm(self, position: int) -> bool:
        """The backup has everything below; whether that was not known yet."""
        if self.sent is None or position > self.sent:
            raise BadConfirmation(f"{position} is confirmed, but {self.sent} was not sent yet")
        if position <= self.confirmed:
            return False
        self.confirms = True
        self.confirmed = position
        self._settle()
        return True

    def read_to(self, position: int) -> None:
        """The backup answered something that was said behind the entries below."""
        self._reached = max(self._reached, position)

    # --- what follows ---------------------------------------------------------------------------------

    def _begin_to_catch_up(self) -> None:
        self.mode = Mode.CATCHING_UP
        self._target = self.committed

    def _settle(self) -> None:
        if self.mode is Mode.ALONE:
            is_near = self.confirms and self.sent is not None and self.stored - self.confirmed <= NEAR
            if not self._requires_backup:
                self.committed = self.stored
            if is_near:
                self._begin_to_catch_up()
        if self.mode is not Mode.ALONE or self._requires_backup:
            self.committed = max(self.committed, min(self.stored, self.confirmed))
        if self.mode is Mode.CATCHING_UP and self.sent is not None and self.confirmed >= self._target:
            self.mode = Mode.TOGETHER
