"""How fast rows go through a transaction: stage from several tasks, commit, visible. One broker, and three nodes.

    .venv/bin/python -m benchmarks.experiments.transactions --nodes 1 --rows 1000000 --tasks 4

Batches are built before the clock starts: building them is the sink's part, and measured with it. The figure is rows
through stage and commit, that is written twice and synced twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

import holdfast
from holdfast.testing import LocalCluster
from holdfast.wire.batch_builder import build_values


def built(rows: int, row_bytes: int, batch_rows: int, *, equal: bool) -> list[bytearray]:
    values = [b"%0*d" % (row_bytes if equal else row_bytes - 50 + i % 101, i) for i in range(batch_rows)]
    return [build_values(values, time.time_ns() // 1_000_000) for _ in range(max(1, rows // batch_rows))]


async def transaction(
    broker: holdfast.Client, number: int, batches: list[bytearray], tasks: int, partitions: int
) -> tuple[float, float]:
    """Seconds of staging, and of the commit."""
    made = broker.transaction("bench", number)

    async def task(share: list[bytearray], index: int) -> None:
        for place, batch in enumerate(share):
            await made.stage_batches("bench", (place + index) % partitions, batch)

    began = time.perf_counter()
    await asyncio.gather(*(task(batches[index::tasks], index) for index in range(tasks)))
    staged = time.perf_counter()
    await made.commit()
    return staged - began, time.perf_counter() - staged


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--row-bytes", type=int, default=200)
    parser.add_argument("--batch-rows", type=int, default=5_000)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unequal", action="store_true", help="rows of different lengths")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    with LocalCluster(nodes=given.nodes, data=given.data) as cluster:
        async with holdfast.connect(cluster.url) as broker:
            await broker.create_topic("bench", partitions=given.partitions)
            batches = built(given.rows, given.row_bytes, given.batch_rows, equal=not given.unequal)
            rows = len(batches) * given.batch_rows
            before_s = cpu_s(cluster)
            for number in range(given.rounds):
                staging, committing = await transaction(broker, number, batches, given.tasks, given.partitions)
                print(
                    f"{number}: staged {rows / staging:,.0f} rows/s, committed {rows / committing:,.0f} rows/s, "
                    f"together {rows / (staging + committing):,.0f} rows/s"
                )
            per_million_s = (cpu_s(cluster) - before_s) / (rows * given.rounds) * 1_000_000
            print(f"the brokers used {per_million_s:.2f} CPU seconds for a million rows")


def cpu_s(cluster: LocalCluster) -> float:
    """Processor seconds that all nodes have used."""
    ticks = 0
    for node in cluster.nodes:
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main())
