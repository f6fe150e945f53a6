"""A recovery whose driver is killed goes on where it was: the short form of `make chaos-recover`."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from chaos.campaigns import recover
from chaos.recover_places import Stored, stored_in
from testkit.postgres import Server, database_for

from holdfast.pipelines.recover_run import Storing
from holdfast.pipelines.recover_targets import BrokersTarget, PostgresTarget, Target
from holdfast.recovery import blocks, lines, steps
from holdfast.recovery.backlog import Directories, Outcome
from holdfast.recovery.lines import Places, Source
from holdfast.testing import LocalCluster

KILLS = 1
MESSAGES = 40_000
FEW_MESSAGES = 3_000
FEW_AT_ONCE = 100


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.timeout(300)
async def test_recovery_that_is_killed_stores_every_message_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    server = Server(tmp_path / "postgres", "fsync=off", "autovacuum=off")
    await server.start()
    try:
        outcome = await recover.round_of_kills(
            server.url, tmp_path / "spills", random.Random(20261118), MESSAGES, KILLS
        )
    finally:
        server.kill()
    assert outcome.wrong is None
    assert len(outcome.stored_at_kills) == KILLS
    assert all(0 < stored < MESSAGES for stored in outcome.stored_at_kills), "it was killed in the middle"


def recover_alone(target: Target, directories: list[str], pause_s: float) -> None:
    """What driver and tasks do, one after the other, without Spark, in small steps; waits behind each of them."""
    ledger = target.ledger()
    few_at_once = patch.object(steps, "steps_of", partial(steps.steps_of, events_max=FEW_AT_ONCE))
    try:
        with Directories(directories) as opened, few_at_once:
            backlog = opened.next_backlog(ledger, "time", recover.PARTITIONS)
            assert backlog is not None
            paths = opened.paths(backlog)
            sources = [Source(number, *pair) for number, pair in enumerate(zip(backlog.files, paths, strict=True))]
            ledger.make_topics(dict.fromkeys(recover.QUEUES, recover.PARTITIONS))
            read = pa.Table.from_batches(lines.blocks_of(sources, Places(backlog), "time"), schema=blocks.SCHEMA)
            ordered = read.sort_by([(name, "ascending") for name in ("queue", "number", "first")])
            storing = Storing(target, backlog, paths, lambda _: time.sleep(pause_s))
            for _ in storing(iter(ordered.combine_chunks().to_batches())):
                pass
            opened.finish(backlog, ledger, Outcome({}, 0, 0))
    finally:
        ledger.close()


@contextmanager
def a_target(kind: str, root: Path) -> Iterator[PostgresTarget | BrokersTarget]:
    if kind == "postgres":
        yield PostgresTarget(database_for(root))
        return
    with LocalCluster(nodes=1) as cluster:
        yield BrokersTarget(cluster.url.removeprefix("holdfast://"))


@contextmanager
def killed(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


async def is_storing(place: Stored, process: subprocess.Popen[bytes] | None) -> int:
    """Waits for that; how many messages are stored."""
    async with place.counting() as count:
        while not (stored := await count()):
            assert process is not None and process.poll() is None
            await asyncio.sleep(0.05)
    return stored


@pytest.mark.parametrize("kind", ["postgres", "brokers"])
def test_recovery_that_is_killed_between_steps_stores_every_message_once_and_in_order(
    tmp_path: Path, kind: str
) -> None:
    """Once when it has taken the files over, and once within a partition."""
    expected = recover.write_spills(tmp_path / "spills", random.Random(7), FEW_MESSAGES)
    directories = sorted(map(str, (tmp_path / "spills").iterdir()))
    with a_target(kind, tmp_path) as target:
        place = stored_in(target[0])
        code = f"from {__name__} import *; recover_alone({target!r}, {directories!r}, 60)"
        with killed(code) as process:
            while not list(tmp_path.glob("spills/*/recovering/recovery.json")):
                assert process.poll() is None
                time.sleep(0.005)
        with killed(code) as process:
            asyncio.run(is_storing(place, process))
        assert 0 < asyncio.run(is_storing(place, None)) < FEW_MESSAGES / 4, "it was killed in the middle"
        recover_alone(target, directories, 0.0)
        assert asyncio.run(place.values()) == expected
