"""Failovers of a real pair in a row, under load, and long splits.

Both roles are killed, restarted, paused and cut off from each other at random moments, and come back with an empty
disk. In some splits each side takes and delivers many messages. Publishers and a subscriber know both brokers, as
those of users do. At the end everything that was acknowledged is stored, and was received exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from testkit.checker import check
from testkit.history import NOWHERE, History, Place
from testkit.network.cable import Cable
from testkit.wait import wait_until

from chaos import report
from chaos.report import Report
from chaos.run import Outcome
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
# What a pair promises: each side of a split gives offsets of its own, so that they are no part of it.
PROMISED: Final = (
    "acknowledged and lost",
    "never sent",
    "acknowledged and not delivered",
    "delivered twice",
    "did not go on",
)
_GONE_S: Final = HEARTBEAT_MS * MISSES / 1000
# So many lines of a flood have no answer yet.
_FLOOD_LINES: Final = 2_000
# What a split of many messages takes longer to heal than a short one, for each.
_HEALING_S: Final = 0.002
# From a text port to that for peers: `holdfast primary` and `holdfast backup` are given text ports only.
_PEER_STEP: Final = 20


class Pair:
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

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.spawn(node)
        for node in nodes:
            self.nodes[node].wait_until_serving(time.monotonic() + PATIENCE_S)

    def standing(self, node: str) -> dict[str, Any]:
        """How a broker says that it stands; empty while it does not answer."""
        answer = ask(self.nodes[node].http, "/v1/cluster", timeout_s=1.0)
        return answer.content["pair"] if answer.status == 200 else {}

    def primary(self) -> str:
        """On a busy machine one that leads may not answer the first time."""

        def found() -> str:
            return next((node for node in "ab" if self.standing(node).get("role") == "primary"), "")

        return wait_until(found, "one of them is the primary")

    def is_together(self) -> bool:
        stands = [self.standing(node) for node in "ab"]
        roles = sorted(each.get("role", "") for each in stands)
        return roles == ["backup", "primary"] and not any(each["is_alone"] for each in stands)

    def wait_until_together(self, patience_s: float = PATIENCE_S) -> None:
        wait_until(self.is_together, "they come together again", patience_s)

    def wait_until_apart(self) -> None:
        wait_until(lambda: all(self.standing(node).get("is_alone") for node in "ab"), "both go on alone", PATIENCE_S)

    def stored_values(self) -> list[bytes]:
        """Everything that the primary has, in order."""
        with connect_blocking(self.nodes[self.primary()].http) as client:
            values: list[bytes] = []
            offset = 0
            while messages := client.read(TOPIC, offset=offset, messages_max=10_000):
                values += [message.value for message in messages]
                offset = messages[-1].offset + 1
            return values

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for cable in self.cables.values():
            cable.close()


def kill_primary(pair: Pair, dice: random.Random) -> None:
    _kill(pair, pair.primary(), dice)


def kill_backup(pair: Pair, dice: random.Random) -> None:
    _kill(pair, pair.other(pair.primary()), dice)


def _kill(pair: Pair, node: str, dice: random.Random) -> None:
    pair.nodes[node].kill()
    time.sleep(dice.uniform(0, 3 * _GONE_S))
    pair.start(node)


def kill_both(pair: Pair, dice: random.Random) -> None:
    for node in dice.sample("ab", 2):
        pair.nodes[node].kill()
        time.sleep(dice.uniform(0, _GONE_S))
    pair.start(*dice.sample("ab", 2))


def pause_primary(pair: Pair, dice: random.Random) -> None:
    node = pair.nodes[pair.primary()]
    node.pause()
    time.sleep(dice.uniform(0, 4 * _GONE_S))
    node.resume()


def split(pair: Pair, dice: random.Random) -> None:
    cables = list(pair.cables.values())
    # Sometimes only one way.
    for cable in cables[: dice.choice((1, 2, 2))]:
        cable.cut()
    time.sleep(dice.uniform(0, 5 * _GONE_S))
    for cable in cables:
        cable.mend()


def leave_in_order(pair: Pair, dice: random.Random) -> None:
    node = pair.nodes[dice.choice("ab")]
    node.tell_to_stop()
    node.wait_stopped()
    time.sleep(dice.uniform(0, 2 * _GONE_S))
    pair.start(node.id)


def lose_disk(pair: Pair, dice: random.Random) -> None:
    """A box comes back with an empty disk; sometimes the other one was away, too, and has what it had."""
    node = dice.choice("ab")
    killed = [node, pair.other(node)][: dice.choice((1, 1, 2))]
    for each in killed:
        pair.nodes[each].kill()
        time.sleep(dice.uniform(0, 3 * _GONE_S))
    shutil.rmtree(pair.nodes[node].data)
    pair.start(*dice.sample(killed, len(killed)))


FAULTS: Final[tuple[Callable[[Pair, random.Random], None], ...]] = (
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


def with_text(value: str) -> str:
    return f"PUBLISH_ID|{value}|{TOPIC}|{value}\n"


def with_uuid(value: str) -> str:
    return f"PUBLISH_ID|{uuid.uuid5(uuid.NAMESPACE_OID, value)}|{TOPIC}|{value}\n"


# What is published in a long split: a subscriber remembers ids in different ways.
LINES: Final = (without_id, with_text, with_uuid)


class Clients:
    """Publishers and a subscriber, and what they were told."""

    def __init__(self, addresses: list[str], history: History, note: Callable[[str], None]) -> None:
        self._addresses = addresses
        self._history = history
        self._note = note
        # With a name: while both are dead, nobody is connected, and what is published then is for it all the same.
        self.book = history.reader("reader", "any", all_of=TOPIC)
        self.place = history.place(TOPIC, 0)
        # Messages that came again and were not handed out.
        self.recognised = 0
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    async def publish(self, number: int) -> None:
        book = self._history.producer(f"publisher{number}", TOPIC)
        async with PairPublisher(*self._addresses, patience_s=PATIENCE_S, on_change=lambda change: None) as publisher:
            while not self._stopping.is_set():
                (sequence,) = book.send(1, time.monotonic())
                try:
                    await publisher.publish(TOPIC, f"{book.name}/{sequence}")
                except HoldfastError as error:
                    book.failed(error.code)
                else:
                    book.acknowledge(sequence, time.monotonic())
                await asyncio.sleep(0.002)

    async def flood(self, broker: str, name: str, count: int, make_line: Callable[[str], str]) -> None:
        """Publish to one of them as fast as it takes it."""
        book = self._history.producer(name, TOPIC)
        host, _, port = broker.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.closing(writer):
            await reader.readline()
            for first in range(0, count, _FLOOD_LINES):
                sequences = book.send(min(count - first, _FLOOD_LINES), time.monotonic())
                writer.writelines(make_line(f"{name}/{sequence}").encode() for sequence in sequences)
                for sequence in sequences:
                    answer = await reader.readline()
                    assert answer.startswith(b"PUBACK"), f"{broker} is alone and refuses a message: {answer!r}"
                    book.acknowledge(sequence, time.monotonic())

    async def receive(self) -> None:
        def on_change(change: ConnectionChange) -> None:
            self._note(f"the subscriber {change}")

        async with PairSubscriber(TOPIC, *self._addresses, name="reader", on_change=on_change) as subscriber:
            self.listening.set()
            async for message in subscriber:
                self.book.got(0, self.place, NOWHERE, self._history.message(message.value), time.monotonic())
                self.recognised = subscriber.duplicates

    def stop(self) -> None:
        self._stopping.set()

    def has_everything(self) -> bool:
        return not any(check(self._history, ["acknowledged and not delivered"]).counts.values())


def run(
    failovers: int, seed: int, *, splits: int = 0, per_side: int = PER_SIDE, on_change: Callable[[str], object] = len
) -> Outcome:
    """The `splits` are spread over the failovers."""
    options = f"--failovers {failovers} --splits {splits} --per-side {per_side} --seed {seed}"
    outcome = Outcome(seed, f"{sys.executable} -m chaos pair {options}", History())
    base_port, mark = ports.choose(2)
    outcome.began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-pair-") as directory, contextlib.closing(mark):
        pair = Pair(Path(directory), base_port)
        with contextlib.closing(pair):
            try:
                asyncio.run(_run(pair, outcome, failovers, random.Random(seed), splits, per_side, on_change))
            except AssertionError as error:
                outcome.history.stalls.append(str(error))
            outcome.verdict = check(outcome.history, PROMISED)
            if not outcome.verdict.is_clean:
                outcome.logs = {node: each.log() for node, each in pair.nodes.items()}
    outcome.seconds = time.monotonic() - outcome.began
    return outcome


async def _run(
    pair: Pair,
    outcome: Outcome,
    failovers: int,
    dice: random.Random,
    splits: int,
    per_side: int,
    on_change: Callable[[str], object],
) -> None:
    def note(text: str) -> None:
        outcome.notes.append(f"{time.monotonic():.3f} s: {text}")

    def begin(name: str) -> None:
        outcome.faults[name] += 1
        note(name)

    for node in "ab":
        await asyncio.to_thread(pair.start, node)
    await asyncio.to_thread(pair.wait_until_together)
    history = outcome.history
    clients = Clients([node.text for node in pair.nodes.values()], history, note)
    receiving = asyncio.ensure_future(clients.receive())
    async with asyncio.timeout(PATIENCE_S):
        await clients.listening.wait()
    publishing = [asyncio.ensure_future(clients.publish(number)) for number in range(PUBLISHERS)]
    healing_s = PATIENCE_S + per_side * _HEALING_S
    try:
        for turn in range(failovers):
            await asyncio.sleep(dice.uniform(0, 0.5))
            fault = dice.choice(FAULTS)
            begin(fault.__name__)
            await asyncio.to_thread(fault, pair, dice)
            await asyncio.to_thread(pair.wait_until_together)
            note("together")
            for number in range(turn * splits // failovers, (turn + 1) * splits // failovers):
                begin("split_long")
                await _split_long(pair, clients, dice, f"split{number}", per_side)
                await asyncio.to_thread(pair.wait_until_together, healing_s)
                note("together")
            on_change(fault.__name__)
        clients.stop()
        await asyncio.gather(*publishing)
        deadline = time.monotonic() + (healing_s if splits else PATIENCE_S)
        while not clients.has_everything() and time.monotonic() < deadline and not receiving.done():
            await asyncio.sleep(0.2)
        values = await asyncio.to_thread(pair.stored_values)
        history.add_values("primary", Place(TOPIC, 0), values)
    finally:
        for task in (receiving, *publishing):
            task.cancel()
        ended = await asyncio.gather(receiving, *publishing, return_exceptions=True)
    history.stalls += [f"a client ended by itself: {each!r}" for each in ended if isinstance(each, Exception)]
    outcome.totals.update(
        sent=history.sent, acknowledged=history.acknowledged, received=len(clients.book), recognised=clients.recognised
    )


async def _split_long(pair: Pair, clients: Clients, dice: random.Random, name: str, per_side: int) -> None:
    """Both go on alone, and each takes so many messages and delivers them to the same subscriber."""
    for cable in pair.cables.values():
        cable.cut()
    await asyncio.to_thread(pair.wait_until_apart)
    make_line = dice.choice(LINES)
    await asyncio.gather(
        *(clients.flood(each.text, f"{name}-{node}", per_side, make_line) for node, each in pair.nodes.items())
    )
    for cable in pair.cables.values():
        cable.mend()


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--failovers", type=int, default=200, help="faults, one after the other")
    parser.add_argument("--splits", type=int, default=2, help="how many splits with many messages on both sides")
    parser.add_argument("--per-side", type=int, default=PER_SIDE, help="messages on each side of such a split")


def main(options: argparse.Namespace) -> int:
    made = Report("pair", options)
    with made.progress("failovers", options.failovers) as move, made.attempt():
        made.add(
            run(
                options.failovers,
                options.seed,
                splits=options.splits,
                per_side=options.per_side,
                on_change=lambda name: move(name, 1),
            )
        )
    return made.finish()
