"""A recovery whose driver is killed goes on where it was: the short form of `make chaos-recover`."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from chaos import recover
from chaos.recover_places import ThroughBrokers

from holdfast.pipelines.recover_run import _Storing
from holdfast.pipelines.recover_targets import BrokersTarget
from holdfast.recovery import blocks, lines
from holdfast.recovery.backlog import Directories
from holdfast.recovery.lines import Places, Source
from holdfast.testing import LocalCluster
from tests.support.postgres import Server

KILLS = 2
MESSAGES = 70_000
FEW_MESSAGES = 3_000


@pytest.mark.spark
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


def recover_alone(servers: str, directories: list[str], pause_s: float) -> None:
    """What driver and tasks do, one after the other, without Spark; waits behind each step."""
    target = BrokersTarget(servers)
    ledger = target.ledger()
    try:
        with Directories(directories) as opened:
            backlog = opened.next_backlog(ledger, "time", recover.PARTITIONS)
            assert backlog is not None
            paths = opened.paths(backlog)
            sources = [Source(number, *pair) for number, pair in enumerate(zip(backlog.files, paths, strict=True))]
            ledger.make_topics(dict.fromkeys(recover.QUEUES, recover.PARTITIONS))
            read = pa.Table.from_batches(lines.blocks_of(sources, Places(backlog), "time"), schema=blocks.SCHEMA)
            ordered = read.sort_by([(name, "ascending") for name in ("queue", "number", "first")])
            storing = _Storing(target, backlog, paths, lambda _: time.sleep(pause_s))
            for _ in storing(iter(ordered.combine_chunks().to_batches())):
                pass
            opened.finish(backlog, ledger)
    finally:
        ledger.close()


def test_recovery_through_brokers_that_is_killed_stores_every_message_once_and_in_order(tmp_path: Path) -> None:
    expected = recover.write_spills(tmp_path / "spills", random.Random(7), FEW_MESSAGES)
    directories = sorted(map(str, (tmp_path / "spills").iterdir()))
    with LocalCluster(nodes=1) as cluster:
        servers = cluster.url.removeprefix("holdfast://")
        place = ThroughBrokers(servers)
        code = f"from {__name__} import recover_alone; recover_alone({servers!r}, {directories!r}, 60)"
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            try:
                while not asyncio.run(place.count()):
                    assert process.poll() is None
                    time.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
        assert 0 < asyncio.run(place.count()) < FEW_MESSAGES, "it was killed in the middle"
        recover_alone(servers, directories, 0.0)
        assert asyncio.run(place.values()) == expected
