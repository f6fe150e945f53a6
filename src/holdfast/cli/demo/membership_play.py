"""The play of nodes that come and go: six scenes, with real nodes and subscribers that the cluster calls.

Each scene has brokers of its own, and checks what it shows. They are those with which small Raft brokers are shown, and
each goes on where those stop: a node that left comes back, and a subscriber that was away gets what it missed.

`ledger` has what was published and what came of it, in a topic of the scene's name: to subscribers, and to a receiver
`log`, which is what the cluster has when a scene is over. What nobody was subscribed to get must be there as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.demo.broker_lines import BrokerLines
from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.same_timeouts import TICKS_MAX, Duel

if TYPE_CHECKING:
    from holdfast.client import BlockingClient, BlockingReceiver
    from holdfast.testing import LocalCluster

TOPIC: Final = "topic1"
HELLO: Final = "Hello, world!"
# What has not happened by then never will.
_PATIENCE_S: Final = 30.0
# Whoever must not get a message would have it by then: it takes milliseconds.
_NEVER_S: Final = 0.5


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
    """Listens at an address of its own; the cluster connects to it. `note` hears its name and what it gets."""

    def __init__(self, lines: BrokerLines, note: Callable[[str, str], None], address: str = "127.0.0.1:0") -> None:
        from holdfast.client import BlockingReceiver

        self.received: list[str] = []
        self._lines = lines
        self._note = note
        self._receiver: BlockingReceiver = BlockingReceiver(address)
        self.address = self._receiver.address
        self.name = f"Subscriber {self.address.rpartition(':')[2]}"
        lines.say(self.name, f"Subscriber is running on {self.address}")
        self._taking = threading.Thread(target=self._take, name=self.name, daemon=True)
        self._taking.start()

    def _take(self) -> None:
        for message in self._receiver:
            text = message.value.decode()
            self._lines.say(self.name, f"Received message: `{text}` on topic `{message.topic}`")
            self._note(self.name, text)
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


class MembershipPlay:
    """One performance; `scenes` has what was shown so far."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.lines = BrokerLines(tell)
        self.scenes: list[Scene] = []
        self.ledger = Ledger()
        self._scene = ""
        # The texts of a scene, each of which is published once, as numbers.
        self._numbers: dict[str, int] = {}
        self._checks: list[Check] = []
        self._subscribers: list[Subscriber] = []

    def perform(self, names: list[str]) -> None:
        for name in names:
            self._checks = []
            self._scene, self._numbers = name, {}
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
            cluster = LocalCluster(count, settings={"log_format": "json"})
            try:
                cluster.open(wait=False)
                for node in cluster.nodes:
                    self.lines.follow(node.id, node.log_file, node.text)
                cluster.wait_until_ready()
                self.lines.drain()
                yield cluster
                self._note_log(cluster)
            finally:
                cluster.close()
        finally:
            for subscriber in self._subscribers:
                subscriber.close()
            self._subscribers.clear()
            self.lines.forget_all()

    def _heading(self, text: str) -> None:
        self.lines.drain()
        self.lines.tell(f"\n==================== {text} ====================")

    def _check(self, what: str, holds: Callable[[], bool]) -> None:
        """Something that comes true, if it is true."""
        self._checks.append(Check(what, self.lines.wait_until(holds, _PATIENCE_S)))

    def _check_never(self, what: str, happens: Callable[[], bool]) -> None:
        self._checks.append(Check(what, not self.lines.wait_until(happens, _NEVER_S)))

    def _subscriber(self, cluster: LocalCluster, node: str, address: str = "127.0.0.1:0") -> Subscriber:
        subscriber = Subscriber(self.lines, self._note, address)
        self._subscribers.append(subscriber)
        with cluster.connect_blocking(node) as client:
            subscriber.subscribe(client, node)
        self.lines.drain()
        return subscriber

    def _publish(self, cluster: LocalCluster, node: str, text: str) -> None:
        self.lines.say("Publisher", f"Publish to topic `{TOPIC}`: `{text}` at {node}")
        assert text not in self._numbers, "records tell messages apart by their texts"
        self._numbers[text] = len(self._numbers)
        line = self.ledger.send(self._scene, "publisher", self._numbers[text])
        with cluster.connect_blocking(node) as client:
            client.publish(TOPIC, text.encode())
        self.ledger.acknowledge(line)
        self.lines.drain()

    def _note(self, receiver: str, text: str) -> None:
        """Something came; what nobody published is noted as it is."""
        number = self._numbers.get(text)
        producer, sequence = ("publisher", number) if number is not None else (text, 0)
        self.ledger.receive(self._scene, producer, sequence, broker="", receiver=receiver)

    def _note_log(self, cluster: LocalCluster) -> None:
        with cluster.connect_blocking("n1") as client:
            for message in client.read(TOPIC):
                self._note("log", message.value.decode())

    # --- the scenes -------------------------------------------------------------------------------

    def basic(self) -> None:
        with self._brokers(1) as cluster:
            self.lines.say("Broker n1 LEADER", "New leader n1: there is nobody else to ask for a vote")
            self._heading("Subscribe")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Publish")
            self._publish(cluster, "n1", HELLO)
            self._check("the subscriber got the message", lambda: subscriber.received == [HELLO])

    def one_subscriber(self) -> None:
        with self._brokers(2) as cluster:
            self._heading("Subscribe to Node 1")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Publish to Node 2")
            self._publish(cluster, "n2", HELLO)
            self._check(
                "subscribed at one node, it gets what is published at the other", lambda: subscriber.received == [HELLO]
            )
            self._unsubscribe_and_publish(cluster, subscriber)
            self._check_never("it gets nothing once it has unsubscribed", lambda: "Hello, later" in subscriber.received)
            self._heading("Away and Back")
            again = self._subscriber(cluster, "n2")
            address = again.address
            again.close()
            self.lines.say(again.name, "Subscriber is gone")
            self._publish(cluster, "n1", "Hello, are you there?")
            self._publish(cluster, "n2", "Hello, again")
            back = Subscriber(self.lines, self._note, address)
            self._subscribers[-1] = back
            wanted = ["Hello, are you there?", "Hello, again"]
            self._check(
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
            self._check("both got the message", lambda: first.received == second.received == [HELLO])
            self._unsubscribe_and_publish(cluster, first)
            self._check(
                "the one that stayed got them all",
                lambda: second.received == [HELLO, "Hello, too fast", "Hello, later"],
            )
            self._check_never("the one that left did not get the last", lambda: "Hello, later" in first.received)

    def _unsubscribe_and_publish(self, cluster: LocalCluster, subscriber: Subscriber) -> None:
        """Published beside the unsubscribing, a message may or may not be delivered; published after it, it is not."""
        self._heading("Unsubscribe and Publish")
        with cluster.connect_blocking("n1") as client:
            leaving = threading.Thread(target=subscriber.unsubscribe, args=(client, "n1"))
            leaving.start()
            self._publish(cluster, "n2", "Hello, too fast")
            leaving.join()
        self._heading("Publish Later")
        self._publish(cluster, "n2", "Hello, later")

    def fault_tolerance(self) -> None:
        with self._brokers(3) as cluster:
            self._heading("Subscribe and Publish")
            subscriber = self._subscriber(cluster, "n1")
            self._publish(cluster, "n1", HELLO)
            self._check("the subscriber got the message", lambda: subscriber.received == [HELLO])
            self._heading("Leader Fail")
            failed = cluster.control_leader()
            cluster.kill(failed)
            self.lines.say("Play", f"{failed} is killed (SIGKILL)")
            leader = cluster.control_leader(other_than=failed)
            self._check("the others have elected another leader", lambda: leader != failed)
            self._publish(cluster, leader, "Hello, new leader")
            self._check("the subscription survived it", lambda: subscriber.received == [HELLO, "Hello, new leader"])
            self._heading("Node Back")
            cluster.start(failed)
            self._publish(cluster, failed, "Hello, I am back")
            self._check(
                "the node that was killed serves again", lambda: subscriber.received[2:] == ["Hello, I am back"]
            )

    def dynamic_membership(self) -> None:
        with self._brokers(2) as cluster:
            self._heading("Subscribe to Node 1")
            subscriber = self._subscriber(cluster, "n1")
            self._heading("Node Join")
            self._join(cluster)
            self._heading("Publish to New Node")
            self._publish(cluster, "n3", HELLO)
            self._check("published at the new node, it reached the subscriber", lambda: subscriber.received == [HELLO])
            self._heading("Node Leave")
            cluster.remove_node("n3")
            self._check("the new node has left", lambda: "n3" not in self._voters(cluster))
            self._heading("Node Rejoin")
            self._join(cluster)
            self._publish(cluster, "n3", "Hello, I am back")
            self._check(
                "a node that left is back by being started again",
                lambda: subscriber.received[1:] == ["Hello, I am back"],
            )

    def _join(self, cluster: LocalCluster) -> None:
        cluster.add_node("n3", wait=False)
        node = cluster.node("n3")
        self.lines.follow(node.id, node.log_file, node.text)
        self._check("the new node votes", lambda: "n3" in self._voters(cluster))

    @staticmethod
    def _voters(cluster: LocalCluster) -> set[str]:
        with cluster.connect_blocking("n1") as client:
            return {member.node for member in client.members().members if member.state == "voter"}

    def same_election_timeout(self) -> None:
        self._heading("Same Election Timeout")
        same = Duel({"n1": lambda sides: 3, "n2": lambda sides: 3})
        self._play_out(same)
        self._check(
            "with dice that fall alike nobody is elected, term after term",
            lambda: same.leader is None and same.term > 2,
        )
        self._heading("Different Election Timeout")
        different = Duel({"n1": lambda sides: 3, "n2": lambda sides: 7})
        self._play_out(different)
        self._check(
            "with other dice the first one to ask is elected", lambda: different.leader == "n1" and different.term == 1
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
