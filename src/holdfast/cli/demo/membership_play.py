"""The play of nodes that come and go: six scenes, with real nodes and subscribers that the cluster calls.

Each scene has brokers of its own, and checks what it shows. They are those with which small Raft brokers are shown, and
each goes on where those stop: a node that left comes back, and a subscriber that was away gets what it missed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.cli.demo.broker_lines import BrokerLines
from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.same_timeouts import TICKS_MAX, Duel

if TYPE_CHECKING:
    from holdfast.client import BlockingClient, BlockingReceiver
    from holdfast.testing import LocalCluster
    from holdfast.testing.node_process import NodeProcess

TOPIC: Final = "topic1"
HELLO: Final = "Hello, world!"
# What has not happened by then never will.
_PATIENCE_S: Final = 30.0
# Whoever must not get a message would have it by then: it takes milliseconds.
_NEVER_S: Final = 0.5
# What all nodes will have told by then.
_SOON_S: Final = 5.0
# Of a cluster's block of ports, where no node has any.
_SUBSCRIBERS: Final = 30


class Check(NamedTuple):
    """What a scene shows, and whether it did."""

    what: str
    holds: bool


class Scene(NamedTuple):
    name: str
    checks: list[Check]

    @property
    def is_passed(self) -> bool:
        return all(check.holds for check in self.checks)


class Subscriber:
    """Listens at an address of its own; the cluster connects to it."""

    def __init__(self, lines: BrokerLines, book: Book, address: str) -> None:
        from holdfast.client import BlockingReceiver

        self.received: list[str] = []
        self.address = address
        self._lines = lines
        self._book = book
        self._receiver: BlockingReceiver = BlockingReceiver(address)
        self.name = f"Subscriber {self.address.rpartition(':')[2]}"
        lines.say(self.name, f"Subscriber is running on {self.address}")
        self._taking = threading.Thread(target=self._take, name=self.name, daemon=True)
        self._taking.start()

    def _take(self) -> None:
        for message in self._receiver:
            text = message.value.decode()
            self._lines.say(self.name, f"Received message: `{text}` on topic `{message.topic}`")
            self._book.came(text, self.address)
            self.received.append(text)

    def subscribe(self, client: BlockingClient, node: str) -> None:
        self._lines.say(self.name, f"SUBSCRIBE message on topic `{TOPIC}` at {node}")
        client.subscribe_callback(TOPIC, self.address, name=self._cursor)
        self._lines.say(self.name, f"Received ACK: subscribe on topic `{TOPIC}`")

    def unsubscribe(self, client: BlockingClient, node: str) -> None:
        self._lines.say(self.name, f"UNSUBSCRIBE message on topic `{TOPIC}` at {node}")
        client.remove_subscription(TOPIC, self._cursor)
        self._lines.say(self.name, f"Received ACK: unsubscribe on topic `{TOPIC}`")

    @property
    def _cursor(self) -> str:
        return "subscriber-" + self.address.rpartition(":")[2]

    def close(self) -> None:
        self._receiver.close()
        self._taking.join()


class Book:
    """Which message is for which subscriber, and which came, for record files that an audit can judge.

    Each subscriber of a scene is a topic of its own there, since not all of them are to get all messages.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self._scene = ""
        self._numbers: dict[tuple[str, str], int] = {}

    def begin(self, scene: str) -> None:
        self._scene = scene

    def leaves(self, text: str, address: str) -> dict[str, Any]:
        """A message for one of them leaves now; call `acknowledged` with what is returned if it must come."""
        topic = self._topic(address)
        number = self._numbers[topic, text] = 1 + sum(known == topic for known, _ in self._numbers)
        self.counts["sent"] += 1
        return self.ledger.send(topic, topic, number)

    def acknowledged(self, line: dict[str, Any]) -> None:
        self.ledger.acknowledge(line)
        self.counts["acknowledged"] += 1

    def came(self, text: str, address: str) -> None:
        """What nobody had sent it has number 0, which an audit finds."""
        topic = self._topic(address)
        self.counts["received"] += 1
        number = self._numbers.get((topic, text), 0)
        self.ledger.receive(topic, topic, number, broker="cluster", receiver=address)

    def _topic(self, address: str) -> str:
        return f"{self._scene}.{address.rpartition(':')[2]}"


class MembershipPlay:
    """One performance; `scenes` has what was shown so far."""

    def __init__(
        self, tell: Callable[[str], None], *, patience_s: float = _PATIENCE_S, never_s: float = _NEVER_S
    ) -> None:
        self._patience_s = patience_s
        self._never_s = never_s
        self.lines = BrokerLines(tell)
        self.book = Book()
        self.scenes: list[Scene] = []
        self._checks: list[Check] = []
        self._subscribers: list[Subscriber] = []
        # Those that are subscribed now, wherever they are.
        self._audience: list[str] = []

    def perform(self, names: list[str]) -> None:
        for name in names:
            self._checks = []
            self.book.begin(name)
            self.lines.tell(f"\n######## {name} ########")
            try:
                SCENES[name](self)
            finally:
                self.scenes.append(Scene(name, self._checks))

    # --- what scenes are made of ------------------------------------------------------------------

    @contextmanager
    def _brokers(self, count: int) -> Iterator[LocalCluster]:
        from holdfast.testing import LocalCluster

        self._heading("Broker")
        try:
            cluster = LocalCluster(count, settings={"log_format": "json", "log_level": "debug"})
            try:
                cluster.open(wait=False)
                for node in cluster.nodes:
                    self._follow(node)
                cluster.wait_until_ready()
                self.lines.wait_until(lambda: self.lines.leader is not None, _SOON_S)
                yield cluster
            finally:
                cluster.close()
        finally:
            for subscriber in self._subscribers:
                subscriber.close()
            self._subscribers.clear()
            self._audience.clear()
            self.lines.forget_all()

    def _follow(self, node: NodeProcess) -> None:
        self.lines.follow(node.id, node.log_file, node.text)

    def _heading(self, text: str) -> None:
        self.lines.settle()
        self.lines.tell(f"\n==================== {text} ====================")

    def check(self, what: str, holds: Callable[[], bool]) -> None:
        """Something that comes true, if it is true."""
        self._checks.append(Check(what, self.lines.wait_until(holds, self._patience_s)))

    def check_never(self, what: str, happens: Callable[[], bool]) -> None:
        self._checks.append(Check(what, not self.lines.wait_until(happens, self._never_s)))

    def _subscriber(self, cluster: LocalCluster, node: str) -> Subscriber:
        from holdfast.testing.ports import HOST

        # In the cluster's block of ports: a broker that dials an address nobody listens at must not be given it itself.
        port = cluster.base_port + _SUBSCRIBERS + len(self._subscribers)
        subscriber = Subscriber(self.lines, self.book, f"{HOST}:{port}")
        self._subscribers.append(subscriber)
        with cluster.connect_blocking(node) as client:
            subscriber.subscribe(client, node)
        self._audience.append(subscriber.address)
        self._wait_for_all(cluster, f"SUBSCRIBE {subscriber.address}")
        return subscriber

    def _wait_for_all(self, cluster: LocalCluster, what: str) -> None:
        """So that what a slower node says of it does not stand under the next heading."""
        running = [node.id for node in cluster.nodes if node.is_running]
        self.lines.wait_until(lambda: self.lines.have_handled(what, running), _SOON_S)

    def _publish(self, cluster: LocalCluster, node: str, text: str, leaving: str | None = None) -> None:
        """`leaving`: it unsubscribes meanwhile, and may get the message or not."""
        self.lines.say("Publisher", f"Publish to topic `{TOPIC}`: `{text}` at {node}")
        noted = {address: self.book.leaves(text, address) for address in self._audience}
        with cluster.connect_blocking(node) as client:
            client.publish(TOPIC, text.encode())
        for address, line in noted.items():
            if address != leaving:
                self.book.acknowledged(line)
        self.lines.drain()

    # --- the scenes -------------------------------------------------------------------------------

    def basic(self) -> None:
        with self._brokers(1) as cluster:
            self._heading("Subscribe")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Publish")
            self._publish(cluster, "n1", HELLO)
            self.check("the subscriber got the message", lambda: subscriber.received == [HELLO])

    def one_subscriber(self) -> None:
        with self._brokers(2) as cluster:
            self._heading("Subscribe to Node 1")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Publish to Node 2")
            self._publish(cluster, "n2", HELLO)
            self.check(
                "subscribed at one node, it gets what is published at the other", lambda: subscriber.received == [HELLO]
            )
            self._unsubscribe_and_publish(cluster, subscriber)
            self.check_never("it gets nothing once it has unsubscribed", lambda: "Hello, later" in subscriber.received)
            self._heading("Away and Back")
            again = self._subscriber(cluster, "n2")
            again.close()
            self.lines.say(again.name, "Subscriber is gone")
            self._publish(cluster, "n1", "Hello, are you there?")
            self._publish(cluster, "n2", "Hello, again")
            back = Subscriber(self.lines, self.book, again.address)
            self._subscribers[-1] = back
            wanted = ["Hello, are you there?", "Hello, again"]
            self.check(
                "what was published while it was away came when it was back, in order", lambda: back.received == wanted
            )

    def two_subscribers(self) -> None:
        with self._brokers(2) as cluster:
            self._heading("Subscribe to Node 1")
            first = self._subscriber(cluster, "n1")
            self._heading("Subscribe to Node 2")
            second = self._subscriber(cluster, "n2")
            self._heading("Publish to Node 2")
            self._publish(cluster, "n2", HELLO)
            self.check("both got the message", lambda: first.received == second.received == [HELLO])
            self._unsubscribe_and_publish(cluster, first)
            self.check(
                "the one that stayed got them all",
                lambda: second.received == [HELLO, "Hello, too fast", "Hello, later"],
            )
            self.check_never("the one that left did not get the last", lambda: "Hello, later" in first.received)

    def _unsubscribe_and_publish(self, cluster: LocalCluster, subscriber: Subscriber) -> None:
        """Published beside the unsubscribing, a message may or may not be delivered; published after it, it is not."""
        self._heading("Unsubscribe and Publish")
        with cluster.connect_blocking("n1") as client:
            leaving = threading.Thread(target=subscriber.unsubscribe, args=(client, "n1"))
            leaving.start()
            self._publish(cluster, "n2", "Hello, too fast", leaving=subscriber.address)
            leaving.join()
        self._audience.remove(subscriber.address)
        self._wait_for_all(cluster, f"UNSUBSCRIBE {subscriber.address}")
        self._heading("Publish Later")
        self._publish(cluster, "n2", "Hello, later")

    def fault_tolerance(self) -> None:
        with self._brokers(3) as cluster:
            self._heading("Subscribe and Publish")
            subscriber = self._subscriber(cluster, "n1")
            self._publish(cluster, "n1", HELLO)
            self.check("the subscriber got the message", lambda: subscriber.received == [HELLO])
            self._heading("Leader Fail")
            failed = cluster.control_leader()
            cluster.kill(failed)
            self.lines.say("Play", f"{failed} is killed (SIGKILL)")
            self.check("the others have elected another leader", lambda: self.lines.leader not in (None, failed))
            leader = cluster.control_leader(other_than=failed)
            self._publish(cluster, leader, "Hello, new leader")
            self.check("the subscription survived it", lambda: subscriber.received == [HELLO, "Hello, new leader"])
            self._heading("Node Back")
            self._follow(cluster.node(failed))
            cluster.start(failed)
            self._publish(cluster, failed, "Hello, I am back")
            self.check("the node that was killed serves again", lambda: subscriber.received[2:] == ["Hello, I am back"])

    def dynamic_membership(self) -> None:
        with self._brokers(2) as cluster:
            self._heading("Subscribe to Node 1")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Node Join")
            self._join(cluster)
            self._heading("Publish to New Node")
            self._publish(cluster, "n3", HELLO)
            self.check("published at the new node, it reached the subscriber", lambda: subscriber.received == [HELLO])
            self._heading("Node Leave")
            cluster.remove_node("n3")
            self.check("the new node has left", lambda: "n3" not in self._voters(cluster))
            self._heading("Node Rejoin")
            self._join(cluster)
            self._publish(cluster, "n3", "Hello, I am back")
            self.check(
                "a node that left is back by being started again",
                lambda: subscriber.received[1:] == ["Hello, I am back"],
            )

    def _join(self, cluster: LocalCluster) -> None:
        cluster.add_node("n3", wait=False)
        self._follow(cluster.node("n3"))
        self.check("the new node votes", lambda: "n3" in self._voters(cluster))

    @staticmethod
    def _voters(cluster: LocalCluster) -> set[str]:
        with cluster.connect_blocking("n1") as client:
            return {member.node for member in client.members().members if member.state == "voter"}

    def same_election_timeout(self) -> None:
        self._heading("Same Election Timeout")
        same = Duel({"n1": 700, "n2": 700})
        self._play_out(same)
        self.check(
            "with the same timeout nobody is elected, term after term",
            lambda: same.leader is None and same.term > 2,
        )
        self._heading("Different Election Timeout")
        different = Duel({"n1": 700, "n2": 900})
        self._play_out(different)
        self.check(
            "with different timeouts the first one to ask is elected",
            lambda: different.leader == "n1" and different.term == 1,
        )

    def _play_out(self, duel: Duel) -> None:
        for said in duel.play(TICKS_MAX):
            self.lines.tell(f"{said.seconds:6.2f} s  [Broker {said.member} {said.role.upper()}] INFO: {said.text}")


SCENES: Final[dict[str, Callable[[MembershipPlay], None]]] = {
    "basic": MembershipPlay.basic,
    "one-subscriber": MembershipPlay.one_subscriber,
    "two-subscribers": MembershipPlay.two_subscribers,
    "fault-tolerance": MembershipPlay.fault_tolerance,
    "dynamic-membership": MembershipPlay.dynamic_membership,
    "same-election-timeout": MembershipPlay.same_election_timeout,
}
