"""Outages of a real PostgreSQL under real brokers, in a row and under load.

The database is killed, paused, restarted, filled up, made read-only, slow, and has no connection left; a broker is
killed, restarted and paused, alone and together with the database; the disk that a broker spills to is full. All at
random moments. Publishers go on all the time; with two brokers or more, those of different brokers alternate in the
same partitions. A run ends when all spills are empty. Then the database has everything that was acknowledged, exactly
once and in the order of each publisher.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testkit.checker import check
from testkit.history import History, Place, Producer
from testkit.nemesis.database import BrokersOverDatabase

from chaos import report
from chaos.report import Report
from chaos.run import Outcome
from holdfast.client import Client, HoldfastError, connect
from holdfast.testing import ClusterFailed

TOPIC: Final = "orders"
PARTITIONS: Final = 3
PUBLISHERS: Final = 4
PATIENCE_S: Final = 60.0
_STORED: Final = 'SELECT partition, payload FROM holdfast.queue_messages WHERE queue = $1 ORDER BY partition, "offset"'


class Publishers:
    """Each sends its next message when it knows of the one before."""

    def __init__(self, scene: BrokersOverDatabase, history: History) -> None:
        self._scene = scene
        self._history = history
        self.books = [history.producer(f"publisher{number}", TOPIC) for number in range(PUBLISHERS)]
        self.buffered = 0
        self._is_stopping = False

    async def run(self) -> None:
        """Until `stop`."""
        brokers = self._scene.brokers
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(each.http, timeout_s=PATIENCE_S)) for each in brokers]
            await clients[0].create_topic(TOPIC, partitions=PARTITIONS)
            async with asyncio.TaskGroup() as group:
                for number, book in enumerate(self.books):
                    broker, key = number % len(brokers), f"key-{number // len(brokers)}"
                    group.create_task(self._publish(clients[broker], book, key))

    async def _publish(self, client: Client, book: Producer, key: str) -> None:
        while not self._is_stopping:
            (sequence,) = book.send(1, time.monotonic())
            name = f"{book.name}/{sequence}"
            try:
                # The id makes the client send it again while the broker is away.
                published = await client.publish(TOPIC, name.encode(), key=key, id=name)
            except HoldfastError as error:
                book.failed(error.code)
            else:
                self.buffered += published.buffered
                if published.buffered:
                    book.acknowledge(sequence, time.monotonic())
                else:
                    place = self._history.place(TOPIC, published.partition)
                    book.acknowledge(sequence, time.monotonic(), place, published.offset)
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        self._is_stopping = True


def run(outages: int, seed: int, brokers: int = 1, on_change: Callable[[str], object] = len) -> Outcome:
    """As root with small disks, so that they can be full."""
    replay = f"{sys.executable} -m chaos outage --outages {outages} --brokers {brokers} --seed {seed}"
    outcome = Outcome(seed, replay, History(members=("database",)), began=time.monotonic())
    with tempfile.TemporaryDirectory(prefix="holdfast-outage-") as directory:
        scene = BrokersOverDatabase(Path(directory), small_disks=os.geteuid() == 0, brokers=brokers)
        try:
            asyncio.run(_run(scene, outages, random.Random(seed), outcome, on_change))
            outcome.verdict = check(outcome.history)
        except (AssertionError, ClusterFailed) as error:
            # It broke off before it was known what is stored.
            outcome.history.stalls.append(str(error))
            outcome.verdict = check(outcome.history, ["did not go on"])
        if not outcome.verdict.is_clean:
            outcome.logs = {broker.id: broker.log() for broker in scene.brokers}
    outcome.seconds = time.monotonic() - outcome.began
    return outcome


async def _run(
    scene: BrokersOverDatabase, outages: int, dice: random.Random, outcome: Outcome, on_change: Callable[[str], object]
) -> None:
    history = outcome.history
    async with scene:
        publishers = Publishers(scene, history)
        publishing = asyncio.create_task(publishers.run())
        try:
            for _ in range(outages):
                await asyncio.sleep(dice.uniform(0, 1.0))
                fault = dice.choice(scene.faults())
                outcome.faults[fault.__name__] += 1
                outcome.notes.append(f"{time.monotonic():.3f} s: {fault.__name__}")
                await fault(dice)
                on_change(fault.__name__)
        finally:
            publishers.stop()
            await publishing
        waiting = await _left_waiting(scene)
        if waiting:
            history.stalls.append(f"{waiting} messages wait in the spills, and none is stored any more")
        await _collect(scene, history)
    outcome.errors = {book.name: book.errors for book in publishers.books if book.errors}
    outcome.totals.update(sent=history.sent, acknowledged=history.acknowledged, buffered=publishers.buffered)


async def _left_waiting(scene: BrokersOverDatabase) -> int:
    """None, once all spills are empty; how many messages wait where nothing is stored any more."""
    least, since_s = sys.maxsize, time.monotonic()
    while waiting := await scene.waiting():
        if waiting < least:
            least, since_s = waiting, time.monotonic()
        elif time.monotonic() - since_s > PATIENCE_S:
            return waiting
        await asyncio.sleep(0.2)
    return 0


async def _collect(scene: BrokersOverDatabase, history: History) -> None:
    stored: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    async with scene.session() as session:
        for row in await session.fetch(_STORED, TOPIC):
            stored[row["partition"]].append(row["payload"].encode())
    for partition, values in stored.items():
        history.add_values("database", Place(TOPIC, partition), values)


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--outages", type=int, default=100, help="how many, one after the other")
    parser.add_argument("--brokers", type=int, default=1, help="over the same database")


def main(options: argparse.Namespace) -> int:
    made = Report("outage", options)
    with made.progress("outages", options.outages) as move, made.attempt():
        made.add(run(options.outages, options.seed, options.brokers, lambda name: move(name, 1)))
    return made.finish()
