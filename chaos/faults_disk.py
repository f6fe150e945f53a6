"""What goes wrong with disks: full, failing, without power, lost, and damaged."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Final

from chaos.faults import Fault
from chaos.scene import Scene
from chaos.workload import TOPICS
from holdfast.storage.segment import Segment

# A segment of so many bytes has many batches.
_LONG_BYTES: Final = 20_000


class FullDisk(Fault):
    name = "full disk"
    disks = "small"

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        disk = scene.cluster.disk(node)
        disk.fill()
        try:
            scene.must_go_on(f"the full disk of {node}", messages=100)
            scene.stay(0.0, 2.0)
            scene.must_go_on(f"the full disk of {node}", messages=100)
        finally:
            disk.make_room()
        if not scene.cluster.node(node).is_running:
            scene.note(f"{node} left when its disk was full")


class FailingSync(Fault):
    name = "failing sync"
    programs = ("strace",)

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        scene.cluster.fail_syncs(node)
        process = scene.cluster.node(node)
        scene.wait(f"{node} leaves, since its disk fails", lambda: not process.is_running)
        if process.exit_code == 0:
            scene.stall(f"{node} left with 0 though its disk failed")
        scene.must_go_on(f"the absence of {node}, whose disk failed")
        process.kill()
        scene.cluster.stop_tracing()
        scene.start(node)


class PowerLoss(Fault):
    name = "power loss of one node"
    disks = "power"

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        disk = scene.cluster.disk(node)
        disk.cut_power()
        scene.stay(0.0, 0.2)  # the machine may go on for a moment: it may promise nothing now
        scene.cluster.kill(node)
        scene.must_go_on(f"the absence of {node}, which lost its power")
        disk.power_on()
        scene.start(node)


class PowerLossOfAll(Fault):
    name = "power loss of all nodes"
    disks = "power"

    def run(self, scene: Scene) -> None:
        nodes = [node.id for node in scene.cluster.nodes]
        scene.dice.shuffle(nodes)
        for node in nodes:
            scene.cluster.disk(node).cut_power()
        scene.cluster.kill(*nodes)
        for node in nodes:
            scene.cluster.disk(node).power_on()
        scene.start(*nodes)


class LostDisk(Fault):
    """It comes back as somebody else, who listens, gets everything, and only then is let in."""

    name = "lost disk"

    def run(self, scene: Scene) -> None:
        node = scene.dice.choice([scene.leader(), scene.any_node()])
        process = scene.cluster.node(node)
        life = _life(process.data)
        scene.cluster.kill(node)
        scene.must_go_on(f"the absence of {node}, whose disk is lost")
        wipe(process.data)
        scene.cluster.spawn(node)
        scene.wait(f"{node} votes in every group again", partial(_is_back, scene, node))
        if _life(process.data) in ("", life):
            scene.stall(f"{node} has the life that its lost disk had")


def _is_back(scene: Scene, node: str) -> bool:
    """Whether everybody votes; until then this one may not lead what nobody let it into."""
    if not scene.cluster.node(node).is_serving:
        return False
    before = {group["name"]: group for group in scene.groups(node)}
    if scene.everybody_votes():
        return True
    voters = {
        group["name"]: {each["node"] for each in group["followers"] if each["is_voter"]}
        for other in scene.others(node)
        for group in scene.groups(other)
        if group["role"] == "leader"
    }
    for name, group in before.items():
        # Asked before its leader was: who was no voter then was none a moment earlier.
        if group["role"] in ("leader", "candidate") and node not in voters.get(name, {node}):
            scene.stall(f"{node}, which lost its disk and is no voter of {name}, is its {group['role']}")
    return False


class Newcomer(Fault):
    """A node that lost its disk, and one that was away, are no majority: together they may not forget what was decided.

    What is acknowledged while one node stands still is on the two others. One of these loses its disk, the other one
    is away when the first comes back: nothing may be decided before that one is there again.
    """

    name = "a newcomer may not vote"

    def run(self, scene: Scene) -> None:
        behind, lost, away = scene.dice.sample([node.id for node in scene.cluster.nodes], 3)
        scene.cluster.pause(behind)
        scene.must_go_on(f"the pause of {behind}", messages=20)
        scene.cluster.kill(lost, away)
        wipe(scene.cluster.node(lost).data)
        scene.cluster.resume(behind)
        scene.cluster.spawn(lost)
        scene.wait(f"{lost} serves", lambda: scene.cluster.node(lost).is_serving)
        topic = scene.dice.choice([*TOPICS])
        for node in (behind, lost):
            if (code := scene.refusal(node, topic)) is None:
                scene.stall(f"{behind} and {lost}, which lost its disk, decided something without {away}")
            scene.note(f"a publish through {node} was refused with {code}")
        scene.start(away)
        scene.wait(f"{lost} votes in every group again", partial(_is_back, scene, lost))


class FlippedByte(Fault):
    """In the middle of a log of a node that does not run: recognised, set aside, and fetched from the others."""

    name = "flipped byte"

    def run(self, scene: Scene) -> None:
        node = scene.any_node()
        process = scene.cluster.node(node)
        scene.wait("there is a log to damage", lambda: bool(self._segments(process.data)))
        scene.cluster.kill(node)
        chosen = scene.dice.choice(self._segments(process.data))
        at = scene.dice.randrange(chosen.stat().st_size // 2)
        flip(chosen, at)
        where = f"byte {at} of {chosen.stat().st_size} of {chosen.relative_to(process.data)}"
        scene.note(f"flipped {where} of {node}")
        scene.must_go_on(f"the absence of {node}, whose log is damaged")
        scene.start(node)
        scene.wait(f"{node} votes in every group again", scene.everybody_votes)
        if not any((process.data / "damaged").glob("*")):
            scene.stall(f"{node} has set nothing aside, though {where} was flipped")

    def _segments(self, data: Path) -> list[Path]:
        """Files to choose from: the last one of a log, which is read at every start, and has many batches.

        Damage of the very last batch looks like what a crash leaves behind; for sealed files see `RottenByte`.
        """
        found = []
        for partition in sorted((data / "topics").glob("*/*")):
            segments = sorted(partition.glob("*.log"))
            found += [path for path in segments[-1:] if path.stat().st_size > _LONG_BYTES]
        return found


class RottenByte(Fault):
    """In a sealed file, which is trusted at a start: found later, and mended with what the others have."""

    name = "rotten byte"

    def run(self, scene: Scene) -> None:
        node = scene.any_node()
        process = scene.cluster.node(node)
        scene.wait("there is a sealed log to damage", lambda: bool(self._segments(process.data)))
        scene.cluster.kill(node)
        chosen = scene.dice.choice(self._segments(process.data))
        at = scene.dice.randrange(chosen.stat().st_size)
        flip(chosen, at)
        where = f"byte {at} of {chosen.relative_to(process.data)}"
        scene.note(f"flipped {where} of {node}")
        scene.start(node)
        scene.wait(f"{where} of {node} is mended", partial(_is_sound, chosen))

    def _segments(self, data: Path) -> list[Path]:
        return [path.with_suffix(".log") for path in sorted((data / "topics").glob("*/*/*.index")) if _is_sealed(path)]


def _is_sealed(index: Path) -> bool:
    later = [path for path in index.parent.glob("*.log") if path.name > index.with_suffix(".log").name]
    return bool(later) and index.with_suffix(".log").exists()


def _is_sound(path: Path) -> bool:
    """Whether every frame is whole; a file that retention took is nobody's worry."""
    try:
        return not Segment(path).verify(sealed=True).holes
    except FileNotFoundError:
        return True


def wipe(data: Path) -> None:
    """As a new disk is; the directory itself stays, it may be a mount."""
    for path in data.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


def _life(data: Path) -> str:
    file = data / "holdfast.json"
    return file.read_text("utf-8") if file.exists() else ""
