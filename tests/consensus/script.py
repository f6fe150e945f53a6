"""The small language of the scenarios.

A scenario is blocks of commands, each followed by `----` and what happened, up to an empty line. `#` begins a
comment. A link is written `n1→n2`, `*` stands for everybody. What a node does is indented under what made it
do so::

    cluster n1 n2 n3         voters; a name with a `+` before it is a learner
    patience n1 5            what its dice show: it waits 11 + 5 ticks for a leader
    tick n1 20, tick 5       time passes for one, or for all, and no letter is brought
    run 5                    time passes for all, and every letter is brought
    elect n1                 time passes for it until it campaigns, and every letter is brought
    deliver [link] [count]   bring letters and those that follow from them
    drop | duplicate | reverse link      what happens to letters under way
    isolate n1, cut n1 n2, heal          what happens to letters when they should be brought
    propose n1 a b 6MiB      a leader writes entries
    read n1 [2]              a leader is asked for a read index, or for more at once; reads are numbered
    no-sync n1, sync n1 [log|state], auto-sync n1
    crash n1, restart n1, crash-when-saved n1
    start n4                 a node with an empty disk
    add-learner n1 n4, promote n1 n4, remove n1 n4         the leader n1 changes the members
    transfer n1 n2, compact n1 5, suspect n1, lost-link n1 n2
    batch 1                  entries in an append
    hide-heartbeats          they are brought, but not told
    quietly …                the same, but it is not told
    status, log, queue, progress n1      what there is
"""

from __future__ import annotations

from pathlib import Path

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.roles import Role
from holdfast.model.ids import LogIndex
from tests.consensus.driver import Cluster, Node
from tests.consensus.rendering import entries_text, status_text

_RULE = "----"
_PATIENCE_TICKS_MAX = 50


def replay(scenario: Path) -> str:
    """The file as it should be."""
    script = Script()
    blocks = [block for block in scenario.read_text().split("\n\n") if block.strip()]
    return "\n\n".join(_replay_block(script, block) for block in blocks) + "\n"


def _replay_block(script: Script, block: str) -> str:
    commands = block.strip("\n").partition(f"\n{_RULE}")[0].splitlines()
    todo = [command for command in commands if not command.startswith("#")]
    if not todo:
        return "\n".join(commands)
    happened: list[str] = []
    for command in todo:
        try:
            happened += script.run(command)
        except AssertionError as error:
            raise AssertionError(f"at '{command}' after:\n" + "\n".join(script.cluster.events[-40:])) from error
    return "\n".join([*commands, _RULE, *happened])


class Script:
    """One cluster and the commands it understands: the methods named `do_…`."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._reads = 0

    def run(self, command: str) -> list[str]:
        """What happened."""
        word, *arguments = command.split()
        if word == "quietly":
            self.run(" ".join(arguments))
            return []
        self.cluster.events = []
        getattr(self, "do_" + word.replace("-", "_"))(*arguments)
        return self.cluster.events

    def _node(self, name: str) -> Node:
        return self.cluster.nodes[ReplicaId(name)]

    def _leading(self, name: str) -> Leading | None:
        leading = self._node(name).raft.leading
        if leading is None:
            self.cluster.say(f"{name} does not lead")
        return leading

    # --- time and letters -------------------------------------------------------------------------------

    def do_cluster(self, *names: str) -> None:
        learners = [name[1:] for name in names if name.startswith("+")]
        self.cluster.first_members = Members.of([name for name in names if not name.startswith("+")], learners)
        for name in names:
            self.cluster.add(name.removeprefix("+"))

    def do_patience(self, name: str, ticks: str) -> None:
        node = self._node(name)
        node.patience = int(ticks)
        if node.raft.term == 0:
            node.start()

    def do_tick(self, *arguments: str) -> None:
        names = arguments[:-1] or tuple(self.cluster.nodes)
        for _ in range(int(arguments[-1])):
            for name in names:
                self._node(name).do(lambda raft: raft.tick())

    def do_run(self, ticks: str) -> None:
        for _ in range(int(ticks)):
            self.do_tick("1")
            self.cluster.deliver()

    def do_elect(self, name: str) -> None:
        node = self._node(name)
        for _ in range(_PATIENCE_TICKS_MAX):
            node.do(lambda raft: raft.tick())
            if node.raft.role is not Role.FOLLOWER:
                break
        self.cluster.deliver()
        assert node.raft.leading is not None, f"{name} is not elected"

    def do_deliver(self, link: str = "*→*", count: str | None = None) -> None:
        if link.isdigit():
            link, count = "*→*", link
        self.cluster.deliver(link, int(count) if count else None)

    def do_drop(self, link: str) -> None:
        for letter in self.cluster.waiting(link):
            self.cluster.take(letter)
            self.cluster.say(f"{letter} (lost)")

    def do_duplicate(self, link: str) -> None:
        self.cluster.wire += [letter._replace() for letter in self.cluster.waiting(link)]

    def do_reverse(self, link: str) -> None:
        letters = self.cluster.waiting(link)
        for letter in letters:
            self.cluster.take(letter)
        self.cluster.wire += reversed(letters)

    def do_isolate(self, *names: str) -> None:
        """These hear each other, and nobody else hears them."""
        for name in names:
            for other in self.cluster.nodes.keys() - set(map(ReplicaId, names)):
                self.cluster.cut(ReplicaId(name), other)

    def do_cut(self, one: str, other: str) -> None:
        self.cluster.cut(ReplicaId(one), ReplicaId(other))

    def do_heal(self) -> None:
        self.cluster.heal()

    # --- what a leader is asked for -----------------------------------------------------------------------

    def do_propose(self, name: str, *bodies: str) -> None:
        leading = self._leading(name)
        if leading is None:
            return
        if not leading.takes_proposals:
            self.cluster.say(f"{name} hands over and takes nothing")
            return
        for body in bodies:
            is_big = body.endswith("MiB")
            self._node(name).propose(bytes(int(body[:-3]) * 1024 * 1024) if is_big else body.encode())

    def do_read(self, name: str, count: str = "1") -> None:
        leading = self._leading(name)
        if leading is not None:
            tokens = range(self._reads + 1, self._reads + 1 + int(count))
            self._reads += int(count)
            self._node(name).do(lambda raft: list(map(leading.read, tokens)))

    def do_transfer(self, name: str, to: str) -> None:
        leading = self._leading(name)
        if leading is not None:
            self._node(name).do(lambda raft: leading.transfer(ReplicaId(to)))

    def do_add_learner(self, name: str, newcomer: str) -> None:
        members = self._node(name).raft.members
        self._change(name, Members(members.voters, members.learners | {ReplicaId(newcomer)}))

    def do_promote(self, name: str, learner: str) -> None:
        voters, learners = self._node(name).raft.members
        self._change(name, Members(voters | {ReplicaId(learner)}, learners - {learner}))

    def do_remove(self, name: str, *leavers: str) -> None:
        voters, learners = self._node(name).raft.members
        self._change(name, Members(voters - set(leavers), learners - set(leavers)))

    def _change(self, name: str, members: Members) -> None:
        leading = self._leading(name)
        if leading is None:
            return
        refusal = leading.refusal(members)
        if refusal is not None:
            self.cluster.say(f"{name} refuses: {refusal}")
            return
        self._node(name).change_members(members)

    # --- disks and nodes --------------------------------------------------------------------------------------

    def do_no_sync(self, *names: str) -> None:
        for name in names:
            self._node(name).is_syncing_alone = False

    def do_auto_sync(self, *names: str) -> None:
        for name in names:
            self._node(name).is_syncing_alone = True
            self._node(name).do(lambda raft: None)

    def do_sync(self, name: str, what: str = "all") -> None:
        node = self._node(name)
        node.do(lambda raft: node.sync(what))

    def do_crash(self, *names: str) -> None:
        for name in names:
            self._node(name).crash()

    def do_crash_when_saved(self, name: str) -> None:
        self._node(name).crashes_when_saved = True

    def do_restart(self, *names: str) -> None:
        for name in names:
            self._node(name).start()
            self.cluster.say(f"{name} {status_text(self._node(name).raft)} vote={self._node(name).raft.vote or '-'}")

    def do_start(self, name: str) -> None:
        self.cluster.add(name)

    def do_compact(self, name: str, index: str) -> None:
        node = self._node(name)
        node.disk.compact_to(LogIndex(int(index)))
        node.do(lambda raft: raft.compacted_to(LogIndex(int(index))))

    def do_suspect(self, name: str) -> None:
        self._node(name).do(lambda raft: raft.suspect_leader())

    def do_lost_link(self, name: str, other: str) -> None:
        leading = self._leading(name)
        if leading is not None:
            self._node(name).do(lambda raft: leading.lost_link(ReplicaId(other)))

    # --- how it is told ---------------------------------------------------------------------------------------

    def do_batch(self, count: str) -> None:
        self.cluster.batch = int(count)

    def do_hide_heartbeats(self) -> None:
        self.cluster.hides_heartbeats = True

    def do_status(self, *names: str) -> None:
        for name in names or tuple(self.cluster.nodes):
            node = self._node(name)
            self.cluster.say(f"{name} {status_text(node.raft)}" if node.is_up else f"{name} down")

    def do_log(self, *names: str) -> None:
        for name in names or tuple(self.cluster.nodes):
            log = self._node(name).disk.log
            base = f"{log.base_index}/{log.base_term}| " if log.base_index else ""
            self.cluster.say(f"{name} {base}{entries_text(log.base_index + 1, log.entries)}".rstrip())

    def do_queue(self) -> None:
        for letter in self.cluster.wire:
            self.cluster.say(str(letter))

    def do_progress(self, name: str) -> None:
        leading = self._leading(name)
        if leading is not None:
            for member, progress in leading.progress.items():
                room = "" if progress.has_room else " no-room"
                text = f"{member} {progress.mode.value} match={progress.match} next={progress.next}{room}"
                self.cluster.say(text)
