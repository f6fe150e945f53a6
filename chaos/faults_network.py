"""What goes wrong between nodes: one is cut off, in both directions or in one."""

from __future__ import annotations

from testkit.network.namespaces import Network

from chaos.faults import Fault
from chaos.scene import Scene
from chaos.workload import TOPICS
from holdfast.testing.asking import ask


def _network(scene: Scene) -> Network:
    assert scene.cluster.network is not None, "the run gives the cluster a network for faults that need one"
    return scene.cluster.network


class CutOff(Fault):
    """Nobody hears one node, and it hears nobody: the others go on, it refuses, and then it is one of them again."""

    name = "network split"
    has_network = True

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        _network(scene).cut_off(scene.cluster.index(node))
        scene.must_go_on(f"a split that cuts {node} off", messages=20)
        http = scene.cluster.node(node).http
        scene.wait(f"{node}, cut off, says that it is not ready", lambda: ask(http, "/ready").status == 503)
        # A leader that has not noticed yet takes a message, and then cannot say what became of it.
        topic = scene.dice.choice([*TOPICS])
        scene.wait(f"{node}, alone, refuses with no_quorum", lambda: scene.refusal(node, topic) == "no_quorum")
        scene.stay(0.0, 2.0)
        _network(scene).heal()


class OneWay(Fault):
    """One node cannot reach another, which still reaches it."""

    name = "one-way split"
    has_network = True

    def run(self, scene: Scene) -> None:
        node = scene.leader()
        other = scene.dice.choice(scene.others(node))
        sender, receiver = scene.dice.sample([node, other], 2)
        _network(scene).cut(scene.cluster.index(sender), scene.cluster.index(receiver))
        scene.must_go_on(f"a split from {sender} to {receiver}, one way", messages=20)
        scene.stay(1.0, 4.0)
        scene.must_go_on(f"a split from {sender} to {receiver}, one way", messages=20)
        _network(scene).heal()


class Mute(Fault):
    """Nobody hears one node, which hears everybody; or it hears nobody, and everybody hears it."""

    name = "mute or deaf node"
    has_network = True

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        is_mute = scene.dice.random() < 0.5
        for other in scene.others(node):
            sender, receiver = (node, other) if is_mute else (other, node)
            _network(scene).cut(scene.cluster.index(sender), scene.cluster.index(receiver))
        scene.must_go_on(f"the {'mute' if is_mute else 'deaf'} time of {node}", messages=20)
        scene.stay(0.0, 3.0)
        _network(scene).heal()


class NetworkStorm(Fault):
    """Any way between two nodes is cut and healed at any time, and now and then a node is killed."""

    name = "network storm"
    has_network = True

    def run(self, scene: Scene) -> None:
        network = _network(scene)
        for _ in range(12):
            node = scene.dice.choice(scene.cluster.nodes)
            if not node.is_running:
                scene.cluster.spawn(node)
            elif scene.dice.random() < 0.2:
                node.kill()
            elif scene.dice.random() < 0.3:
                network.heal()
            else:
                network.cut(*scene.dice.sample(range(len(scene.cluster.nodes)), 2))
            scene.stay(0.0, 1.2)
        network.heal()
