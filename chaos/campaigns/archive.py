"""An archive whose driver is killed again and again.

The driver is the command, `holdfast pipeline archive`, with all its processes. It is killed in turn while it archives
new messages and while it compacts files: as soon as it writes rows, as soon as all of them are written, as soon as it
has committed, or at any moment. After each kill the files that count are read, with Arrow and without Spark: every
offset up to where the archive says it is stands there once, and the view for other readers has no row twice. Only kills
count that hit a driver which lived and had left something to do; it goes on until there are enough of them, and fails
where there are not. At the end a last driver does the rest, and every message that was acknowledged is there once, as
it was sent.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from testkit import checker
from testkit.history import History, Place, Producer
from testkit.spark import DriverProcess

from chaos import report
from chaos.report import Report
from chaos.run import Outcome
from holdfast import BlockingClient
from holdfast.pipelines.archive_rules import to_compact
from holdfast.spark.archive_files import ArchiveReader
from holdfast.testing import LocalCluster

TOPIC: Final = "archived"
PARTITIONS: Final = 3
BURST: Final = 3000
# A driver has to be at work within this time, and the last one done.
WORK_S: Final = 240.0
_POLL_S: Final = 0.001
_ANY_MOMENT_S: Final = 1.5
_SMALL: Final = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# Batches of a few hundred messages, so that there are many of them.
_BATCHES: Final = ("--batch-size", "16KiB", "--compact-files", "10000", "--interval", "100ms")
_COMPACTION: Final = ("--once", "--compact-files", "2", "--keep-replaced", "1s")

Row = tuple[int, int]


def driver(archive: Path, servers: str, *options: str, log: Path) -> DriverProcess:
    words = ("archive", TOPIC, "--to", str(archive), "--server", servers, *options)
    return DriverProcess(*words, log=log, config=_SMALL)


class Tally:
    """Kills that hit: half of them are to come while it archived, and half while it compacted."""

    def __init__(self, kills: int) -> None:
        self.wanted = {"archived": (kills + 1) // 2, "compacted": kills // 2}
        self.hits: Counter[str] = Counter()
        # A kill may come too late, and most do not.
        self.tries_max = 3 * kills + 4

    @property
    def is_enough(self) -> bool:
        return all(self.hits[work] >= count for work, count in self.wanted.items())

    def __str__(self) -> str:
        return ", ".join(f"{self.hits[work]} of {count} while it {work}" for work, count in self.wanted.items())


def moments(archive: Path, dice: random.Random) -> dict[str, Callable[[], bool]]:
    """What to wait for before a kill, from now on."""
    files, commits = archive / "_archive" / "files", archive / "_archive" / "commits"
    known = set(_names(files)), set(_names(commits))
    any_moment_s = dice.uniform(0, _ANY_MOMENT_S)
    begun: list[float] = []

    def is_writing() -> bool:
        return bool(set(_names(files)) - known[0])

    def has_written() -> bool:
        new = set(_names(files)) - known[0]
        return any(not (files / name / "_temporary").exists() and any((files / name).iterdir()) for name in new)

    def is_any_moment() -> bool:
        if is_writing():
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() - begun[0] > any_moment_s

    return {
        "it was writing rows": is_writing,
        "it had written all rows": has_written,
        "it had committed": lambda: bool(set(_names(commits)) - known[1]),
        f"{any_moment_s:.2f} s after it began to write": is_any_moment,
    }


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name[0].isdigit()] if directory.exists() else []


def places(paths: list[Path]) -> list[Row]:
    """Partition and offset of every row in these files."""
    return [(partition, offset) for partition, offset, _ in _rows(paths)]


def check(archive: Path) -> int:
    """Hold the files that count against what the archive says of itself; returns the number of rows."""
    reader = ArchiveReader(archive)
    state = reader.load()
    counted = places([reader.files / path for path in state.files])
    extents = state.topics[TOPIC].partitions if state.topics else {}
    expected = [(number, offset) for number, extent in extents.items() for offset in range(extent.start, extent.end)]
    assert sorted(counted) == sorted(expected), "every offset is there once"
    viewed = places(list(archive.glob("topic=*/date=*/hour=*/*.parquet")))
    assert len(viewed) == len(set(viewed)) and set(viewed) <= set(expected), "nobody sees a row twice"
    return len(counted)


def is_unfinished(archive: Path, sent: int, *, is_compaction: bool) -> bool:
    """Whether a killed driver has left anything that the next one has to do."""
    reader = ArchiveReader(archive)
    state = reader.load()
    view = archive / "_archive" / "view"
    known = {path.partition("/")[0] for path in (*state.files, *state.retired)}
    is_view_behind = not view.exists() or int(view.read_text("ascii")) < state.version
    if is_view_behind or any(place.name not in known for place in reader.files.iterdir()):
        return True
    small = to_compact(state.files.values(), files_min=2, file_bytes=128 << 20)
    return bool(small) if is_compaction else archived(archive) < sent


def archived(archive: Path) -> int:
    """Messages that the archive says it has."""
    reader = ArchiveReader(archive)
    topics = reader.load().topics if reader.exists() else {}
    return sum(extent.rows for extent in topics[TOPIC].partitions.values()) if topics else 0


def _rows(paths: list[Path]) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of every row in these files."""
    for path in paths:
        # Not as a dataset: of a path it would make columns.
        with pq.ParquetFile(path) as file:
            columns = file.read(columns=["partition", "offset", "value"]).to_pydict()
        yield from zip(columns["partition"], columns["offset"], columns["value"], strict=True)


def run(kills: int, seed: int, directory: Path, on_kill: Callable[[str], object] = len) -> Outcome:
    replay = f"{sys.executable} -m chaos archive --kills {kills} --seed {seed}"
    outcome = Outcome(seed, replay, History(members=("archive", "view")), began=time.monotonic())
    try:
        _run(kills, directory, outcome, on_kill)
    except AssertionError as error:
        outcome.history.stalls.append(str(error))
    outcome.verdict = checker.check(outcome.history)
    log = directory / "driver.log"
    if not outcome.verdict.is_clean and log.exists():
        outcome.logs = {"driver": log.read_text("utf-8", "replace")}
    outcome.seconds = time.monotonic() - outcome.began
    return outcome


def _run(kills: int, directory: Path, outcome: Outcome, on_kill: Callable[[str], object]) -> None:
    history, dice = outcome.history, random.Random(outcome.seed)
    archive, reader = directory / "archive", ArchiveReader(directory / "archive")
    book = history.producer("publisher", TOPIC)
    tally = Tally(kills)
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        log = directory / "driver.log"
        for number in range(tally.tries_max):
            if tally.is_enough:
                break
            is_compaction = number % 2 == 1
            if not is_compaction:
                publish(broker, history, book, dice)
            goal = history.sent if is_compaction else history.sent - BURST + 1
            with driver(archive, cluster.url, *(_COMPACTION if is_compaction else _BATCHES), log=log) as killed:
                # All is archived, and what it writes is a compaction; or it is in the middle of archiving.
                wait_for(lambda: archived(archive) >= goal, killed.process)  # noqa: B023
                when, is_now = dice.choice(list(moments(archive, dice).items()))
                wait_for(is_now, killed.process)
                was_alive = killed.kill()
            rows = check(archive)
            work = "compacted" if is_compaction else "archived"
            is_hit = was_alive and is_unfinished(archive, history.sent, is_compaction=is_compaction)
            tally.hits[work] += is_hit
            outcome.faults[f"killed while it {work}"] += is_hit
            found = f"{rows:,} rows in {len(reader.load().files)} files, each offset once"
            on_kill(f"kill {number + 1}: while it {work}, when {when}{'' if is_hit else ' (too late)'}; {found}")
        with driver(archive, cluster.url, *_COMPACTION, log=log) as last:
            last.process.communicate(timeout=WORK_S)
            assert last.process.returncode == 0, f"the last driver failed: {last.log()[-2000:]}"
        check(archive)
        state = reader.load()
        _collect(history, "archive", [reader.files / path for path in state.files])
        _collect(history, "view", list(archive.glob("topic=*/date=*/hour=*/*.parquet")))
        lag = broker.cursor(TOPIC, "archive").lag
    outcome.totals.update(sent=history.sent, files=len(state.files), commits=state.version)
    assert lag == 0, f"the archive lags {lag} messages behind"
    assert tally.is_enough, f"too few kills hit: {tally}"


def _collect(history: History, node: str, paths: list[Path]) -> None:
    rows = sorted(_rows(paths))
    for partition in range(PARTITIONS):
        own = [(offset, value) for number, offset, value in rows if number == partition]
        history.add_rows(node, Place(TOPIC, partition), own)


def publish(broker: BlockingClient, history: History, book: Producer, dice: random.Random) -> None:
    sequences = book.send(BURST, time.monotonic())
    some = [f"{book.name}/{sequence} {dice.randbytes(20).hex()}".encode() for sequence in sequences]
    for sequence, published in zip(sequences, broker.publish_many(TOPIC, some), strict=True):
        book.acknowledge(sequence, time.monotonic(), history.place(TOPIC, published.partition), published.offset)


def wait_for(is_now: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for the moment; a driver that had nothing left to do may end before it comes."""
    deadline = time.monotonic() + WORK_S
    while not is_now() and process.poll() is None:
        assert time.monotonic() < deadline, f"the driver was not at work within {WORK_S:g} s"
        time.sleep(_POLL_S)
    assert process.poll() in (None, 0), "the driver failed by itself; see its log"


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--kills", type=int, default=20, help="how many kills hit a driver at work")
    parser.add_argument("--directory", type=Path, help="where the archive stays (default: a temporary one)")


def main(options: argparse.Namespace) -> int:
    made = Report("archive", options)
    with contextlib.ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        with made.attempt():
            made.add(run(options.kills, options.seed, directory, made.say))
    return made.finish()
