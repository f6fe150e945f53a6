"""Outages of a real PostgreSQL under real brokers, in a row and under load: `python -m chaos.outage --outages 100`.

The database is killed, paused, restarted, filled up, made read-only, slow, and has no connection left; a broker is
killed, restarted and paused, alone and together with the database; the disk that a broker spills to is full. All at
random moments. Publishers go on all the time; with `--brokers 2` or more, those of different brokers alternate in the
same partitions. A run ends when all spills are empty. Then the database has everything that was acknowledged, exactly
once and in the order of each publisher.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from chaos.outage_scene import Scene
from holdfast.client import Client, HoldfastError, connect

TOPIC: Final = "orders"
PARTITIONS: Final = 3
PUBLISHERS: Final = 4
PATIENCE_S: Final = 60.0
_EXAMPLES: Final = 5


class Load:
    """What was sent and acknowledged, by publisher. Each sends its next message when it knows of the one before."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.sent: Counter[int] = Counter()
        self.acknowledged: dict[int, list[int]] = {publisher: [] for publisher in range(PUBLISHERS)}
        self.buffered = 0
        self.refused: Counter[str] = Counter()
        # Of what was sent and answered while nothing was done to the broker itself; and the longest by what went on.
        self.waits_s: list[float] = []
        self.slowest_s: dict[str, float] = {}
        self.now = "well"
        self._stopping = asyncio.Event()

    async def publish(self, client: Client, publisher: int) -> None:
        brokers = self._scene.brokers
        broker, key = brokers[publisher % len(brokers)], f"key-{publisher // len(brokers)}"
        for number in range(sys.maxsize):
            if self._stopping.is_set():
                return
            began_s, was_well = time.monotonic(), broker not in self._scene.unwell
            self.sent[publisher] += 1
            try:
                # The id makes the client send it again while the broker is away.
                published = await client.publish(
                    TOPIC, b"%d/%d" % (publisher, number), key=key, id=f"{publisher}/{number}"
                )
            except HoldfastError as error:
                self.refused[error.code] += 1
            else:
                self.acknowledged[publisher].append(number)
                self.buffered += published.buffered
                if was_well and broker not in self._scene.unwell:
                    waited_s = time.monotonic() - began_s
                    self.waits_s.append(waited_s)
                    self.slowest_s[self.now] = max(waited_s, self.slowest_s.get(self.now, 0.0))
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged.values()))


class Verdict:
    """What the database has, held against what was acknowledged; and how many messages no broker could store."""

    def __init__(self, load: Load, stored: dict[int, list[int]], waiting: int) -> None:
        self.waiting = waiting
        self.lost: list[str] = []
        self.duplicated: list[str] = []
        self.out_of_order: list[str] = []
        for publisher, acknowledged in load.acknowledged.items():
            there = stored.get(publisher, [])
            self.lost += [f"{publisher}/{number}" for number in sorted(set(acknowledged) - set(there))]
            self.duplicated += [f"{publisher}/{number}" for number, count in Counter(there).items() if count > 1]
            self.out_of_order += [
                f"{publisher}/{later} behind {earlier}" for earlier, later in pairwise(there) if later < earlier
            ]

    @property
    def examples(self) -> list[str]:
        kinds = {"lost": self.lost, "twice": self.duplicated, "out of order": self.out_of_order}
        found = [f"{kind}: {each}" for kind, some in kinds.items() for each in some[:_EXAMPLES]]
        return [*found, f"not stored: {self.waiting} messages in the spills"] if self.waiting else found


async def run(
    outages: int, seed: int, progress: Callable[[range], Iterator[int]], brokers: int = 1
) -> dict[str, object]:
    """What became of everything; `examples` is empty where nothing is wrong."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-outage-") as directory:
        scene = Scene(Path(directory), small_disks=os.geteuid() == 0, brokers=brokers)
        try:
            await scene.start()
            return await _run(scene, outages, dice, progress)
        finally:
            await scene.close()


async def _run(
    scene: Scene, outages: int, dice: random.Random, progress: Callable[[range], Iterator[int]]
) -> dict[str, object]:
    load = Load(scene)
    faults: Counter[str] = Counter()
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(broker.address, timeout_s=PATIENCE_S)) for broker in scene.brokers
        ]
        await clients[0].create_topic(TOPIC, partitions=PARTITIONS)
        publishing = [
            asyncio.ensure_future(load.publish(clients[publisher % len(clients)], publisher))
            for publisher in range(PUBLISHERS)
        ]
        try:
            for _ in progress(range(outages)):
                await asyncio.sleep(dice.uniform(0, 1.0))
                fault = dice.choice(scene.faults())
                faults[fault.__name__] += 1
                load.now = fault.__name__
                await fault(dice)
        finally:
            load.stop()
            await asyncio.gather(*publishing)
    drained_s = time.monotonic()
    waiting = await _left_waiting(scene)
    drained_s = time.monotonic() - drained_s
    stored = await _stored(scene)
    verdict = Verdict(load, stored, waiting)
    if verdict.examples:
        for broker in scene.brokers:
            print((broker.directory / "broker.log").read_text("utf-8", "replace")[-20_000:], file=sys.stderr)
    waits_s = sorted(load.waits_s)
    return {
        "brokers": len(scene.brokers),
        "outages": outages,
        "faults": dict(faults),
        "sent": sum(load.sent.values()),
        "acknowledged": load.total,
        "buffered": load.buffered,
        "refused": dict(load.refused),
        "stored": sum(map(len, stored.values())),
        "waiting": waiting,
        "drained_s": round(drained_s, 1),
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "out_of_order": len(verdict.out_of_order),
        "p99_ms": round(waits_s[int(len(waits_s) * 0.99)] * 1000) if waits_s else None,
        "slowest_ms": {name: round(each * 1000) for name, each in load.slowest_s.items()},
        "examples": verdict.examples,
    }


async def _left_waiting(scene: Scene) -> int:
    """None, once all spills are empty; how many messages wait where nothing is stored any more."""
    least, since_s = sys.maxsize, time.monotonic()
    while True:
        waiting = await scene.waiting()
        if not waiting:
            return 0
        if waiting < least:
            least, since_s = waiting, time.monotonic()
        elif time.monotonic() - since_s > PATIENCE_S:
            return waiting
        await asyncio.sleep(0.2)


async def _stored(scene: Scene) -> dict[int, list[int]]:
    stored: dict[int, list[int]] = {}
    async with scene.session() as session:
        rows = await session.fetch(
            'SELECT payload FROM holdfast.queue_messages WHERE queue = $1 ORDER BY partition, "offset"', TOPIC
        )
    for row in rows:
        publisher, _, number = row["payload"].partition("/")
        stored.setdefault(int(publisher), []).append(int(number))
    return stored


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.outage", description=__doc__)
    parser.add_argument("--outages", type=int, default=100)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    arguments = parser.parse_args()
    console = Console(stderr=True)
    console.print(f"seed {arguments.seed}")
    found = asyncio.run(
        run(
            arguments.outages,
            arguments.seed,
            lambda turns: iter(track(turns, console=console)),
            arguments.brokers,
        )
    )
    print(json.dumps(found, indent=2))
    return 1 if found["examples"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
