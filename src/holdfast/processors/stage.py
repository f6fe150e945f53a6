"""Which partitions are processed here, as topics and leaders come and go; and how all of that ends in order.

A partition is processed by the node that leads it: there it has one task, for one reign. When the reign ends, the
task does at once, and the next leader's begins at the cursor. Where a task fails for a reason of the world (or a
bug of ours), it begins again at its cursor after a wait, and the failure is counted and logged: one partition never
stops the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.broker.broker import Broker
from holdfast.broker.processing import backoff_ms, is_derived, processed_topic
from holdfast.broker.reign import Reign
from holdfast.model.errors import BadTopicName, NoQuorum, WorldError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic
from holdfast.processors.outputs import StageStats, ensure_processed
from holdfast.processors.partition import PartitionStage
from holdfast.processors.pool import LogEvent, WorkerPool

# How long a graceful stop waits for what is in the workers; the rest is processed after the restart.
STOP_DEADLINE_S: Final = 10.0


class _Run(NamedTuple):
    """The processing of one partition of one topic in one reign."""

    topic: Topic
    reign: int
    task: asyncio.Task[bool]


class ProcessingStage:
    """Runs one pool's processor over the partitions led here of every topic that `handles` says yes to."""

    def __init__(
        self, broker: Broker, pool: WorkerPool, *, handles: Callable[[TopicName], bool], log: LogEvent
    ) -> None:
        self.stats = StageStats()
        self._broker = broker
        self._pool = pool
        self._handles = handles
        self._log = log
        self._runs: dict[PartitionId, _Run] = {}
        # Every task that has not ended, also one whose reign is over.
        self._tasks: set[asyncio.Task[bool]] = set()
        self._partitions: dict[asyncio.Task[bool], PartitionStage] = {}
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin with the topics there are, follow those that come and whoever leads. The pool must be running.

        The topics there are have their output topics when this returns, so that a front end that is
        started next finds what its subscribers read.
        """
        for topic in self._broker.backend.topics():
            if self._is_for(topic):
                try:
                    await ensure_processed(self._broker, topic)
                except WorldError as error:
                    # Its partitions wait until it is possible.
                    self._log("processor_output_waits", topic=topic.name, error=error.message)
                    if isinstance(error, NoQuorum):
                        break  # nor for any other topic, and each would wait for it anew
        self._broker.backend.watch_reigns(self._look_at)
        self._broker.on_topic(self._follow)

    async def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Read nothing more and store what is in the workers; says whether all of it was in time.

        What was not stays behind the cursor and is processed by the next run.
        """
        self._stopping.set()
        for partition in self._partitions.values():
            partition.finish()
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        for task in tasks:
            task.cancel()
        # A task that finished gives True; one that had to be cancelled, or gave up, does not.
        unfinished = sum(done is not True for done in await asyncio.gather(*tasks, return_exceptions=True))
        self._log("processor_stage_stopped", partitions=len(tasks), unfinished=unfinished)
        return not unfinished

    def _follow(self, topic: Topic) -> None:
        """A topic is there, from before or from now on; one of the same name may have been deleted."""
        if self._is_for(topic, says_why_not=True):
            for number in range(topic.config.partitions):
                self._look_at(PartitionId(topic.name, number))

    def _look_at(self, partition: PartitionId) -> None:
        """The partition is new, or its leader may have changed: process it if it is led here, and only then."""
        topic = self._broker.backend.topic(partition.topic)
        reign = self._broker.backend.reign(partition)
        run = self._runs.get(partition)
        if run is not None:
            if run.topic == topic and run.reign == reign:
                return
            run.task.cancel()
            del self._runs[partition]
        if topic is None or reign is None or self._stopping.is_set() or not self._is_for(topic):
            return
        task = asyncio.create_task(self._keep_running(topic, partition, reign), name=f"process {partition}")
        self._runs[partition] = _Run(topic, reign, task)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(partition, task))

    def _ended(self, partition: PartitionId, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        run = self._runs.get(partition)
        if run is not None and run.task is task:
            del self._runs[partition]

    def _is_for(self, topic: Topic, *, says_why_not: bool = False) -> bool:
        if is_internal(topic.name) or is_derived(topic.name) or not self._handles(topic.name):
            return False
        try:
            processed_topic(topic.name)
        except BadTopicName as error:
            if says_why_not:
                self._log("processor_name_too_long", topic=topic.name, error=error.message)
            return False
        return True

    async def _keep_running(self, topic: Topic, partition: PartitionId, reign_number: int) -> bool:
        """Returns whether the last run ended with everything stored."""
        task = asyncio.current_task()
        assert task is not None
        failures = 0
        reign = Reign(self._broker.backend, partition, reign_number)
        while not self._stopping.is_set():
            stored = self.stats.stored
            self._partitions[task] = PartitionStage(
                self._broker, self._pool, topic, partition.number, reign, self.stats, self._log
            )
            try:
                await self._partitions[task].run()
                return True
            except Exception as error:  # noqa: BLE001 - logged, counted and tried again; see the module's text
                failures = 1 if self.stats.stored > stored else failures + 1
                self.stats.restarts += 1
                self._log(
                    "processor_partition_failed",
                    topic=topic.name,
                    partition=partition.number,
                    error=_reasons(error),
                    retry_in_ms=backoff_ms(failures),
                )
            finally:
                del self._partitions[task]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_ms(failures) / 1000):
                    await self._stopping.wait()
        return False


def _reasons(error: BaseException) -> str:
    """What went wrong, also where several things did at once."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reasons(inner) for inner in error.exceptions))
    return f"{type(error).__name__}: {error}"
