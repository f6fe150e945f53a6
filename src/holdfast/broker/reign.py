"""The right to process one partition: the node that leads it has it, for as long as it does.

Whoever loses it is told at once, unless nothing can be told: a node that was stopped, or cut off, believes for a
moment after it wakes that it leads as before. What it stores then meets the ids of what its successor stored, but
ids are remembered for minutes only. So whatever is stored was preceded, within a second, by a majority that knew
of no other leader.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.broker.backend import Backend
from holdfast.model.errors import NotLeader
from holdfast.model.ids import PartitionId

# Far below the age at which ids are forgotten, and rare enough not to be felt.
CONFIRMED_S_MAX: Final = 1.0


class Reign:
    """One reign of this node over one partition."""

    def __init__(self, backend: Backend, partition: PartitionId, number: int) -> None:
        self.number = number
        self._backend = backend
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._confirmed_s = float("-inf")

    async def confirm(self) -> None:
        """Make sure that no other node leads, if that is not known anyway. Raises `NotLeader`, `NoQuorum`."""
        asked_s = self._loop.time()
        if asked_s - self._confirmed_s > CONFIRMED_S_MAX:
            await self._backend.catch_up(self._partition)
            self._confirmed_s = asked_s
        if self._backend.reign(self._partition) != self.number:
            raise NotLeader(f"another node processes {self._partition} now")
