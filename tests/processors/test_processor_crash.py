"""A broker that is killed again and again while it processes: every message comes out once, in order."""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from processor_helpers import gone_within

SCRIPT = Path(__file__).parent / "crash_broker.py"


async def start(data: Path, first: str) -> tuple[Process, list[int]]:
    broker = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(data), first, stdout=PIPE, limit=1 << 26
    )
    assert broker.stdout is not None
    async for line in broker.stdout:
        if line.startswith(b"workers"):
            return broker, [int(pid) for pid in line.split()[1:]]
    raise AssertionError("the broker did not start")


async def test_every_acknowledged_message_is_delivered_once_through_kills_of_the_broker(tmp_path: Path) -> None:
    dice = random.Random(11)
    acknowledged: list[int] = []
    attempted_from = 0
    for _ in range(6):
        broker, workers = await start(tmp_path, str(attempted_from))
        assert broker.stdout is not None
        asyncio.get_running_loop().call_later(dice.uniform(0.1, 0.6), broker.kill)
        lines = [line.split() async for line in broker.stdout]
        acknowledged += [int(line[1]) for line in lines if len(line) == 2 and line[0] == b"acknowledged"]
        await broker.wait()
        for pid in workers:
            assert await gone_within(pid, 5)
        # The one in flight may or may not have been stored: its number is not used again.
        attempted_from = (acknowledged[-1] if acknowledged else attempted_from) + 2
    broker, _ = await start(tmp_path, "end")
    shown, _ = await asyncio.wait_for(broker.communicate(), 60)
    logs: dict[str, list[str]] = {"orders": [], "orders.processed": []}
    for line in shown.decode().splitlines():
        topic, *values = line.split()
        if topic in logs:
            logs[topic] += values
    assert broker.returncode == 0
    assert len(acknowledged) > 50
    assert {f"m{number}" for number in acknowledged} <= set(logs["orders"])
    assert logs["orders.processed"] == [value.upper() for value in logs["orders"]]
