"""Worker processes for everything that has to be processed, and what happens when they fail.

Each worker has one task here that hands it message after message. A worker that hangs is killed and
replaced, one that dies is replaced; both cost the message it had one attempt. A worker that cannot be
started again (the function's file is gone, say) costs no message anything: the pool keeps trying.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Final, Protocol

import msgspec

from holdfast.broker.processing import (
    Dropped,
    GaveUp,
    Outcome,
    Transformed,
    backoff_ms,
    retry_delay_ms,
    short_error,
)
from holdfast.model.errors import ConfigError, ShuttingDown
from holdfast.processors import protocol
from holdfast.processors.child import Child, WorkerLost
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec

# Waiting for a worker; whoever comes then waits to be let in. Deep enough that no worker ever idles.
QUEUE_MESSAGES_PER_WORKER: Final = 4


class LogEvent(Protocol):
    """Writes one line for the operator: what happened, and the facts as fields (structlog's shape)."""

    def __call__(self, event: str, /, **fields: object) -> object: ...


# The events an operator should see at once; the others tell of the normal course.
WARNINGS: Final = frozenset(
    {
        "processor_failed",
        "processor_dead_letter",
        "processor_skipped",
        "processor_output_waits",
        "processor_partition_failed",
        "processor_cursor_past_end",
        "processor_name_too_long",
        "processor_restarted",
        "processor_not_restarted",
    }
)


class PoolStats(msgspec.Struct):
    """Counters since the start; `busy` and `workers` are how many there are right now."""

    processed: int = 0
    dropped: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    timeouts: int = 0
    restarts: int = 0
    busy: int = 0
    workers: int = 0


class _Job(msgspec.Struct, frozen=True):
    request: bytes
    reply: Future[protocol.Reply]


class WorkerPool:
    """N worker processes that run one processor."""

    def __init__(self, spec: ProcessorSpec, settings: ProcessorSettings, log: LogEvent) -> None:
        self.spec = spec
        self.settings = settings.checked(spec)
        self.stats = PoolStats()
        self._log = log
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(QUEUE_MESSAGES_PER_WORKER * self.settings.worker_count)
        self._children: dict[int, Child] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers; `ConfigError` if the processor cannot be loaded. Nothing is left then."""
        numbers = range(self.settings.worker_count)
        started = await asyncio.gather(*map(self._start_child, numbers), return_exceptions=True)
        failures = [failure for failure in started if isinstance(failure, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]
        self._tasks = [asyncio.create_task(self._serve(number), name=f"processor-{number}") for number in numbers]
        self._log("processor_started", processor=str(self.spec), workers=len(self._tasks))

    async def stop(self) -> None:
        """End all workers. Messages still inside fail with `ShuttingDown`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        while not self._jobs.empty():
            _refuse(self._jobs.get_nowait())
            await asyncio.sleep(0)  # whoever waited to be let in comes in now, to be refused as well
        children, self._children = list(self._children.values()), {}
        await asyncio.gather(*(child.close() for child in children))
        self.stats.workers = 0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run now."""
        return [child.pid for child in self._children.values() if not child.exited]

    async def run(self, message: protocol.ProcessorMessage) -> Outcome:
        """Have a message processed, with as many attempts as are allowed."""
        request = protocol.frame(message)
        attempts = 0
        while True:
            attempts += 1
            reply = await self._attempt(request)
            if isinstance(reply, protocol.Value):
                self.stats.processed += 1
                return Transformed(reply.value)
            if isinstance(reply, protocol.Drop):
                self.stats.processed += 1
                self.stats.dropped += 1
                return Dropped()
            self.stats.failed += 1
            delay_ms = retry_delay_ms(attempts, self.settings.attempts_max)
            if delay_ms is None:
                self.stats.dead += 1
                return GaveUp(short_error(reply.error), attempts)
            self.stats.retried += 1
            self._log(
                "processor_failed",
                topic=message.topic,
                partition=message.partition,
                offset=message.offset,
                attempt=attempts,
                error=reply.error,
                retry_in_ms=delay_ms,
            )
            await asyncio.sleep(delay_ms / 1000)

    async def _attempt(self, request: bytes) -> protocol.Reply:
        if not self._tasks:
            raise ShuttingDown("the processor is not running")
        job = _Job(request, asyncio.get_running_loop().create_future())
        await self._jobs.put(job)
        return await job.reply

    async def _serve(self, number: int) -> None:
        """Give one worker message after message, for as long as the pool runs."""
        deaths = 0
        while True:
            job = await self._jobs.get()
            try:
                if number not in self._children or self._children[number].exited:
                    # It died with nothing to do, which is no message's fault.
                    await self._replace(number, deaths)
                if not job.reply.done():
                    deaths = await self._answer(number, job, deaths)
            finally:
                _refuse(job)
            if deaths:
                await self._replace(number, deaths)

    async def _answer(self, number: int, job: _Job, deaths: int) -> int:
        """Ask the worker and pass its reply on; returns its deaths in a row, 0 while it lives."""
        self.stats.busy += 1
        reply: protocol.Reply
        try:
            reply = await self._children[number].ask(job.request, self.settings.timeout_ms / 1000)
            deaths = 0
        except WorkerLost as lost:
            self.stats.timeouts += lost.hung
            reply = protocol.Failed(lost.reason)
            deaths += 1
        finally:
            self.stats.busy -= 1
        if not job.reply.done():
            job.reply.set_result(reply)
        return deaths

    async def _replace(self, number: int, deaths: int) -> None:
        """Put a new worker in the place of a lost one, and keep trying if that fails."""
        child = self._children.get(number)
        if child is not None:
            # It stays in the list until it is gone: a stop of the pool meanwhile waits for it, too.
            await child.kill()
            del self._children[number]
        self.stats.workers = len(self._children)
        while True:
            # The first death is most likely one bad message: the next one need not wait for that.
            await asyncio.sleep(backoff_ms(deaths - 1) / 1000)
            self.stats.restarts += 1
            try:
                await self._start_child(number)
            except (ConfigError, OSError) as error:
                deaths += 1
                self._log(
                    "processor_not_restarted", worker=number, error=str(error), retry_in_ms=backoff_ms(deaths - 1)
                )
            else:
                self._log("processor_restarted", worker=number, pid=self._children[number].pid)
                return

    async def _start_child(self, number: int) -> None:
        self._children[number] = await Child.start(self.spec.arguments(number))
        self.stats.workers = len(self._children)


def _refuse(job: _Job) -> None:
    if not job.reply.done():
        job.reply.set_exception(ShuttingDown("the processor was stopped"))
