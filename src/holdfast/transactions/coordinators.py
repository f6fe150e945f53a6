"""Which partitions of decisions this node looks after, as leaders come and go.

The node that leads a partition of decisions coordinates it: there it has one task, for one reign. Where a task fails
for a reason of the world (or a bug of ours) it begins again after a wait, and that is counted and logged: the writers
of one partition never stop those of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.broker.broker import Broker
from holdfast.broker.processing import backoff_ms
from holdfast.broker.reign import Reign
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId, TimestampMs
from holdfast.model.topics import Topic
from holdfast.transactions.coordinator import Coordinator
from holdfast.transactions.settings import LogEvent, Settings, TransactionStats
from holdfast.transactions.writers import Writers
from holdfast.wire.transactions import DECISIONS

_LAPSED_S: Final = 0.1


class _Run(NamedTuple):
    reign: int
    task: asyncio.Task[None]


class Coordinators:
    """Runs a coordinator for each partition of decisions that is led here."""

    def __init__(
        self,
        broker: Broker,
        writers: Writers,
        settings: Settings,
        stats: TransactionStats,
        now_ms: Callable[[], TimestampMs],
        log: LogEvent,
    ) -> None:
        self._broker = broker
        self._writers = writers
        self._settings = settings
        self._stats = stats
        self._now_ms = now_ms
        self._log = log
        self._runs: dict[PartitionId, _Run] = {}
        # Every task that has not ended, also one whose reign is over.
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def start(self) -> None:
        self._broker.backend.watch_reigns(self._look_at, of_internal=True)
        self._broker.backend.watch_topics(self._on_topic)

    async def stop(self) -> None:
        """What is not done is done by whoever leads next."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_topic(self, topic: Topic) -> None:
        if topic.name == DECISIONS:
            for number in range(topic.config.partitions):
                self._look_at(PartitionId(DECISIONS, number))

    def _look_at(self, partition: PartitionId) -> None:
        if partition.topic != DECISIONS:
            return
        reign = self._broker.backend.reign(partition)
        run = self._runs.get(partition)
        if run is not None:
            if run.reign == reign:
                return
            run.task.cancel()
            del self._runs[partition]
        if reign is None or self._is_stopping:
            return
        task = asyncio.create_task(self._keep_running(partition, reign), name=f"coordinate {partition}")
        self._runs[partition] = _Run(reign, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_running(self, partition: PartitionId, reign_number: int) -> None:
        reign = Reign(self._broker.backend, partition, reign_number)
        coordinator = Coordinator(
            self._broker, partition, reign, self._writers, self._settings, self._stats, self._now_ms, self._log
        )
        failures = 0
        while True:
            if self._broker.backend.reign(partition) != reign_number:
                # A lease that lapsed may come back under the same number, of which nobody is told. Any other change is,
                # and ends this task.
                await asyncio.sleep(_LAPSED_S)
                continue
            before = self._stats.committed
            try:
                await coordinator.run()
            except Exception as error:  # noqa: BLE001 - logged, counted and tried again; see the module's text
                failures = 1 if self._stats.committed > before else failures + 1
                self._stats.restarts += 1
                self._log(
                    "transaction_waits" if isinstance(error, HoldfastError) else "coordinator_failed",
                    partition=partition.number,
                    error=f"{type(error).__name__}: {error}",
                    retry_in_ms=backoff_ms(failures),
                )
            await asyncio.sleep(backoff_ms(failures) / 1000)
