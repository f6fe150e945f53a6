"""A transform whose driver is killed again and again: `python -m chaos.spark_transform`.

Its function raises for some messages. At the end each message is once in the target or once among the dead letters,
whichever moments the kills met: while a batch is computed, staged, committed or noted by Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from chaos.spark_cluster import wait_for
from holdfast.client import BlockingClient
from holdfast.testing import LocalCluster

SOURCE: Final = "numbers"
TARGET: Final = "doubled"
# One batch takes about a second, so that kills meet all that happens in one.
_BATCH_MESSAGES: Final = 30
_START_S: Final = 120.0
# A driver is killed so long after it wrote its first batch, at most.
_AFTER_S_MAX: Final = 3.0
_DRAIN_S: Final = 600.0
_FUNCTION: Final = """
import time

import pyarrow as pa


def doubled(batch):
    numbers = [int(value) for value in batch["value"].to_pylist()]
    time.sleep(0.005 * len(numbers))
    return pa.table({"value": [str(2 * number) for number in numbers]})
"""


def values(messages: int) -> list[bytes]:
    """Numbers, and something else now and then."""
    return [b"x%d" % number if number % 7 == 3 else b"%d" % number for number in range(messages)]


def run(kills: int, messages: int, dice: random.Random, directory: Path) -> dict[str, Counter[bytes]]:
    """What is in the target and among the dead after so many kills, and a last driver that ends by itself."""
    (directory / "shop.py").write_text(_FUNCTION, "utf-8")
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.create_topic(SOURCE)
        broker.publish_many(SOURCE, values(messages))
        command = [
            sys.executable,
            "-m",
            "holdfast.cli",
            "pipeline",
            "transform",
            "--source",
            SOURCE,
            "--target",
            TARGET,
        ]
        command += ["--function", f"{directory / 'shop.py'}:doubled", "--checkpoint", str(directory / "checkpoint")]
        command += ["--batch-messages", str(_BATCH_MESSAGES), "--batch-rows", "10", "--interval", "1ms"]
        command += ["--server", cluster.url.removeprefix("holdfast://"), "--master", "local[2]"]
        command += ["--conf", "spark.driver.memory=512m"]
        with open(directory / "drivers.log", "wb") as log:
            for _ in range(kills):
                _kill_in_the_middle(broker, command, dice, log.fileno())
            done = subprocess.run([*command, "--once"], stdout=log, stderr=log, timeout=_DRAIN_S, check=False)
        assert done.returncode == 0, f"the last driver failed; see {directory / 'drivers.log'}"
        return {topic: _read(broker, topic) for topic in (TARGET, f"{SOURCE}.dead")}


def _kill_in_the_middle(broker: BlockingClient, command: list[str], dice: random.Random, log: int) -> None:
    """Start a driver, and kill it some time after it has written a batch."""
    before = _count(broker)
    # A group of its own: Python, Java and all their children are killed at once.
    driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: _count(broker) > before, "a batch is written", _START_S)
        time.sleep(dice.uniform(0, _AFTER_S_MAX))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _count(broker: BlockingClient) -> int:
    return sum(described.messages for described in broker.topics() if described.topic == TARGET)


def _read(broker: BlockingClient, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    offset = 0
    while messages := broker.read(topic, offset=offset, messages_max=5000):
        found.update(message.value for message in messages)
        offset = messages[-1].offset + 1
    return found


def expected(messages: int) -> dict[str, Counter[bytes]]:
    made = Counter(b"%d" % (2 * int(value)) for value in values(messages) if value.isdigit())
    return {TARGET: made, f"{SOURCE}.dead": Counter(value for value in values(messages) if not value.isdigit())}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.spark_transform", description=__doc__)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    # Enough that there is something left to do after the last kill.
    messages = 10 * _BATCH_MESSAGES * (options.kills + 1)
    with tempfile.TemporaryDirectory() as directory:
        is_exact = run(options.kills, messages, random.Random(options.seed), Path(directory)) == expected(messages)
    print(f"{messages} messages, {options.kills} kills: {'each once, made or dead' if is_exact else 'NOT exact'}")
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
