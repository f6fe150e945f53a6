"""What a backup takes from the primary it stands behind: the seam between a front end and whoever keeps replicas."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol


class ReplicaSession(Protocol):
    """One connection of a primary."""

    def take(self, lines: Sequence[bytes]) -> Future[bytes]:
        """Packets of replication in their order; the future gives what is answered to all of them, perhaps nothing.

        What is answered is durable. Packets of one session are done with in the order of the calls.
        """
        ...

    def close(self) -> None:
        """The connection is lost."""
        ...


class ReplicaIntake(Protocol):
    def session(self) -> ReplicaSession:
        """For a connection on which the first packet of replication has come."""
        ...
