"""What goes wrong with disks: no power, no room, no sync, no answer, gone for good, and damaged."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.storage.segment import Segment
from testkit.nemesis.fault import ALL, Fault, listed
from testkit.nemesis.stage import Stage
from testkit.workload.flood import TOPICS

# A segment of so many bytes has many batches.
_LONG_BYTES: Final = 20_000


class PowerLoss(Fault):
    name = "power loss"
    disks = "power"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            _cut_power(stage, dice, nodes)
            stage.last(lasts_s)
            _power_on(stage, nodes)


class PowerLossOfAll(Fault):
    name = "power loss of all"
    disks = "power"
    hurts = ALL
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, len(stage.nodes)) as nodes, stage.bar(self.name, "all"):
            _cut_power(stage, dice, nodes)
            stage.hold(min(lasts_s, 1.0))
            _power_on(stage, nodes)


class FullDisk(Fault):
    name = "disk full"
    disks = "power"
    hurts = 2

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, _one_or_two(stage, dice), stage.leader(dice)) as nodes:
            stage.may_leave.update(nodes)
            with stage.bar(self.name, listed(nodes)):
                for node in nodes:
                    stage.cluster.disk(node).fill()
                if stage.is_alone:
                    stage.progresses(f"the full disk of {listed(nodes)}", messages=100)
                stage.last(lasts_s)
                if stage.is_alone:
                    stage.progresses(f"the full disk of {listed(nodes)}", messages=100)
                for node in nodes:
                    stage.cluster.disk(node).make_room()
            stage.spawn(*nodes)


class FailingSync(Fault):
    name = "EIO at sync"
    hurts = 1
    programs = ("strace",)

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            stage.may_leave.update(nodes)
            for node in nodes:
                if stage.cluster.node(node).is_running:
                    stage.cluster.fail_syncs(node)
            if stage.is_alone:
                self._must_leave(stage, nodes)
            stage.last(lasts_s)
            # A node that had nothing to sync meanwhile knows nothing of it.
            stage.cluster.kill(*nodes)
            stage.cluster.stop_tracing()
            stage.spawn(*nodes)

    def _must_leave(self, stage: Stage, nodes: list[str]) -> None:
        for node in nodes:
            process = stage.cluster.node(node)
            stage.wait(f"{node} leaves, since its disk fails", lambda process=process: not process.is_running)  # type: ignore[misc]
            if process.exit_code == 0:
                stage.stall(f"{node} left with 0 though its disk failed")


class StalledDisk(Fault):
    name = "stalled disk"
    disks = "power"
    hurts = 2
    programs = ("fsfreeze",)

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        count = _one_or_two(stage, dice)
        with stage.hurting(dice, count, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            for node in nodes:
                stage.cluster.disk(node).freeze()
            stage.last(lasts_s)
            for node in nodes:
                stage.cluster.disk(node).thaw()


class LostDisk(Fault):
    """It comes back as somebody else, who listens, gets everything, and only then is let in.

    One at a time: nobody promised more.
    """

    name = "disk lost"
    hurts = 1
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        if not stage.wait("everybody votes before a disk is lost", stage.everybody_votes):
            return
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            for node in nodes:
                data = stage.cluster.node(node).data
                life = _life(data)
                stage.cluster.kill(node)
                wipe(data)
                stage.last(min(lasts_s, 2.0))
                stage.spawn(node)
                stage.wait(f"{node}, whose disk was lost, votes again", partial(_is_back, stage, node))
                if _life(data) in ("", life):
                    stage.stall(f"{node} has the life that its lost disk had")


class Newcomer(Fault):
    """A node that lost its disk, and one that was away, are no majority: together they may not forget what was decided.

    What is acknowledged while one node stands still is on the two others. One of these loses its disk, the other one
    is away when the first comes back: nothing may be decided before that one is there again.
    """

    name = "a newcomer may not vote"
    hurts = ALL
    leaves_majority = False
    alone = True
    nodes_max = 3

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        behind, lost, away = dice.sample(stage.nodes, 3)
        with stage.bar(self.name, f"{behind} behind, {lost} lost, {away} away"):
            stage.cluster.pause(behind)
            stage.progresses(f"the pause of {behind}", messages=20)
            stage.cluster.kill(lost, away)
            wipe(stage.cluster.node(lost).data)
            stage.cluster.resume(behind)
            stage.spawn(lost)
            stage.wait(f"{lost} serves", lambda: stage.cluster.node(lost).is_serving)
            topic = dice.choice([*TOPICS])
            for node in (behind, lost):
                if (code := stage.refusal(node, topic)) is None:
                    stage.stall(f"{behind} and {lost}, which lost its disk, decided something without {away}")
                stage.note(f"a publish through {node} was refused with {code}")
            stage.spawn(away)
            stage.wait(f"{lost} votes in every group again", partial(_is_back, stage, lost))


class FlippedByte(Fault):
    """In the middle of a log of a node that does not run: recognised, set aside, and fetched from the others.

    It is the last file of a log, which is read at every start. Damage of the very last batch looks like what a crash
    leaves behind; for sealed files see `RottenByte`.
    """

    name = "flipped byte"
    hurts = 1
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1) as nodes, stage.bar(self.name, listed(nodes)):
            data = stage.cluster.node(nodes[0]).data
            stage.wait("there is a log to damage", lambda: bool(_last_segments(data)))
            stage.cluster.kill(*nodes)
            chosen = dice.choice(_last_segments(data))
            where = _flip(stage, chosen, dice.randrange(chosen.stat().st_size // 2))
            stage.last(min(lasts_s, 1.0))
            stage.spawn(*nodes)
            stage.wait(f"{nodes[0]} votes in every group again", partial(_is_back, stage, nodes[0]))
            if not any((data / "damaged").glob("*")):
                stage.stall(f"{nodes[0]} has set nothing aside, though {where} was flipped")


class RottenByte(Fault):
    """In a sealed file, which is trusted at a start: found later, and mended with what the others have."""

    name = "rotten byte"
    hurts = 1
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1) as nodes, stage.bar(self.name, listed(nodes)):
            data = stage.cluster.node(nodes[0]).data
            stage.wait("there is a sealed log to damage", lambda: bool(_sealed_segments(data)))
            stage.cluster.kill(*nodes)
            chosen = dice.choice(_sealed_segments(data))
            where = _flip(stage, chosen, dice.randrange(chosen.stat().st_size))
            stage.spawn(*nodes)
            stage.wait(f"{where} is mended", partial(_is_sound, chosen))
            stage.last(0.0)


def wipe(data: Path) -> None:
    """As a new disk is; the directory itself stays, it may be a mount."""
    for path in data.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _life(data: Path) -> str:
    file = data / "holdfast.json"
    return file.read_text("utf-8") if file.exists() else ""


def _is_back(stage: Stage, node: str) -> bool:
    """Whether everybody votes; until then a node that lost its disk may not lead what nobody let it into."""
    if not stage.cluster.node(node).is_serving:
        return False
    before = {group["name"]: group for group in stage.groups(node)}
    if stage.everybody_votes():
        return True
    voters = {
        group["name"]: {each["node"] for each in group["followers"] if each["is_voter"]}
        for other in stage.others(node)
        for group in stage.groups(other)
        if group["role"] == "leader"
    }
    for name, group in before.items():
        # Asked before its leader was: a node that was no voter then was none a moment earlier.
        if group["role"] in ("leader", "candidate") and node not in voters.get(name, {node}):
            stage.stall(f"{node}, which is no voter of {name}, is its {group['role']}")
    return False


def _last_segments(data: Path) -> list[Path]:
    found = []
    for partition in sorted((data / "topics").glob("*/*")):
        segments = sorted(partition.glob("*.log"))
        found += [path for path in segments[-1:] if path.stat().st_size > _LONG_BYTES]
    return found


def _sealed_segments(data: Path) -> list[Path]:
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


def _flip(stage: Stage, path: Path, at: int) -> str:
    """Flip a byte; returns which."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))
    where = f"byte {at} of {path.stat().st_size} of {path}"
    stage.note(f"flipped {where}")
    return where


def _one_or_two(stage: Stage, dice: random.Random) -> int:
    """Nodes to hurt, so that a majority is left."""
    return dice.randint(1, min(2, (len(stage.nodes) - 1) // 2))


def _cut_power(stage: Stage, dice: random.Random, nodes: list[str]) -> None:
    for node in nodes:
        stage.cluster.disk(node).cut_power()
    stage.hold(dice.uniform(0.0, 0.2))  # machines may go on for a moment: they may promise nothing now
    stage.cluster.kill(*nodes)


def _power_on(stage: Stage, nodes: list[str]) -> None:
    for node in nodes:
        stage.cluster.disk(node).power_on()
    stage.spawn(*nodes)
