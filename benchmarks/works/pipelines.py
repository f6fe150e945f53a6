"""Data pipelines on Spark: an audit, a recovery, and transforms, each checked against what was planted."""

import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.load import planted, transform
from benchmarks.load.planted import PARTITIONS, Planted
from benchmarks.load.spark import MASTER
from benchmarks.load.transform import TransformLoad
from benchmarks.load.wire import LoadFailed
from benchmarks.measure import Contender, Measured, Settings, Work, generate
from benchmarks.peers import holdfast
from benchmarks.process import scratch
from benchmarks.watch import Watch, family, used_s
from benchmarks.works.memory import PEAK
from benchmarks.works.publish import CPU, RATE

RECORDS, RECORDS_QUICK = 20_000_000, 20_000
EVENTS, EVENTS_QUICK = 4_000_000, 20_000
MESSAGES, MESSAGES_QUICK = 1_000_000, 10_000
# Each row for which a statement raises takes some milliseconds more.
MESSAGES_RAISING_SQL = 100_000

AUDIT_LINE = "holdfast pipeline audit"
RECOVER_LINE = "holdfast pipeline recover"

# How many messages are there, how many different ones, and how many that are not in the order of their time.
_STORED = "SELECT count(*), count(DISTINCT id_uuid) FROM holdfast.messages"
_LATE = """
SELECT count(*) FROM (
    SELECT created_at < lag(created_at) OVER (PARTITION BY topic_id, partition ORDER BY "offset") AS late
    FROM holdfast.messages
) AS seen WHERE late
"""


class _Run(NamedTuple):
    """A command as a person runs it: its verdict, and what it took with the start of Java."""

    verdict: dict[str, Any]
    seconds: float
    cpu_s: float
    peak_bytes: int


def _run(name: str, *arguments: str) -> _Run:
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", name, "--master", MASTER, "--json", *arguments]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with Watch(process.pid) as watch:
            out, errors = process.communicate()
        seconds = time.monotonic() - began_s
    # 1 says that something was found.
    if process.returncode not in (0, 1):
        raise LoadFailed(f"{' '.join(command[2:5])}: {errors.decode(errors='replace')}")
    return _Run(json.loads(out.splitlines()[-1]), seconds, watch.cpu_s, watch.peak_bytes)


def _check(found: dict[str, Any], wanted: Planted) -> None:
    if found != wanted:
        raise LoadFailed(f"planted {wanted}, found {found}")


def _audit(settings: Settings) -> Measured:
    with scratch(settings.directory) as directory:
        wanted = planted.write_records(directory, RECORDS_QUICK if settings.quick else RECORDS)
        records = ["--sent", str(directory / "sent.ndjson"), "--received", str(directory / "received.ndjson")]
        run = _run("audit", *records, "--out", str(directory / "audit"))
    _check({name: run.verdict[name] for name in wanted}, wanted)
    rows = wanted["sent"] + wanted["received"]
    figures = {RATE: rows / run.seconds, CPU: run.cpu_s / rows * 1e6, PEAK: run.peak_bytes / 1e6}
    return Measured(figures, f"{rows:,} records, with the start of Java")


def _recover(settings: Settings) -> Measured:
    with scratch(settings.directory) as directory:
        wanted = planted.write_spills(directory, EVENTS_QUICK if settings.quick else EVENTS)
        return asyncio.run(_recovered(directory, sorted(map(str, directory.glob("broker-*"))), wanted))


async def _recovered(directory: Path, spills: list[str], wanted: Planted) -> Measured:
    import asyncpg

    from holdfast.backends.postgres.server import EmbeddedServer

    server = EmbeddedServer(directory / "postgres", comes_back=False)
    url = await server.start()
    try:
        database_s = -_database_s(server.pid)
        run = await asyncio.to_thread(_run, "recover", "--store", url, "--partitions", str(PARTITIONS), *spills)
        database_s += _database_s(server.pid)
        connection = await asyncpg.connect(url)
        stored, different = await connection.fetchrow(_STORED)
        late = await connection.fetchval(_LATE)
        await connection.close()
    finally:
        await server.stop()
    _check({name: run.verdict[name] for name in wanted}, wanted)
    expected = {"stored": wanted["stored"], "different": wanted["stored"], "late": 0}
    _check({"stored": stored, "different": different, "late": late}, expected)
    events = wanted["events"]
    figures = {RATE: events / run.verdict["seconds"], CPU: run.cpu_s / events * 1e6, PEAK: run.peak_bytes / 1e6}
    whole = f"with the start of Java {run.seconds:.1f} s, CPU of the database {database_s:.1f} s"
    return Measured(figures, f"{events:,} events; {whole}")


def _database_s(pid: int) -> float:
    return sum(used_s(each, with_ended=each == pid) for each in family(pid))


def _transform(way: str, some_raise: bool, settings: Settings) -> Measured:
    messages = MESSAGES_QUICK if settings.quick else MESSAGES_RAISING_SQL if way == "sql" and some_raise else MESSAGES
    with holdfast.serve(settings.directory, "group") as broker, scratch(settings.directory) as directory:
        load = TransformLoad(broker.http_port, str(directory), messages, way, some_raise)
        generate(settings, transform.fill, load)
        before_s = broker.server.cpu_s()
        found = generate(settings, transform.run, load)
        cpu_s = found.cpu_s + broker.server.cpu_s() - before_s
    figures = {RATE: messages / found.seconds, CPU: cpu_s / messages * 1e6}
    return Measured(figures, f"{messages:,} messages, {load.dead:,} raise; CPU with the broker's")


AUDIT = Work(
    name="pipeline-audit",
    title="An audit of records of two kinds with planted flaws",
    figure=RATE,
    reference=AUDIT_LINE,
    once=True,
    contenders=(Contender(AUDIT_LINE, holdfast.NAME, MASTER, _audit),),
)
RECOVER = Work(
    name="pipeline-recover",
    title="A recovery of the spills of four brokers into a PostgreSQL, with planted copies and damage",
    figure=RATE,
    reference=RECOVER_LINE,
    once=True,
    contenders=(Contender(RECOVER_LINE, holdfast.NAME, MASTER, _recover),),
)
TRANSFORM = Work(
    name="pipeline-transform",
    title="A transform of 100-byte messages to another topic",
    figure=RATE,
    reference="function over Arrow",
    once=True,
    contenders=tuple(
        Contender(name, holdfast.NAME, MASTER, partial(_transform, way, some_raise))
        for name, way, some_raise in (
            ("function over Arrow", "arrow", False),
            ("function over pandas", "pandas", False),
            ("SQL", "sql", False),
            ("function over Arrow, 1 % raise", "arrow", True),
            ("SQL, 1 % raise", "sql", True),
        )
    ),
)
