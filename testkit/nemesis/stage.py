"""What a fault has at hand: the cluster, which nodes are hurt already, ways to wait, and a record of what happened."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from holdfast.testing import ClusterFailed
from holdfast.testing.asking import ask
from testkit.asking import Refused, request
from testkit.cluster import BreakableCluster
from testkit.history import History, Place
from testkit.workload import Workload
from testkit.workload.flood import TOPICS

# On a machine that others use too. What takes longer than this does not go on at all.
GOES_ON_S: Final = 45.0
HEALS_S: Final = 90.0
_POLL_S: Final = 0.05
# What was under way when a fault began may still be answered.
_PROGRESS: Final = 5
# What takes longer is worth a note.
_SLOW_S: Final = 5.0
_RESTART_S: Final = 2.0
_ENDED_BY_US: Final = (None, 0, -signal.SIGKILL)


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True)
class Bar:
    """One fault in time, as the picture shows it."""

    name: str
    detail: str
    began: float
    ended: float = 0.0


@dataclass(slots=True)
class Stage:
    """One run as its faults see it. Faults run in threads of their own, several at a time."""

    cluster: BreakableCluster
    history: History
    workloads: list[Workload]
    heals_s: float = HEALS_S
    goes_on_s: float = GOES_ON_S
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # How long it took until everybody was well again, after each episode.
    recoveries_s: list[float] = field(default_factory=list)
    _hurt: set[str] = field(default_factory=set)
    # Those who may leave by themselves, since their disk gives them a reason.
    may_leave: set[str] = field(default_factory=set)
    _started_at: dict[str, float] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    # Whether the fault under way is the only one: then it checks more of what it must and must not do.
    is_alone: bool = False
    # Not set while it is asked whether publishing goes on under the faults there are.
    _answered: threading.Event = field(default_factory=_set_event)
    stopping: threading.Event = field(default_factory=threading.Event)

    def note(self, text: str) -> None:
        self.notes.append(f"{time.monotonic():.3f} s: {text}")

    def stall(self, text: str) -> None:
        """Something that should have gone on did not."""
        self.history.stalls.append(f"{time.monotonic():.3f} s: {text}")
        self.note(text)

    # --- who -----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        return [node.id for node in self.cluster.nodes]

    def leader(self, dice: random.Random) -> str:
        """Of some partition, or of the control group; any node where nobody leads."""
        try:
            place = dice.choice([*self.places(), None])
            if place is None:
                return self.cluster.control_leader(timeout_s=2.0)
            return self.cluster.wait_for_leader(place.topic, timeout_s=2.0, partition=place.partition)
        except ClusterFailed:
            return dice.choice(self.nodes)

    def places(self) -> list[Place]:
        """Partitions that the workloads use."""
        return [place for workload in self.workloads for place in workload.places()]

    def others(self, *nodes: str) -> list[str]:
        return [node for node in self.nodes if node not in nodes]

    @contextmanager
    def hurting(self, dice: random.Random, count: int, first: str | None = None) -> Iterator[list[str]]:
        """So many nodes that no other fault has to itself, `first` among them if it is free; maybe fewer."""
        with self._lock:
            free = [node for node in self.nodes if node not in self._hurt]
            dice.shuffle(free)
            free.sort(key=lambda node: node != first)
            chosen = free[:count]
            self._hurt.update(chosen)
        try:
            yield chosen
        finally:
            with self._lock:
                self._hurt.difference_update(chosen)

    # --- waiting -------------------------------------------------------------------------------------

    @contextmanager
    def bar(self, name: str, detail: str = "") -> Iterator[None]:
        """What is done inside is a bar of the picture."""
        made = Bar(name, detail, time.monotonic())
        self.bars.append(made)
        self.note(f"{name} begins: {detail}")
        try:
            yield
        finally:
            made.ended = time.monotonic()
            self.note(f"{name} is over")

    def current(self) -> list[str]:
        return sorted({bar.name for bar in self.bars if not bar.ended})

    def hold(self, seconds: float) -> None:
        """Leave things as they are for a while; when the run is broken off, so is this."""
        self.stopping.wait(seconds)

    def last(self, seconds: float) -> None:
        """How long a fault lasts is part of it: until it is known, too, whether publishing goes on under it."""
        self.hold(seconds)
        while not self.stopping.is_set() and not self._answered.wait(_POLL_S):
            pass

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Until something that must happen has; a stall where it does not."""
        timeout_s = self.heals_s if timeout_s is None else timeout_s
        began = time.monotonic()
        deadline = began + timeout_s
        while not condition():
            if self.stopping.is_set():
                return False
            if time.monotonic() > deadline:
                self.stall(f"not within {timeout_s:g} s: {what}")
                self.note_groups()
                return False
            time.sleep(_POLL_S)
        if (took_s := time.monotonic() - began) > _SLOW_S:
            self.note(f"it took {took_s:.1f} s: {what}")
        return True

    def will_ask(self) -> None:
        """From now on faults last until `must_go_on` has its answer."""
        self._answered.clear()

    def must_go_on(self, during: str) -> None:
        """A majority is well and hears each other, so publishers that may use any node get something through."""
        try:
            self.progresses(during)
        finally:
            self._answered.set()

    def progresses(self, during: str, messages: int = _PROGRESS) -> None:
        before = self._progress()
        what = f"{messages} acknowledgements during {during}"
        self.wait(what, lambda: self._progress() >= before + messages, self.goes_on_s)

    def _progress(self) -> int:
        return sum(workload.progress() for workload in self.workloads)

    # --- mending -------------------------------------------------------------------------------------

    def spawn(self, *nodes: str) -> None:
        for node in nodes:
            if not self.cluster.node(node).is_running:
                self.cluster.spawn(node)

    def heal(self, after: str) -> None:
        """Nothing is broken any more; now everybody must be ready and every publisher get something through."""
        began = time.monotonic()
        cluster = self.cluster
        if cluster.network is not None:
            cluster.network.heal()
            cluster.network.speed_up()
        for clock in cluster.clocks:
            clock.set(0)
        for disk in cluster.disks:
            disk.thaw()
            disk.make_room()
        for node in cluster.nodes:
            if node.is_paused:
                node.resume()
            if not node.is_running:
                self.must_have_reason(node.id, after)
                self.spawn(node.id)
        for node in cluster.nodes:
            self.wait(f"{node.id} is ready after {after}", partial(self._is_ready, node.id, after))
        self.may_leave.clear()
        for workload in self.workloads:
            self.wait(f"{workload.name} makes progress everywhere after {after}", workload.begin_waiting())
        self.recoveries_s.append(time.monotonic() - began)

    def must_have_reason(self, node: str, during: str) -> None:
        """A node that is not there was killed by a fault, stopped in order, or had a disk that failed."""
        process = self.cluster.node(node)
        if process.exit_code not in _ENDED_BY_US and node not in self.may_leave:
            self.stall(f"{node} left by itself with {process.exit_code} during {during}\n{process.log_tail()}")

    def note_groups(self) -> None:
        """Write down how every node sees all groups."""
        for node in self.nodes:
            for group in self.groups(node):
                self.note(f"{node} sees {group}")

    def groups(self, node: str) -> list[dict[str, Any]]:
        """Every group as a node sees it; nothing where it does not answer."""
        answer = ask(self.cluster.node(node).http, "/v1/cluster/groups")
        return list(answer.content["groups"]) if answer.status == 200 else []

    def _is_ready(self, node: str, after: str) -> bool:
        """Whether it serves; one that has left is started again now and then, as whoever looks after it would."""
        now = time.monotonic()
        if not self.cluster.node(node).is_running and now - self._started_at.get(node, 0.0) > _RESTART_S:
            self._started_at[node] = now
            self.must_have_reason(node, after)
            self.note(f"{node} left with {self.cluster.node(node).exit_code}, and is started again")
            self.spawn(node)
        return self.cluster.is_ready(node)

    def everybody_votes(self) -> bool:
        """Whether every group has a leader that knows all nodes as voters, and none of them thinks otherwise.

        A node that came back as somebody else knows that it is a learner before any leader does.
        """
        led: dict[str, bool] = {}
        for node in self.nodes:
            if not (groups := self.groups(node)):
                return False
            for group in groups:
                led.setdefault(group["name"], False)
                if group["role"] == "learner":
                    return False
                if group["role"] == "leader":
                    voters = {each["node"] for each in group["followers"] if each["is_voter"]} | {node}
                    has_learners = any(not each["is_voter"] for each in group["followers"])
                    led[group["name"]] = len(voters) == len(self.nodes) and not has_learners
        return bool(led) and all(led.values())

    # --- asking ------------------------------------------------------------------------------------

    def refuses_without_quorum(self, node: str, dice: random.Random) -> None:
        """A node that hears no majority says that it is not ready, and refuses what is published through it.

        A leader that has not noticed yet takes a message, and then cannot say what became of it.
        """
        http = self.cluster.node(node).http
        self.wait(f"{node}, alone, says that it is not ready", lambda: ask(http, "/ready").status == 503)
        topic = dice.choice([*TOPICS])
        self.wait(f"{node}, alone, refuses with no_quorum", lambda: self.refusal(node, topic) == "no_quorum")

    def refusal(self, node: str, topic: str, timeout_s: float = 15.0) -> str | None:
        """What a publish through one node is refused with; `None` where it is acknowledged."""
        name = f"probe-{topic}"
        book = next((each for each in self.history.producers if each.name == name), None)
        book = book or self.history.producer(name, topic)
        (sequence,) = book.send(1, time.monotonic())
        content = {"messages": [{"value": f"{name}/{sequence}"}]}
        try:
            address = self.cluster.node(node).http
            request(address, "POST", f"/v1/topics/{topic}/messages", content, timeout_s=timeout_s)
        except Refused as error:
            if error.code == "no_quorum":
                book.refuse(sequence)
            return error.code
        book.acknowledge(sequence, time.monotonic())
        return None
