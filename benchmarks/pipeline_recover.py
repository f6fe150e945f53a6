"""The recovery of many spilled messages, timed: `python -m benchmarks.pipeline_recover`, or `make bench-recover`.

Writes the spill directories of several brokers with planted copies and damaged lines, runs `holdfast pipeline recover`
on them as a person would, into a PostgreSQL on this machine, and prints how long that took. Then the database is asked
whether everything is there, once, and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import asyncpg

from benchmarks.pipeline_audit import Watch, family
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill import pushes
from holdfast.model.ids import TopicName
from holdfast.model.push_ids import push_ids
from holdfast.wire.push_batch import Pushed

BROKERS: Final = 4
QUEUES: Final = ("orders", "payments", "audit-trail", "metrics")
PARTITIONS: Final = 4
# One push, as brokers take them.
PUSH_EVENTS: Final = 100
FILE_EVENTS: Final = 10_000
# So many pushes of all brokers come in a millisecond of the outage.
PUSHES_PER_MS: Final = 1
BEGAN_MS: Final = 1_763_269_200_000
# Every so many pushes, a broker that did not answer in time had kept the push before the next one did.
COPIED_EVERY: Final = 1_009
# Every so many lines of a file one is damaged: the last but one of it.
DAMAGED_FILES: Final = 7

# What is not in the order of its time, and what is there more often than once.
_LATE: Final = """
SELECT count(*) FROM (
    SELECT created_at < lag(created_at) OVER (PARTITION BY topic_id, partition ORDER BY "offset") AS late
    FROM holdfast.messages
) AS seen WHERE late
"""
_COUNTS: Final = "SELECT count(*), count(DISTINCT id_uuid) FROM holdfast.messages"


def write_spills(directory: Path, events: int) -> dict[str, int]:
    """A directory for each broker; returns what is planted."""
    planted = {"files": 0, "events": 0, "duplicates": 0, "set_aside": 0}
    spills = [_Spill(directory / f"broker-{number}", planted) for number in range(BROKERS)]
    for number, lines in enumerate(_pushes(events)):
        spills[number % BROKERS].add(lines, number // PUSHES_PER_MS)
        if number % COPIED_EVERY == 0:
            spills[(number + 1) % BROKERS].add(lines, number // PUSHES_PER_MS)
            planted["duplicates"] += PUSH_EVENTS
    for spill in spills:
        spill.complete()
    planted["stored"] = planted["events"] - planted["duplicates"] - planted["set_aside"]
    return planted


def _uuid7(time_ms: int, bits: int) -> str:
    return str(UUID(int=time_ms << 80 | 7 << 76 | (bits >> 62) << 64 | 1 << 63 | bits & (1 << 62) - 1))


def _pushes(events: int) -> Iterator[bytes]:
    chance = Random(16)
    for number in range(events // PUSH_EVENTS):
        time_ms = BEGAN_MS + number // PUSHES_PER_MS
        queue, place = QUEUES[number % len(QUEUES)], number // len(QUEUES) % PARTITIONS
        names = [f"customer-{place}-{each % 10}" for each in range(PUSH_EVENTS)]
        transactions = [_uuid7(time_ms, chance.getrandbits(74)) for _ in names]
        values = [b'{"number": %d, "item": "tea", "count": 3, "note": "%s"}' % (number, b"x" * 40) for _ in names]
        pushed = Pushed(names, values, push_ids(names, transactions), transactions, [None] * len(names), has_json=True)
        yield pushes.lines_of(TopicName(queue), dict.fromkeys(names, place), pushed, time_ms, time_ms)


class _Spill:
    """The directory of a broker, while it is written."""

    def __init__(self, directory: Path, planted: dict[str, int]) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._planted = planted
        self._lines: list[bytes] = []
        self._events = 0
        self._began_ms = 0

    def add(self, lines: bytes, after_ms: int) -> None:
        if not self._lines:
            self._began_ms = BEGAN_MS + after_ms
        self._lines.append(lines)
        self._events += PUSH_EVENTS
        if self._events >= FILE_EVENTS:
            self.complete()

    def complete(self) -> None:
        if not self._lines:
            return
        data = bytearray(b"".join(self._lines))
        if self._planted["files"] % DAMAGED_FILES == 3:
            data[-20] ^= 1  # within the sum of the last line
            self._planted["set_aside"] += 1
        name = _uuid7(self._began_ms, self._planted["files"])
        (self._directory / f"failover_{name}.buf").write_bytes(data)
        self._planted["files"] += 1
        self._planted["events"] += self._events
        self._lines, self._events = [], 0


async def _measure(directory: Path, planted: dict[str, int], master: str) -> int:
    server = EmbeddedServer(directory / "postgres", comes_back=False)
    url = await server.start()
    try:
        before_s = _used_s(server.pid)
        verdict = await asyncio.to_thread(_recover, url, directory, master)
        return await _judge(url, planted, verdict, _used_s(server.pid) - before_s)
    finally:
        await server.stop()


def _recover(url: str, directory: Path, master: str) -> dict[str, Any]:
    """The command's verdict, with what it took."""
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "recover", "--master", master, "--json"]
    command += ["--store", url, "--partitions", str(PARTITIONS), *map(str, sorted(directory.glob("broker-*")))]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    watch = Watch(process.pid)
    out, _ = process.communicate()
    watch.stop()
    if process.returncode not in (0, 1):
        raise SystemExit(process.returncode)
    took = {"all_seconds": time.monotonic() - began, "cpu_s": watch.cpu_s, "peak_bytes": watch.peak_bytes}
    return {**json.loads(out.splitlines()[-1]), **took}


def _used_s(pid: int) -> float:
    """CPU time of a server and of all that it has started."""
    used = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text("ascii").rpartition(")")[2].split()
        used += sum(map(int, fields[11:15] if each == pid else fields[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


async def _judge(url: str, planted: dict[str, int], verdict: dict[str, Any], database_s: float) -> int:
    events, seconds, all_seconds = planted["events"], verdict["seconds"], verdict["all_seconds"]
    print(f"{events:,} events in {seconds:.1f} s: {events / seconds:,.0f} events/s")
    print(f"with the start of Java {all_seconds:.1f} s: {events / all_seconds:,.0f} events/s")
    peak = f"{verdict['peak_bytes'] / 2**30:.2f} GiB at most"
    print(f"CPU time: {verdict['cpu_s']:.0f} s, and {database_s:.0f} s of the database; {peak}")
    found = {name: verdict[name] for name in planted}
    connection = await asyncpg.connect(url)
    try:
        rows, ids = await connection.fetchrow(_COUNTS)
        late = await connection.fetchval(_LATE)
    finally:
        await connection.close()
    print(f"in the database: {rows:,} messages, {rows - ids:,} of them twice, {late:,} out of order")
    is_right = found == planted and rows == ids == planted["stored"] and late == 0
    print("all is as planted" if is_right else f"planted {planted}\nfound   {found}")
    return 0 if is_right else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_recover", description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as temporary:
        planted = write_spills(Path(temporary), options.events)
        return asyncio.run(_measure(Path(temporary), planted, options.master))


if __name__ == "__main__":
    sys.exit(main())
