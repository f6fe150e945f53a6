"""What goes wrong with processes: they are killed, stopped, paused, and made to hand over."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from testkit.commands import missing
from testkit.disks import DiskKind

from chaos.asking import Refused, request
from chaos.scene import Scene
from chaos.workload import TOPICS
from holdfast.testing.asking import ask


class Fault:
    """One kind of trouble: `run` brings it about, and takes it away again."""

    name: ClassVar[str]
    disks: ClassVar[DiskKind] = "plain"
    has_network: ClassVar[bool] = False
    programs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def why_not(cls) -> str | None:
        """Why it cannot be brought about on this machine; `None` if it can."""
        programs = [*cls.programs]
        if cls.disks != "plain":
            programs += ["mount", "umount"]
        if cls.disks == "power":
            programs += ["mkfs.ext4"]
        if cls.has_network:
            programs += ["ip", "nsenter"]
        return missing(programs, root=cls.disks != "plain" or cls.has_network)

    def run(self, scene: Scene) -> None:
        raise NotImplementedError


class KillLeader(Fault):
    name = "kill the leader"

    def run(self, scene: Scene) -> None:
        node = scene.leader()
        scene.cluster.kill(node)
        scene.must_go_on(f"the absence of {node}, which led")
        scene.start(node)


class KillAny(Fault):
    name = "kill any node"

    def run(self, scene: Scene) -> None:
        node = scene.any_node()
        scene.cluster.kill(node)
        scene.stay(0.0, 1.0)
        scene.must_go_on(f"the absence of {node}")
        scene.start(node)


class KillMajority(Fault):
    name = "kill a majority"

    def run(self, scene: Scene) -> None:
        alive = scene.any_node()
        gone = scene.others(alive)
        scene.cluster.kill(*gone)
        scene.stay(0.2, 2.0)
        scene.start(*gone)


class KillAll(Fault):
    name = "kill all at once"

    def run(self, scene: Scene) -> None:
        nodes = [node.id for node in scene.cluster.nodes]
        scene.dice.shuffle(nodes)
        scene.cluster.kill(*nodes)
        scene.stay(0.0, 0.3)
        scene.start(*nodes)


class PauseLeader(Fault):
    name = "pause the leader"

    def run(self, scene: Scene) -> None:
        node = scene.leader()
        scene.cluster.pause(node)
        scene.stay(2.0, 5.0)
        scene.must_go_on(f"the pause of {node}, which led")
        scene.cluster.resume(node)


class PauseFollower(Fault):
    name = "pause a follower"

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice(scene.others(scene.leader()))
        scene.cluster.pause(node)
        scene.stay(2.0, 4.0)
        scene.must_go_on(f"the pause of {node}, which followed")
        scene.cluster.resume(node)


class RollingRestart(Fault):
    name = "rolling restart"

    def run(self, scene: Scene) -> None:
        for node in scene.cluster.nodes:
            scene.cluster.stop(node)
            if node.exit_code != 0:
                scene.stall(f"{node.id} left with {node.exit_code} when it was told to stop\n{node.log_tail()}")
            scene.must_go_on(f"the restart of {node.id}")
            scene.start(node.id)
            scene.wait(f"{node.id} is ready", partial(scene.cluster.is_ready, node.id))


class Transfer(Fault):
    name = "hand leadership over"

    def run(self, scene: Scene) -> None:
        done = 0
        for _ in range(10):
            to, through = scene.any_node(), scene.any_node()
            place = scene.dice.choice(scene.workload.places)
            content = {"topic": place.topic, "partition": place.partition, "to": to}
            if scene.dice.random() < 0.2:
                content = {"to": to}
            try:
                request(scene.cluster.node(through).http, "POST", "/v1/cluster/transfer", content, timeout_s=15.0)
                done += 1
            except Refused as error:
                scene.note(f"transfer refused: {error}")
            scene.stay(0.0, 0.2)
        scene.must_go_on("changes of leaders")
        if not done:
            scene.stall("none of ten transfers was done")


class RestartWhileOthersPause(Fault):
    """Two troubles at once: one node starts again while another stands still."""

    name = "pause one, kill another"

    def run(self, scene: Scene) -> None:
        paused = scene.leader()
        killed = scene.dice.choice(scene.others(paused))
        scene.cluster.kill(killed)
        scene.cluster.pause(paused)
        scene.stay(1.0, 3.0)
        scene.cluster.spawn(killed)
        scene.stay(0.0, 0.5)
        scene.cluster.resume(paused)
        scene.wait(f"{killed} serves", lambda: scene.cluster.node(killed).is_serving)


class NoMajority(Fault):
    """What is left refuses, and says why."""

    name = "a minority refuses"

    def run(self, scene: Scene) -> None:
        alive = scene.any_node()
        gone = scene.others(alive)
        scene.cluster.kill(*gone)
        http = scene.cluster.node(alive).http
        scene.wait(f"{alive} says that it is not ready", lambda: ask(http, "/ready").status == 503)
        # A leader that has not noticed yet takes a message, and then cannot say what became of it.
        topic = scene.dice.choice([*TOPICS])
        scene.wait(f"{alive}, alone, refuses with no_quorum", lambda: scene.refusal(alive, topic) == "no_quorum")
        scene.start(*gone)


class Storm(Fault):
    """Everything at once: any node is killed, paused, woken or started at any time, and nobody waits for anybody."""

    name = "storm"

    def run(self, scene: Scene) -> None:
        for _ in range(15):
            node = scene.dice.choice(scene.cluster.nodes)
            if not node.is_running:
                scene.cluster.spawn(node)
            elif node.is_paused:
                node.resume()
            elif scene.dice.random() < 0.5:
                node.kill()
            else:
                node.pause()
            scene.stay(0.0, 0.8)
