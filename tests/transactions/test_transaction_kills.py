"""Real processes, killed at any moment of staging, committing and copying: what was committed is there once, whole."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from testkit.sizes import dice, scaled
from testkit.wait import wait_until

from holdfast.client import BlockingClient, HoldfastError, RemoteError
from holdfast.testing import LocalCluster

PARTITIONS = 3
PIECES = 4
LINES = 40


class Driver(threading.Thread):
    """Commits one number after the other, as a Spark query does: with losers, and with other attempts after trouble."""

    def __init__(self, client: BlockingClient, writer: str, rolled: random.Random) -> None:
        super().__init__(daemon=True)
        self.client, self.writer, self.rolled = client, writer, rolled
        self.number = 0
        self.attempt = 0
        self.ending = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                try:
                    self._once()
                except HoldfastError:
                    continue  # the driver died, and comes back with the same number
                self.number += 1
        except BaseException as error:
            self.problem = error
            raise

    def _once(self) -> None:
        transaction = self.client.transaction(self.writer, self.number)
        winners = []
        for piece in range(PIECES):
            for _ in range(self.rolled.choice([1, 1, 2])):
                self.attempt += 1
                start = f"{self.writer}/{self.number}/{piece}/{self.attempt}/"
                values = [f"{start}{line}".encode() for line in range(LINES)]
                try:
                    receipts = transaction.stage("t", values, partition=piece % PARTITIONS)
                except RemoteError as error:
                    if error.code != "transaction_committed":
                        raise
                    receipts = []
            winners += receipts
        transaction.commit(winners)


def check(client: BlockingClient, drivers: list[Driver]) -> int:
    """Every reader finds each committed number once, whole, from one attempt a piece, in order."""
    found: dict[str, list[tuple[int, int, int, int]]] = {driver.writer: [] for driver in drivers}
    for partition in range(PARTITIONS):
        offset, values = 0, []
        while messages := client.read("t", partition, offset, messages_max=10_000):
            values += [message.value.decode() for message in messages]
            offset = messages[-1].offset + 1
        for driver in drivers:
            rows = [tuple(map(int, value.split("/")[1:])) for value in values if value.startswith(driver.writer)]
            numbers = [row[0] for row in rows]
            assert numbers == sorted(numbers), "numbers are out of order in a partition"
            found[driver.writer] += rows  # type: ignore[arg-type]
    total = 0
    for driver in drivers:
        attempts = {(number, piece): attempt for number, piece, attempt, _ in found[driver.writer]}
        counted = Counter(found[driver.writer])
        assert set(counted.values()) <= {1}, "something is there twice"
        wanted = {
            (number, piece, attempts.get((number, piece), -1), line)
            for number in range(driver.number)
            for piece in range(PIECES)
            for line in range(LINES)
        }
        rest = set(counted) - wanted
        assert wanted <= set(counted), "a committed transaction is not whole"
        assert not rest, "something is there that nobody committed"
        total += driver.number
    return total


@pytest.mark.parametrize("nodes", [1, 3])
def test_committed_transactions_survive_kills_once_and_whole(nodes: int, tmp_path: Path) -> None:
    rolled = dice(f"transactions {nodes}")
    with LocalCluster(nodes=nodes, data=tmp_path / "data") as cluster, cluster.connect_blocking() as client:
        client.create_topic("t", partitions=PARTITIONS)
        drivers = [Driver(client, name, random.Random(rolled.random())) for name in ("a", "b")]
        for driver in drivers:
            driver.start()

        def wait_for_commits(count: int) -> None:
            wanted = sum(driver.number for driver in drivers) + count
            wait_until(lambda: sum(driver.number for driver in drivers) >= wanted, f"{count} more commits")

        for round_number in range(scaled(2, 30)):
            wait_for_commits(6)
            time.sleep(rolled.random() * 0.05)
            victim = rolled.randrange(nodes)
            if nodes > 1 and round_number % 2:
                # Others take over what it leads; it wakes up and believes for a moment that it leads as before.
                cluster.pause(victim)
                wait_for_commits(4)
                cluster.resume(victim)
            else:
                cluster.kill(victim)
                cluster.start(victim)
        for driver in drivers:
            driver.ending.set()
        for driver in drivers:
            driver.join(60)
            assert not driver.is_alive() and driver.problem is None
        for driver in drivers:
            # The last one may have been committed without its driver having heard so.
            last = client.writer(driver.writer).last_number
            assert last is not None and last + 1 - driver.number in (0, 1)
            driver.number = last + 1
        assert check(client, drivers) > 10
