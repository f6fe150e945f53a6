"""Recoveries that are killed, over and over.

Brokers' spill directories are recovered, into a PostgreSQL and through a broker in turn, by `holdfast pipeline
recover`, whose driver is killed (SIGKILL) at moments from a seed: anywhere between its start and its end, or when so
many messages are stored. A kill counts if the driver was alive and had something left to store. Tasks that it left
behind go on for as long as they can. Then it is run to its end. What is in each partition is compared with what is to
be there: every message, most of them without an id, once and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from testkit.checker import check
from testkit.history import History, Place

from chaos import report
from chaos.recover_places import Values, stored_in
from chaos.report import Report
from chaos.run import Outcome
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill import events
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.testing import LocalCluster
from holdfast.wire import batch_builder

BROKERS: Final = 3
QUEUES: Final = ("orders", "payments")
PARTITIONS: Final = 3
BEGAN_MS: Final = 1_763_269_200_000
FILE_EVENTS: Final = 4_000
# Of the messages that have an id, so many are kept by another broker, too.
COPIED_SHARE: Final = 0.2
RUN_S_MAX: Final = 120.0
KILLS_EACH: Final = 5
_LOOK_S: Final = 0.1
# Of what a recovery said that failed.
_SAID_LINES: Final = 20
_SMALL: Final = {"spark.driver.memory": "768m", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
# The last that a recovery comes to: while it waits there, everything else is stored.
_LAST: Final = (max(QUEUES), PARTITIONS - 1)
# So much of everything is stored while the last partition waits.
_REACHED_SHARE_MAX: Final = 0.75


def write_spills(root: Path, dice: random.Random, count: int) -> Values:
    """Directories of all brokers, with `count` messages and some copies; returns what is to be stored."""
    expected: Values = {(queue, number): [] for queue in QUEUES for number in range(PARTITIONS)}
    lines: dict[int, list[bytes]] = {broker: [] for broker in range(BROKERS)}
    for serial in range(count):
        # Every message has a time of its own, so that there is one order.
        time_ms = BEGAN_MS + serial
        place = dice.choice(QUEUES), dice.randrange(PARTITIONS)
        producer = f"{place[0]}-{place[1]}"
        value = f"{producer}/{len(expected[place])}".encode()
        message = NewMessage(value=value, id=f"id-{serial}" if serial % 4 == 0 else None)
        brokers = dice.sample(range(BROKERS), 2 if message.id and dice.random() < COPIED_SHARE else 1)
        for broker in brokers:
            batch = batch_builder.build_batch([message], time_ms)
            line, _ = events.lines_of(PartitionId(TopicName(place[0]), place[1]), batch, time_ms)
            lines[broker].append(line)
        expected[place].append(message.value)
    for broker, kept in lines.items():
        directory = root / f"broker-{broker}"
        directory.mkdir(parents=True)
        for number, first in enumerate(range(0, len(kept), FILE_EVENTS)):
            name = UUID(int=(BEGAN_MS + number) << 80 | 7 << 76 | 1 << 63 | dice.getrandbits(62))
            (directory / f"failover_{name}.buf").write_bytes(b"".join(kept[first : first + FILE_EVENTS]))
    return {place: values for place, values in expected.items() if values}


class Recovery:
    """The command over some directories, to be run until it ends or is killed."""

    def __init__(self, target: str, root: Path, master: str = "local[2]", conf: Mapping[str, str] = _SMALL) -> None:
        self._place = stored_in(target)
        self._log = root / "recover.log"
        directories = sorted(map(str, root.glob("broker-*")))
        self._command = [sys.executable, "-m", "holdfast.cli", "pipeline", "recover", *directories]
        self._command += [*self._place.options, "--partitions", str(PARTITIONS), "--master", master, "--json"]
        self._command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]

    async def killed_after(self, seconds: float, total: int) -> int | None:
        """Start it, and kill it after so long; how many messages are stored then. None: nothing was left to do."""
        return await self._killed(seconds, float("inf"), total)

    async def killed_at(self, count: float, total: int) -> int | None:
        """The same as soon as so many messages are stored. It cannot end before, where that can be helped."""
        async with self._place.held(_LAST, PARTITIONS):
            return await self._killed(RUN_S_MAX, min(count, _REACHED_SHARE_MAX * total), total)

    async def _killed(self, after_s: float, at_count: float, total: int) -> int | None:
        with self._started() as process:
            await self._watch(process, after_s, at_count)
            if process.poll() is not None:
                return None
            process.send_signal(signal.SIGKILL)
        async with self._place.counting() as count:
            stored = await count()
        return stored if stored < total else None

    async def _watch(self, process: subprocess.Popen[bytes], after_s: float, at_count: float) -> None:
        """Wait so long, or until so many messages are stored, or for its end."""
        until_s = time.monotonic() + after_s
        async with self._place.counting() as count:
            while process.poll() is None and time.monotonic() < until_s and await count() < at_count:
                await asyncio.sleep(_LOOK_S)

    async def ended(self, at_count: float = 0, then: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run it to its end, its verdict; `then` is done when so many messages are stored."""
        with self._started() as process:
            await self._watch(process, RUN_S_MAX, at_count)
            then()
            out, _ = await asyncio.to_thread(process.communicate, None, RUN_S_MAX)
        if process.returncode:
            said = (await asyncio.to_thread(self._log.read_text)).splitlines()[-_SAID_LINES:]
            raise AssertionError("\n".join((f"the recovery ended with {process.returncode}:", *said)))
        verdict: dict[str, Any] = json.loads(out.splitlines()[-1])
        return verdict

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        with (
            self._log.open("ab") as log,
            subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, env=os.environ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    async def stored(self) -> Values:
        return await self._place.values()


class Round(NamedTuple):
    """How many messages were stored at each kill, and what was there in the end."""

    stored_at_kills: list[int]
    history: History

    @property
    def wrong(self) -> str | None:
        examples = check(self.history).examples
        return None if not examples else f"{examples[0].kind}: {examples[0].detail}"


async def round_of_kills(target: str, root: Path, dice: random.Random, count: int, kills: int) -> Round:
    expected = await asyncio.to_thread(write_spills, root, dice, count)
    recovery = Recovery(target, root)
    stored: list[int] = []
    for number in range(kills):
        if number % 3 == 2:
            at_kill = await recovery.killed_after(dice.uniform(0.0, 20.0), count)
        else:
            at_kill = await recovery.killed_at(max(1, (number + dice.random() - 0.5) / kills * count), count)
        if at_kill is None:
            break
        stored.append(at_kill)
    verdict = await recovery.ended()
    history = as_history(expected, await recovery.stored())
    if waiting := await asyncio.to_thread(_waiting, root):
        history.stalls.append(f"files are left: {waiting[:3]}; {verdict}")
    return Round(stored, history)


def as_history(expected: Values, found: Values) -> History:
    """Each partition as the messages of one producer, which was told that they are there, in order."""
    history = History(members=("store",))
    for (queue, number), values in expected.items():
        book = history.producer(f"{queue}-{number}", queue)
        where = history.place(queue, number)
        for sequence in book.send(len(values), time.monotonic()):
            book.acknowledge(sequence, time.monotonic(), where, sequence)
    for place in expected | found:
        history.add_values("store", Place(*place), found.get(place, []))
    return history


def _waiting(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*.buf") if path.parent.name != "recovered"]


async def _run(kills: int, events_each: int, made: Report) -> None:
    dice = random.Random(made.seed)
    done = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-recover-") as temporary:
        for number in count():
            if done >= kills:
                break
            assert number <= kills, f"{done} of {kills} kills hit a recovery that had something left to store"
            few = min(KILLS_EACH, kills - done)
            began = time.monotonic()
            async with (_database if number % 2 == 0 else _broker)(Path(temporary) / f"store-{number}") as target:
                played = await round_of_kills(target, Path(temporary) / f"spills-{number}", dice, events_each, few)
            done += len(played.stored_at_kills)
            where = "into a PostgreSQL" if number % 2 == 0 else "through a broker"
            made.say(f"{where}, killed when there were {played.stored_at_kills} of {events_each:,}")
            replay = f"{sys.executable} -m chaos recover --kills {kills} --events {events_each} --seed {made.seed}"
            outcome = Outcome(made.seed + number, replay, played.history, check(played.history))
            outcome.faults[f"killed {where}"] = len(played.stored_at_kills)
            outcome.seconds = time.monotonic() - began
            made.add(outcome)
            if not outcome.verdict.is_clean:
                break


@asynccontextmanager
async def _database(directory: Path) -> AsyncIterator[str]:
    server = EmbeddedServer(directory, comes_back=False)
    url = await server.start()
    try:
        yield url
    finally:
        await server.stop()


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[str]:
    cluster = LocalCluster(nodes=1, data=directory)
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield cluster.url.removeprefix("holdfast://")
    finally:
        await asyncio.to_thread(cluster.__exit__)


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--kills", type=int, default=50, help="of recoveries that had something left to store")
    parser.add_argument("--events", type=int, default=150_000, help="of each recovery, which is killed five times")


def main(options: argparse.Namespace) -> int:
    made = Report("recover", options)
    with made.attempt():
        asyncio.run(_run(options.kills, options.events, made))
    return made.finish()
