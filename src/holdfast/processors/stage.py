"""Which partitions are processed, now and as topics come and go; and how all of that ends in order.

Each partition has one task. Where it fails for a reason of the world (or a bug of ours), it begins again
at its cursor after a wait, and the failure is counted and logged: one partition never stops the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from holdfast.broker.broker import Broker
from holdfast.broker.processing import backoff_ms, is_derived, processed_topic
from holdfast.model.errors import BadTopicName, WorldError
from holdfast.model.ids import TopicName
from holdfast.model.topics import Topic
from holdfast.processors.outputs import Outputs, StageStats
from holdfast.processors.partition import PartitionStage
from holdfast.processors.pool import LogEvent, WorkerPool

# How long a graceful stop waits for what is in the workers; the rest is processed after the restart.
STOP_DEADLINE_S: Final = 10.0


class ProcessingStage:
    """Runs one pool's processor over every partition of the topics that `handles` says yes to."""

    def __init__(
        self, broker: Broker, pool: WorkerPool, *, handles: Callable[[TopicName], bool], log: LogEvent
    ) -> None:
        self.stats = StageStats()
        self._broker = broker
        self._pool = pool
        self._handles = handles
        self._log = log
        self._tasks: dict[TopicName, set[asyncio.Task[bool]]] = {}
        self._partitions: dict[asyncio.Task[bool], PartitionStage] = {}
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin with the topics there are and follow those that come. The pool must be running.

        The topics there are have their output topics when this returns, so that a front end that is
        started next finds what its subscribers read.
        """
        for topic in self._broker.backend.topics():
            if self._is_for(topic):
                try:
                    await Outputs(self._broker, topic, 0, self.stats, self._log).ensure_processed()
                except WorldError as error:
                    # Its partitions wait until it is possible.
                    self._log("processor_output_waits", topic=topic.name, error=error.message)
        self._broker.on_topic(self._follow)

    async def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Read nothing more and store what is in the workers; says whether all of it was in time.

        What was not stays behind the cursor and is processed by the next run.
        """
        self._stopping.set()
        for partition in self._partitions.values():
            partition.finish()
        tasks = set().union(*self._tasks.values())
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
        if self._stopping.is_set() or not self._is_for(topic):
            return
        tasks = self._tasks.setdefault(topic.name, set())
        for task in tasks:
            task.cancel()
        for number in range(topic.config.partitions):
            task = asyncio.create_task(self._keep_running(topic, number), name=f"process {topic.name}/{number}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _is_for(self, topic: Topic) -> bool:
        if is_derived(topic.name) or not self._handles(topic.name):
            return False
        try:
            processed_topic(topic.name)
        except BadTopicName as error:
            self._log("processor_name_too_long", topic=topic.name, error=error.message)
            return False
        return True

    async def _keep_running(self, topic: Topic, number: int) -> bool:
        """Returns whether the last run ended with everything stored."""
        task = asyncio.current_task()
        assert task is not None
        failures = 0
        while not self._stopping.is_set():
            stored = self.stats.stored
            self._partitions[task] = PartitionStage(self._broker, self._pool, topic, number, self.stats, self._log)
            try:
                await self._partitions[task].run()
                return True
            except Exception as error:  # noqa: BLE001 - logged, counted and tried again; see the module's text
                failures = 1 if self.stats.stored > stored else failures + 1
                self.stats.restarts += 1
                self._log(
                    "processor_partition_failed",
                    topic=topic.name,
                    partition=number,
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
