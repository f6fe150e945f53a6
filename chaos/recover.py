"""Recoveries that are killed, over and over: `python -m chaos.recover --kills 50`, or `make chaos-recover KILLS=50`.

Brokers' spill directories are recovered into a PostgreSQL by `holdfast pipeline recover`, whose driver is killed
(SIGKILL) at moments from a seed: anywhere between its start and its end, or when so many messages are stored. Tasks
that it left behind go on for as long as they can. Then it is run to its end. What the database has in each partition is
compared with what is to be there: every message, most of them without an id, once and in order.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.backends.spill import events
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder

BROKERS: Final = 3
QUEUES: Final = ("orders", "payments")
PARTITIONS: Final = 3
BEGAN_MS: Final = 1_763_269_200_000
FILE_EVENTS: Final = 4_000
# Of the messages that have an id, so many are kept by another broker, too.
COPIED_SHARE: Final = 0.2
RUN_S_MAX: Final = 120.0
_LOOK_S: Final = 0.02
# Of what a recovery said that failed.
_SAID_LINES: Final = 20
_SMALL: Final = {"spark.driver.memory": "768m", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
_TABLE: Final = """
SELECT t.name, m.partition, array_agg(m.value ORDER BY m."offset")
FROM holdfast.messages m JOIN holdfast.topics t USING (topic_id) GROUP BY 1, 2
"""
_COUNT: Final = "SELECT coalesce(sum(next_offset), 0) FROM holdfast.partitions"

Values = dict[tuple[str, int], list[bytes]]


def write_spills(root: Path, dice: random.Random, count: int) -> Values:
    """Directories of all brokers, with `count` messages and some copies; returns what is to be stored."""
    expected: Values = {(queue, number): [] for queue in QUEUES for number in range(PARTITIONS)}
    lines: dict[int, list[bytes]] = {broker: [] for broker in range(BROKERS)}
    for serial in range(count):
        # Every message has a time of its own, so that there is one order.
        time_ms = BEGAN_MS + serial
        place = dice.choice(QUEUES), dice.randrange(PARTITIONS)
        message = NewMessage(value=b"%d" % serial, id=f"id-{serial}" if serial % 4 == 0 else None)
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

    def __init__(self, url: str, root: Path, master: str = "local[2]", conf: Mapping[str, str] = _SMALL) -> None:
        self._url = url
        self._log = root / "recover.log"
        directories = sorted(map(str, root.glob("broker-*")))
        self._command = [sys.executable, "-m", "holdfast.cli", "pipeline", "recover", *directories, "--store", url]
        self._command += ["--partitions", str(PARTITIONS), "--master", master, "--json"]
        self._command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]

    async def killed(self, after_s: float, at_count: float) -> int | None:
        """Start it, and kill it after so long or as soon as so many messages are stored; how many are then.

        None: it ended before.
        """
        with self._started() as process:
            await self._watch(process, after_s, at_count)
            if process.poll() is not None:
                return None
            process.send_signal(signal.SIGKILL)
        return await self._count()

    async def _watch(self, process: subprocess.Popen[bytes], after_s: float, at_count: float) -> None:
        """Wait so long, or until so many messages are stored, or for its end."""
        until_s = time.monotonic() + after_s
        while process.poll() is None and time.monotonic() < until_s and await self._count() < at_count:
            await asyncio.sleep(_LOOK_S)

    async def ended(self, at_count: float = 0, then: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run it to its end, its verdict; `then` is done when so many messages are stored."""
        with self._started() as process:
            await self._watch(process, RUN_S_MAX, at_count)
            then()
            out, _ = await asyncio.to_thread(process.communicate, None, RUN_S_MAX)
        if process.returncode:
            said = (await asyncio.to_thread(self._log.read_text)).splitlines()[-_SAID_LINES:]
            raise RuntimeError("\n".join((f"the recovery ended with {process.returncode}:", *said)))
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

    async def _count(self) -> int:
        try:
            return int((await self._asked(_COUNT))[0][0])
        except asyncpg.UndefinedTableError:
            return 0

    async def stored(self) -> Values:
        return {(row[0], row[1]): list(row[2]) for row in await self._asked(_TABLE)}

    async def _asked(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            found: list[Any] = await connection.fetch(statement)
            return found
        finally:
            await connection.close()


class Outcome(NamedTuple):
    """How many messages were stored at each kill, and what is wrong in the end, if anything is."""

    stored_at_kills: list[int]
    wrong: str | None


async def round_of_kills(url: str, root: Path, dice: random.Random, count: int, kills: int) -> Outcome:
    expected = await asyncio.to_thread(write_spills, root, dice, count)
    recovery = Recovery(url, root)
    stored: list[int] = []
    for number in range(kills):
        if number % 3 == 2:
            at_kill = await recovery.killed(dice.uniform(0.0, 20.0), float("inf"))
        else:
            at_kill = await recovery.killed(RUN_S_MAX, max(1, (number + dice.random() - 0.5) / kills * count))
        if at_kill is None:
            break
        stored.append(at_kill)
    verdict = await recovery.ended()
    found = await recovery.stored()
    if found != expected:
        wrong = {place for place in expected | found if expected.get(place) != found.get(place)}
        return Outcome(stored, f"{len(wrong)} partitions are not as they should be, such as {min(wrong)}")
    waiting = await asyncio.to_thread(_waiting, root)
    return Outcome(stored, f"files are left: {waiting[:3]}; {verdict}" if waiting else None)


def _waiting(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*.buf") if path.parent.name != "recovered"]


async def _run(kills: int, seed: int, events_each: int) -> int:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-recover-") as temporary:
        for number in range((kills + 4) // 5):
            server = EmbeddedServer(Path(temporary) / f"postgres-{number}", comes_back=False)
            url = await server.start()
            try:
                few = min(5, kills - 5 * number)
                outcome = await round_of_kills(url, Path(temporary) / f"spills-{number}", dice, events_each, few)
            finally:
                await server.stop()
            killed_at = ", ".join(f"{count:,}" for count in outcome.stored_at_kills)
            print(f"killed at {killed_at} of {events_each:,}: {outcome.wrong or 'all once, in order'}", flush=True)
            if outcome.wrong:
                print(f"again with --seed {seed}")
                return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.recover", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--events", type=int, default=150_000, help="of each recovery, which is killed five times")
    options = parser.parse_args()
    return asyncio.run(_run(options.kills, options.seed, options.events))


if __name__ == "__main__":
    sys.exit(main())
