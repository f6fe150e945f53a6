"""Failovers of a real pair in a row, under load: `python -m chaos.pair --failovers 200 --splits 2 --per-side 150000`.

Both roles are killed, restarted, paused and cut off from each other at random moments, and come back with an empty
disk. In some splits each side takes and delivers many messages. Publishers and a subscriber know both brokers, as
those of users do. At the end everything that was acknowledged was received, exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track
from testkit.network.cable import Cable

from holdfast.client import HoldfastError, PairPublisher, PairSubscriber, connect_blocking
from holdfast.client.pair import ConnectionChange
from holdfast.testing import ports
from holdfast.testing.asking import ask
from holdfast.testing.node_process import NodeProcess

TOPIC: Final = "t"
HEARTBEAT_MS: Final = 100
MISSES: Final = 3
PATIENCE_S: Final = 60.0
PUBLISHERS: Final = 2
PER_SIDE: Final = 150_000
_GONE_S: Final = HEARTBEAT_MS * MISSES / 1000
# So many lines of a flood have no answer yet.
_FLOOD_LINES: Final = 2_000
# What a split of many messages takes longer to heal than a short one, for each.
_HEALING_S: Final = 0.002
# From a text port to that for peers: `holdfast primary` and `holdfast backup` are given text ports only.
_PEER_STEP: Final = 20
# Of the faults, those so long before and after a message went missing are told.
_AROUND_S: Final = 6.0


class ChaosPair:
    """Two brokers, and the cables between them."""

    def __init__(self, directory: Path, base_port: int) -> None:
        self.nodes = {
            node: NodeProcess(node, directory, ports.of_node(base_port, index)) for index, node in enumerate("ab")
        }
        self.cables = {node: Cable(int(process.peer.rpartition(":")[2])) for node, process in self.nodes.items()}

    def other(self, node: str) -> str:
        return "b" if node == "a" else "a"

    def spawn(self, node: str) -> None:
        """As a user does. A box without data is the backup, except for the very first time."""
        process, cable = self.nodes[node], self.cables[self.other(node)]
        is_founder = node == "a" and not any(each.data.exists() for each in self.nodes.values())
        port = process.text.rpartition(":")[2]
        arguments = ["primary" if is_founder else "backup", port, f"127.0.0.1:{cable.port - _PEER_STEP}"]
        arguments += ["--heartbeat-ms", str(HEARTBEAT_MS), "--misses", str(MISSES), "--data", str(process.data)]
        process.start_with(*arguments)
        process.spawn()

    def start(self, node: str) -> None:
        self.spawn(node)
        self.nodes[node].wait_until_serving(time.monotonic() + PATIENCE_S)

    def standing(self, node: str) -> dict[str, Any]:
        """How a broker says that it stands; empty while it does not answer."""
        answer = ask(self.nodes[node].http, "/v1/cluster", timeout_s=1.0)
        return answer.content["pair"] if answer.status == 200 else {}

    def primary(self) -> str:
        return next(node for node in "ab" if self.standing(node).get("role") == "primary")

    def wait_until_together(self, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            stands = [self.standing(node) for node in "ab"]
            roles = sorted(each.get("role", "") for each in stands)
            if roles == ["backup", "primary"] and not any(each["is_alone"] for each in stands):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"they do not come together: {stands}")
            time.sleep(0.02)

    def wait_until_apart(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(self.standing(node).get("is_alone") for node in "ab"):
            if time.monotonic() > deadline:
                raise AssertionError("they are cut off from each other, and one does not go on alone")
            time.sleep(0.02)

    def stored_values(self) -> list[str]:
        """Everything that the primary has, in order."""
        with connect_blocking(self.nodes[self.primary()].http) as client:
            values: list[str] = []
            offset = 0
            while messages := client.read(TOPIC, offset=offset, messages_max=10_000):
                values += [message.value.decode() for message in messages]
                offset = messages[-1].offset + 1
            return values

    def logs(self) -> str:
        return "\n".join(f"--- {node.id}\n{node.log()}" for node in self.nodes.values())

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for cable in self.cables.values():
            cable.close()


def kill_primary(pair: ChaosPair, dice: random.Random) -> None:
    node = pair.primary()
    pair.nodes[node].kill()
    time.sleep(dice.uniform(0, 3 * _GONE_S))
    pair.start(node)


def kill_backup(pair: ChaosPair, dice: random.Random) -> None:
    node = pair.other(pair.primary())
    pair.nodes[node].kill()
    time.sleep(dice.uniform(0, 3 * _GONE_S))
    pair.start(node)


def kill_both(pair: ChaosPair, dice: random.Random) -> None:
    nodes = dice.sample("ab", 2)
    for node in nodes:
        pair.nodes[node].kill()
        time.sleep(dice.uniform(0, _GONE_S))
    for node in dice.sample("ab", 2):
        pair.spawn(node)
    for node in nodes:
        pair.nodes[node].wait_until_serving(time.monotonic() + PATIENCE_S)


def pause_primary(pair: ChaosPair, dice: random.Random) -> None:
    node = pair.primary()
    pair.nodes[node].pause()
    time.sleep(dice.uniform(0, 4 * _GONE_S))
    pair.nodes[node].resume()


def split(pair: ChaosPair, dice: random.Random) -> None:
    cables = list(pair.cables.values())
    # Sometimes only one way.
    for cable in cables[: dice.choice((1, 2, 2))]:
        cable.cut()
    time.sleep(dice.uniform(0, 5 * _GONE_S))
    for cable in cables:
        cable.mend()


def leave_in_order(pair: ChaosPair, dice: random.Random) -> None:
    node = pair.nodes[dice.choice("ab")]
    node.tell_to_stop()
    node.wait_stopped()
    time.sleep(dice.uniform(0, 2 * _GONE_S))
    pair.start(node.id)


def lose_disk(pair: ChaosPair, dice: random.Random) -> None:
    """A box comes back with an empty disk; sometimes the other one was away, too, and has what it had."""
    node = dice.choice("ab")
    killed = [node, pair.other(node)][: dice.choice((1, 1, 2))]
    for each in killed:
        pair.nodes[each].kill()
        time.sleep(dice.uniform(0, 3 * _GONE_S))
    shutil.rmtree(pair.nodes[node].data)
    for each in dice.sample(killed, len(killed)):
        pair.spawn(each)
    for each in killed:
        pair.nodes[each].wait_until_serving(time.monotonic() + PATIENCE_S)


FAULTS: Final[tuple[Callable[[ChaosPair, random.Random], None], ...]] = (
    kill_primary,
    kill_primary,
    kill_backup,
    kill_both,
    pause_primary,
    split,
    leave_in_order,
    lose_disk,
)


def without_id(value: str) -> str:
    return f"PUBLISH|{TOPIC}|{value}\n"


def with_number(value: str) -> str:
    return f"PUBLISH_ID|{value}|{TOPIC}|{value}\n"


def with_uuid(value: str) -> str:
    return f"PUBLISH_ID|{uuid.uuid5(uuid.NAMESPACE_OID, value)}|{TOPIC}|{value}\n"


# What is published in a long split: a subscriber remembers ids in different ways.
LINES: Final = (without_id, with_number, with_uuid)


class Load:
    """What was sent, acknowledged and received."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self.sent: set[str] = set()
        # When, and by which broker.
        self.acknowledged: dict[str, tuple[float, str]] = {}
        self.received: Counter[str] = Counter()
        # When, and from which broker, first.
        self.arrivals: dict[str, tuple[float, str]] = {}
        # Messages that came again and were not handed out.
        self.recognised = 0
        self.changes: list[tuple[float, str]] = []
        self.longest_gap_s = 0.0
        self._stopping = asyncio.Event()

    async def publish(self, number: int) -> None:
        async with PairPublisher(*self._addresses, patience_s=PATIENCE_S, on_change=lambda change: None) as publisher:
            last = time.monotonic()
            for count in range(sys.maxsize):
                if self._stopping.is_set():
                    return
                value = f"{number}/{count}"
                self.sent.add(value)
                with contextlib.suppress(HoldfastError):
                    published = await publisher.publish(TOPIC, value)
                    self.acknowledged[value] = (time.time(), published.broker)
                now = time.monotonic()
                self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
                await asyncio.sleep(0.002)

    async def flood(self, broker: str, name: str, count: int, make_line: Callable[[str], str]) -> None:
        """Publish to one of them as fast as it takes it."""
        host, _, port = broker.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.closing(writer):
            await reader.readline()
            for first in range(0, count, _FLOOD_LINES):
                values = [f"{name}/{number}" for number in range(first, min(count, first + _FLOOD_LINES))]
                self.sent.update(values)
                writer.writelines(make_line(value).encode() for value in values)
                for value in values:
                    answer = await reader.readline()
                    assert answer.startswith(b"PUBACK"), f"{broker} is alone and refuses a message: {answer!r}"
                    self.acknowledged[value] = (time.time(), broker)

    async def receive(self) -> None:
        # With a name: while both are dead, nobody is connected, and what is published then is for it all the same.
        subscriber = PairSubscriber(TOPIC, *self._addresses, name="reader", on_change=self._changed)
        async with subscriber:
            async for message in subscriber:
                value = message.value.decode()
                self.received[value] += 1
                self.recognised = subscriber.duplicates
                self.arrivals.setdefault(value, (time.time(), message.broker))

    def _changed(self, change: ConnectionChange) -> None:
        self.changes.append((time.time(), f"the subscriber {change}"))

    def stop(self) -> None:
        self._stopping.set()

    @property
    def lost(self) -> set[str]:
        return set(self.acknowledged) - set(self.received)

    @property
    def twice(self) -> set[str]:
        return {value for value, count in self.received.items() if count > 1}


async def run(
    failovers: int,
    seed: int,
    progress: Callable[[range], Iterator[int]],
    *,
    splits: int = 0,
    per_side: int = PER_SIDE,
) -> dict[str, object]:
    """The `splits` are spread over the failovers. Raises `AssertionError` if they do not come together again."""
    dice = random.Random(seed)
    base_port, mark = ports.choose(2)
    with tempfile.TemporaryDirectory(prefix="holdfast-pair-") as directory, contextlib.closing(mark):
        pair = ChaosPair(Path(directory), base_port)
        try:
            found = await _run(pair, failovers, dice, progress, splits, per_side)
            if found["examples"]:
                print(pair.logs(), file=sys.stderr)
            return found
        except AssertionError:
            print(pair.logs(), file=sys.stderr)
            raise
        finally:
            pair.close()


async def _run(
    pair: ChaosPair,
    failovers: int,
    dice: random.Random,
    progress: Callable[[range], Iterator[int]],
    splits: int,
    per_side: int,
) -> dict[str, object]:
    for node in "ab":
        await asyncio.to_thread(pair.start, node)
    await asyncio.to_thread(pair.wait_until_together)
    load = Load([node.text for node in pair.nodes.values()])
    receiving = asyncio.ensure_future(load.receive())
    await asyncio.sleep(0.5)
    publishing = [asyncio.ensure_future(load.publish(number)) for number in range(PUBLISHERS)]
    faults: Counter[str] = Counter()
    notes: list[tuple[float, str]] = []
    healing_s = PATIENCE_S + per_side * _HEALING_S
    for turn in progress(range(failovers)):
        await asyncio.sleep(dice.uniform(0, 0.5))
        fault = dice.choice(FAULTS)
        faults[fault.__name__] += 1
        notes.append((time.time(), fault.__name__))
        await asyncio.to_thread(fault, pair, dice)
        await asyncio.to_thread(pair.wait_until_together)
        notes.append((time.time(), "together"))
        for number in range(turn * splits // failovers, (turn + 1) * splits // failovers):
            faults["split_long"] += 1
            notes.append((time.time(), "split_long"))
            await _split_long(pair, load, dice, f"split {number}", per_side)
            await asyncio.to_thread(pair.wait_until_together, healing_s)
            notes.append((time.time(), "together"))
    load.stop()
    await asyncio.gather(*publishing)
    deadline = time.monotonic() + (healing_s if splits else PATIENCE_S)
    while load.lost and time.monotonic() < deadline and not receiving.done():
        await asyncio.sleep(0.05)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    stored = await asyncio.to_thread(pair.stored_values)
    missing = sorted(load.lost | load.twice)[:10]
    return {
        "failovers": failovers,
        "faults": dict(faults),
        "sent": len(load.sent),
        "acknowledged": len(load.acknowledged),
        "received": len(load.received),
        "recognised": load.recognised,
        "lost": len(load.lost),
        "not_stored": len(set(load.acknowledged) - set(stored)),
        "duplicated": len(load.twice),
        "longest_gap_ms": int(load.longest_gap_s * 1000),
        "examples": [_story(value, load, notes + load.changes, stored) for value in missing],
    }


async def _split_long(pair: ChaosPair, load: Load, dice: random.Random, name: str, per_side: int) -> None:
    """Both go on alone, and each takes so many messages and delivers them to the same subscriber."""
    for cable in pair.cables.values():
        cable.cut()
    await asyncio.to_thread(pair.wait_until_apart)
    make_line = dice.choice(LINES)
    await asyncio.gather(
        *(load.flood(each.text, f"{name} {node}", per_side, make_line) for node, each in pair.nodes.items())
    )
    for cable in pair.cables.values():
        cable.mend()


def _story(value: str, load: Load, notes: list[tuple[float, str]], stored: list[str]) -> list[str]:
    """What is known of a message that went missing, or came twice: for whoever looks into the logs."""
    at_s, broker = load.acknowledged.get(value, (0.0, "nobody"))
    told = [f"{value}: acknowledged by {broker} at {_clock(at_s)}, received {load.received[value]} times"]
    if value in stored:
        place = stored.index(value)
        for neighbour in range(max(0, place - 2), min(place + 3, len(stored))):
            came_s, source = load.arrivals.get(stored[neighbour], (0.0, "nobody"))
            told.append(f"offset {neighbour}: {stored[neighbour]}, from {source} at {_clock(came_s)}")
    else:
        told.append("it is not stored")
    return told + [f"{_clock(when_s)} {what}" for when_s, what in sorted(notes) if abs(when_s - at_s) < _AROUND_S]


def _clock(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, UTC).strftime("%H:%M:%S.%f")[:-3]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.pair", description=__doc__)
    parser.add_argument("--failovers", type=int, default=200)
    parser.add_argument("--splits", type=int, default=2, help="how many splits with many messages on both sides")
    parser.add_argument("--per-side", type=int, default=PER_SIDE, help="messages on each side of such a split")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    arguments = parser.parse_args()
    console = Console(stderr=True)
    console.print(f"seed {arguments.seed}")

    def progress(turns: range) -> Iterator[int]:
        return iter(track(turns, console=console))

    found = asyncio.run(
        run(
            arguments.failovers,
            arguments.seed,
            progress,
            splits=arguments.splits,
            per_side=arguments.per_side,
        )
    )
    print(json.dumps(found, indent=2))
    return 1 if found["examples"] or found["not_stored"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
