"""Clients that keep a cluster busy and write down in a history what they were told.

A new workload is a class that follows `Workload`, and a line in `chaos.run`; nothing else has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Protocol

from holdfast.testing.node_process import Setting
from testkit.cluster import BreakableCluster
from testkit.history import History, Place


class Workload(Protocol):
    """Clients of one kind, on the event loop of the run; what other threads call is marked."""

    name: ClassVar[str]
    # What the nodes have to be told for it, beside what they are told anyway.
    settings: ClassVar[Mapping[str, Setting]]

    def __init__(self, cluster: BreakableCluster, history: History, seed: str, rate: float) -> None:
        """`rate` is how many messages a second all workloads are to publish together."""

    async def start(self) -> None:
        """Make what is needed and begin."""

    async def stop_sending(self) -> None:
        """Nothing new is sent; what was begun is finished or given up."""

    async def read_to_the_end(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        """Wait until whoever reads has got all there is, up to where places end; who has not, and how far it came."""

    async def stop(self) -> None:
        """Everybody leaves."""

    def places(self) -> list[Place]:
        """Any thread: partitions it uses, for faults that look for their leaders."""

    def progress(self) -> int:
        """Any thread: grows as long as a majority is well, whoever else is not."""

    def begin_waiting(self) -> Callable[[], bool]:
        """Any thread: what is true once every client has come further than now."""

    def checks(self) -> Mapping[str, Iterator[str]]:
        """Violations of promises that only this workload knows of, by kind; the history is checked for all."""

    def totals(self) -> Mapping[str, int]:
        """For the table at the end."""

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        """What everybody was refused with, and how often."""
