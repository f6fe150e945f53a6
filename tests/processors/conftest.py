"""Fixtures of the processing stage: a broker, pools and stages that leave no process behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.broker.broker import Broker
from holdfast.processors.pool import WorkerPool
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec
from holdfast.processors.stage import ProcessingStage
from tests.processors.cluster_members import Calls
from tests.processors.processor_helpers import Clock, Recorder, StartPool, StartStage, broker_on


@pytest.fixture
def log() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def sample_functions_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.fixture
async def start_pool(log: Recorder) -> AsyncIterator[StartPool]:
    """Starts pools and makes sure that none of their processes is left behind."""
    pools: list[WorkerPool] = []

    async def start(function: str | None = None, *, spec: ProcessorSpec | None = None, **settings: int) -> WorkerPool:
        spec = spec or ProcessorSpec(function=f"sample_functions:{function}")
        pool = WorkerPool(spec, ProcessorSettings(**{"workers": 2, **settings}), log)
        pools.append(pool)
        await pool.start()
        return pool

    yield start
    for pool in pools:
        await pool.stop()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What workers write down, those of brokers that are started as processes as well."""
    made = Calls(tmp_path / "calls")
    monkeypatch.setenv("CALLS_FILE", str(made.path))
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(tmp_path: Path, clock: Clock) -> AsyncIterator[Broker]:
    async with broker_on(tmp_path / "data", clock) as running:
        yield running


@pytest.fixture
async def start_stage(broker: Broker, log: Recorder) -> AsyncIterator[StartStage]:
    stages: list[ProcessingStage] = []

    async def start(pool: WorkerPool) -> ProcessingStage:
        stages.append(ProcessingStage(broker, pool, handles=lambda name: name.startswith("orders"), log=log))
        await stages[-1].start()
        return stages[-1]

    yield start
    for stage in stages:
        await stage.stop(1)
