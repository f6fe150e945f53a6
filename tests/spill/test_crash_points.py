"""Pushes, outages, crashes and torn files in any order: what was acknowledged is stored once, in order."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from testkit.batches import values_batch

from holdfast.backends.spill import files
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.settings import SpillSettings
from holdfast.model.ids import PartitionId, TimestampMs, TopicName
from tests.spill.model import ModelBackend, ModelStore, ModelTarget

TORN_ENDS = [b"", b'{"queue":"t","par', bytes(40), b'{"queue":"t"}\n{"que', b"\n", b"\xff\xfe\n\n"]


class CrashPoints(RuleBasedStateMachine):
    @initialize(events_per_file=st.integers(1, 5))
    def begin(self, events_per_file: int) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        self.loop = asyncio.new_event_loop()
        self.path = Path(tempfile.mkdtemp(prefix="spill-crash-"))
        self.settings = SpillSettings(
            self.path,
            flush_ms=1,
            events_per_file=events_per_file,
            deadline_ms_min=1,
            deadline_ms_max=1,
            free_bytes_min=0,
        )
        self.store = ModelStore()
        self.acknowledged: dict[PartitionId, list[bytes]] = defaultdict(list)
        self.number = self.leftover = 0
        self._open()

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 20))

    def _open(self) -> None:
        async def open_it() -> SpillBackend:
            backend = ModelBackend(self.store)
            spill = SpillBackend(
                backend,  # type: ignore[arg-type]
                ModelTarget(self.store, backend),
                self.settings,
                now_ms=lambda: TimestampMs(self.number),
            )
            spill.waiting.clear = lambda: self._nothing_waits(spill)  # type: ignore[method-assign]
            await spill.start()
            return spill

        self.spill: SpillBackend = self._run(open_it())

    def _nothing_waits(self, spill: SpillBackend) -> None:
        """Everything is stored: if a partition still waited, its pushes would take the long way for ever."""
        self.leftover += spill.waiting.total

    @rule(partition=st.integers(0, 2), counts=st.lists(st.integers(1, 7), min_size=1, max_size=3))
    def push(self, partition: int, counts: list[int]) -> None:
        """One or several at once, as over one connection that does not wait."""
        place = PartitionId(TopicName("t"), partition)
        pushes = []
        for count in counts:
            pushes.append([b"%d" % number for number in range(self.number, self.number + count)])
            self.number += count

        async def pushed() -> None:
            futures = [self.spill.forward(place, values_batch(*values), has_ids=False) for values in pushes]
            await asyncio.gather(*futures)

        self._run(pushed())
        self.acknowledged[place] += [value for values in pushes for value in values]

    @rule(transactions=st.integers(0, 2), is_after_commit=st.booleans())
    def cut_off_soon(self, transactions: int, is_after_commit: bool) -> None:
        self.store.cut_after, self.store.is_cut_after_commit = transactions, is_after_commit

    @rule()
    def come_back(self) -> None:
        self.store.is_up = True

    @rule(seconds=st.sampled_from([0.0, 0.002, 0.01]))
    def wait(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    @rule()
    def stop_and_start(self) -> None:
        self._run(self.spill.stop())
        self._open()

    @rule(torn=st.sampled_from(TORN_ENDS), is_file_back=st.booleans())
    def crash(self, torn: bytes, is_file_back: bool) -> None:
        """The process is gone at once; the file that was written may have an end that nobody was told of."""
        # One that is being written may be completed by its thread at any moment.
        before = {file.path.name: file.path.read_bytes() for file in files.listed(self.path) if file.is_complete}
        self._kill()
        for file in files.listed(self.path):
            if not file.is_complete:
                with file.path.open("ab") as tail:
                    tail.write(torn)
        if is_file_back:  # deletes that were not on the disk yet
            for name, content in before.items():
                if not (self.path / name).exists():
                    (self.path / name).write_bytes(content)
        self._open()

    def _kill(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.loop = asyncio.new_event_loop()
        active = self.spill._appender._active
        if active is not None:
            os.close(active.fd)
        self.spill.directory.close()

    @invariant()
    def stored_is_what_was_acknowledged_so_far(self) -> None:
        for partition, values in self.store.stored.items():
            assert values == self.acknowledged[partition][: len(values)] or self._has_more(values, partition)

    def _has_more(self, values: list[bytes], partition: PartitionId) -> bool:
        """A push that is under way may be stored before it is acknowledged, never twice."""
        return values[: len(self.acknowledged[partition])] == self.acknowledged[partition]

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.store.is_up, self.store.cut_after = True, None

        async def drained() -> None:
            while self.spill.pending or not self.spill.is_healthy or files.listed(self.path):
                await asyncio.sleep(0.001)

        try:
            self._run(drained())
            assert self.leftover == 0
            assert dict(self.store.stored) == {place: values for place, values in self.acknowledged.items() if values}
            assert self.spill.stats.failed_events == 0 or all("behind the last good" in r for r in self._reasons())
            self._run(self.spill.stop())
        finally:
            self.loop.close()
            shutil.rmtree(self.path)
            structlog.reset_defaults()

    def _reasons(self) -> list[str]:
        return [line.reason for path in files.failed_files(self.path) for line in files.failed_lines(path)]


TestCrashPoints = CrashPoints.TestCase
TestCrashPoints.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
