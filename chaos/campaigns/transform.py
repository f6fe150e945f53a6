"""Transforms whose driver is killed again and again.

A function, a statement and a function with a state run in one driver (`chaos.spark_transform_job`), and raise for some
messages. At the end each message is once in its target or once among the dead letters, whichever moments the kills met:
while a batch is computed, staged, committed or noted by Spark, or while rows that raise are looked for. A kill counts
if the driver was alive, had written something of each kind, and had some of each left to do.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Final

from testkit.checker import check
from testkit.history import History, Place
from testkit.wait import wait_until

from chaos import report
from chaos.report import Report
from chaos.run import Outcome
from chaos.spark_transform_job import BATCH_MESSAGES, WAYS, source_of, target_of
from holdfast.client import BlockingClient
from holdfast.testing import LocalCluster

# Java starts in seconds, and on a machine that has much else to do in minutes.
_START_S: Final = 300.0
# A driver is killed so long after it wrote its first batches, at most.
_AFTER_S_MAX: Final = 3.0
_DRAIN_S: Final = 600.0
_LOG_TAIL_LINES: Final = 60

# Which of two messages is made first is not promised.
PROMISED: Final = ("acknowledged and lost", "never sent", "stored twice")

Found = dict[str, Counter[bytes]]


def _value(number: int) -> bytes:
    """A number, and something else now and then."""
    return b"x%d" % number if number % 7 == 3 else b"%d" % number


class Work:
    """What is published for each way, and what has become of it."""

    def __init__(self, broker: BlockingClient) -> None:
        self._broker = broker
        self._published = 0
        for way in WAYS:
            broker.create_topic(source_of(way))

    def done(self) -> dict[str, int]:
        """How many messages of each way are made or dead."""
        counts = {str(described.topic): described.messages for described in self._broker.topics()}
        return {way: counts.get(target_of(way), 0) + counts.get(f"{source_of(way)}.dead", 0) for way in WAYS}

    def left(self) -> int:
        """How many messages the way has left that has fewest."""
        return self._published - max(self.done().values())

    def top_up(self, messages: int) -> None:
        """Have each way so many messages left, at least."""
        more = [_value(self._published + number) for number in range(messages - self.left())]
        for way in WAYS if more else ():
            self._broker.publish_many(source_of(way), more)
        self._published += len(more)

    def found(self) -> Found:
        topics = [topic for way in WAYS for topic in (target_of(way), f"{source_of(way)}.dead")]
        return {topic: self._read(topic) for topic in topics}

    def expected(self) -> Found:
        values = [_value(number) for number in range(self._published)]
        numbers = [int(value) for value in values if value.isdigit()]
        twice = Counter(b"%d" % (2 * number) for number in numbers)
        made = {"function": twice, "sql": twice, "state": Counter(b"%d" % total for total in accumulate(numbers))}
        dead = Counter(value for value in values if not value.isdigit())
        return {
            topic: each
            for way in WAYS
            for topic, each in ((target_of(way), made[way]), (f"{source_of(way)}.dead", dead))
        }

    def _read(self, topic: str) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        offset = 0
        while messages := self._broker.read(topic, offset=offset, messages_max=5000):
            found.update(message.value for message in messages)
            offset = messages[-1].offset + 1
        return found


def run(
    kills: int,
    dice: random.Random,
    directory: Path,
    batches_ahead: int = 20,
    within_s: float = math.inf,
    on_kill: Callable[[str], object] = len,
) -> tuple[Found, Found]:
    """What is in the targets and among the dead after so many kills and a last driver, and what should be."""
    end = time.monotonic() + within_s

    def at_most(seconds: float) -> float:
        return max(0.0, min(seconds, end - time.monotonic()))

    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        work = Work(broker)
        command = [sys.executable, "-m", "chaos.spark_transform_job"]
        command += [cluster.url.removeprefix("holdfast://"), str(directory)]
        log = directory / "drivers.log"
        hits = tries = 0
        while hits < kills:
            assert tries < 2 * kills + 2, f"{tries} kills, and only {hits} met work"
            tries += 1
            work.top_up(batches_ahead * BATCH_MESSAGES)
            is_hit = _kill_in_the_middle(work, command, dice, log, at_most(_START_S))
            hits += is_hit
            on_kill(f"kill {tries}: {work.left()} messages left{'' if is_hit else ', too late'}")
        with open(log, "ab") as output:
            last = [*command, "--once"]
            done = subprocess.run(last, stdout=output, stderr=output, timeout=at_most(_DRAIN_S), check=False)
        assert done.returncode == 0, f"the last driver ended with code {done.returncode}\n{_tail(log)}"
        return work.found(), work.expected()


def _kill_in_the_middle(work: Work, command: list[str], dice: random.Random, log: Path, start_s: float) -> bool:
    """Start a driver, and kill it some time after it has written of each way; says whether it had work left in each."""
    before = work.done()
    # A group of its own: Python, Java and all their children are killed at once.
    with open(log, "ab") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def is_running() -> bool:
        assert driver.poll() is None, f"the driver ended with code {driver.returncode}\n{_tail(log)}"
        return True

    def has_begun() -> bool:
        return is_running() and all(count > before[way] for way, count in work.done().items())

    try:
        wait_until(has_begun, "a batch of each way is written", start_s)
        time.sleep(dice.uniform(0, _AFTER_S_MAX))
        is_running()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return work.left() > 0


def _tail(log: Path) -> str:
    """The end of the drivers' log, for errors."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:])


def as_history(found: Found, expected: Found) -> History:
    """Each topic as the messages of one producer, which has been promised that they are there."""
    history = History(members=("broker",))
    for topic, values in expected.items():
        book = history.producer(topic, topic)
        assert values.total() == len(values), "every value is expected once"
        names = {value: f"{topic}/{number}".encode() for number, value in enumerate(values)}
        for sequence in book.send(len(values), time.monotonic()):
            book.acknowledge(sequence, time.monotonic())
        there = [names.get(value, value) for value in found[topic].elements()]
        history.add_values("broker", Place(topic, 0), sorted(there))
    return history


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--kills", type=int, default=20, help="how many kills hit a driver at work")


def main(options: argparse.Namespace) -> int:
    made = Report("transform", options)
    began = time.monotonic()
    with made.attempt():
        with tempfile.TemporaryDirectory() as directory:
            found, expected = run(options.kills, random.Random(options.seed), Path(directory), on_kill=made.say)
        history = as_history(found, expected)
        replay = f"{sys.executable} -m chaos transform --kills {options.kills} --seed {options.seed}"
        verdict = check(history, PROMISED)
        outcome = Outcome(options.seed, replay, history, verdict, began, time.monotonic() - began)
        outcome.faults["the driver was killed"] = options.kills
        made.add(outcome)
    return made.finish()
