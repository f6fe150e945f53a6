"""Workloads that keep books of their own find what they are there to find."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest
from testkit.cluster import BreakableCluster
from testkit.history import History
from testkit.workload.callbacks import Callbacks, Receiver
from testkit.workload.queues import Client, Queues

LOST, TWICE = "queue: appended and not handed out", "queue: handed out twice"
ORDER, UNKNOWN = "queue: handed out in another order", "queue: never appended"


@pytest.fixture
def queues() -> Queues:
    """Two clients of one queue have got the three values that were appended; one more append has no answer."""
    made = Queues(cast(BreakableCluster, None), History(), "1", 1.0)
    made.queues.append(1)
    made.begun[1], made.appended[1] = 4, {0: 1, 1: 2, 2: 3}
    got = [(1, 1_000_000_000), (2, 1_000_000_001), (3, 1_000_000_002)]
    for name in ("a", "b"):
        client = Client(1, name, name)
        client.got = list(got)
        made.clients.append(client)
    return made


def found(queues: Queues) -> set[str]:
    return {kind for kind, details in queues.checks().items() if list(details)}


def test_clean_queue_is_clean(queues: Queues) -> None:
    assert found(queues) == set()
    queues.clients[0].got.append((4, 1_000_000_003))
    assert found(queues) == set(), "what nobody knows the fate of may be there"


@pytest.mark.parametrize(
    ("got", "kinds"),
    [
        ([(1, 1_000_000_000), (2, 1_000_000_001)], {LOST}),
        ([(1, 1_000_000_000), (2, 1_000_000_001), (3, 1_000_000_002), (4, 1_000_000_002)], {TWICE}),
        ([(1, 1_000_000_000), (3, 1_000_000_002), (2, 1_000_000_001)], {ORDER}),
        ([(1, 1_000_000_001), (2, 1_000_000_000), (3, 1_000_000_002)], {ORDER, LOST}),
        ([(1, 1_000_000_000), (2, 1_000_000_001), (3, 1_000_000_002), (5, 1_000_000_009)], {UNKNOWN}),
    ],
)
def test_planted_violation_is_found(queues: Queues, got: list[tuple[int, int]], kinds: set[str]) -> None:
    queues.clients[1].got = got
    assert found(queues) == kinds


def test_receiver_notices_what_is_passed_over_and_takes_what_comes_again() -> None:
    history = History()
    history.producer("p", "orders")
    receiver = Receiver("r", "orders", history, random.Random(1), "127.0.0.1")
    last: dict[int, tuple[int, int]] = {}
    for connection in ((0, 1, 2), (1, 2, 3)):
        last.clear()
        for offset in connection:
            receiver.got(b"MESSAGE_AT|7|0|%d||orders|p/%d xx|x" % (offset, offset), last)
    assert receiver.skipped == [] and receiver.next == {0: 4} and len(receiver.book) == 6
    assert receiver.repeated == {} and receiver.strange == []
    receiver.got(b"MESSAGE_AT|7|0|3||orders|p/3 x", last)
    assert receiver.repeated == {0: ["orders/0: r got 3 behind 3 on one connection"]}
    for line in (b"MESSAGE_AT|7|0|4||others|p/4 x", b"MESSAGE|orders|x", b""):
        receiver.got(line, last)
    assert len(receiver.strange) == 3 and receiver.next == {0: 4}
    receiver.got(b"MESSAGE_AT|7|0|5||orders|p/5 x", last)
    assert receiver.skipped == ["orders/0: r got offset 5 where 4 is due"]


def test_message_comes_again_on_one_connection_only_where_leaders_changed() -> None:
    history = History()
    cluster = cast(BreakableCluster, SimpleNamespace(links=SimpleNamespace(outside="127.0.0.1")))
    callbacks = Callbacks(cluster, history, "1", 1.0)
    callbacks.receivers[0].repeated = {0: ["first", "second"]}

    def found() -> list[str]:
        return list(callbacks.checks()["callback: back on one connection"])

    assert found() == ["first", "second"]
    history.leaders = {("orders/0", 2): {"n1"}, ("events/0", 7): {"n2"}}
    assert found() == ["second"], "there was one change of leaders"
    history.leaders["orders/0", 3] = {"n2"}
    assert found() == []
