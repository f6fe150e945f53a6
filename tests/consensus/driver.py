"""Drives pure Raft as the text of `holdfast.consensus` asks, with a disk and a network that do what a test says.

Whatever happens, it watches two promises all the time: one leader in a term, and one entry at a decided place.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState, Message, Ready
from holdfast.consensus.raft import Raft
from holdfast.model.entries import KIND_BATCH, KIND_MEMBERS, KIND_REIGN, NOTE_HEAD_BYTES, Entry
from holdfast.model.ids import LogIndex, Term
from tests.consensus.disk import Disk
from tests.consensus.rendering import entries_text, hard_state_text, message_text, standing_text

_STEPS_MAX = 2000
_HEARTBEATS = ("Heartbeat ", "HeartbeatReply ")


class _CrashedError(Exception):
    """The node stopped in the midst of what it did."""


class Letter(NamedTuple):
    sender: ReplicaId
    receiver: ReplicaId
    message: Message

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver} {message_text(self.message)}"


class Node:
    """One replica: a `Raft`, a disk, and the order in which things are done between them."""

    def __init__(self, cluster: Cluster, name: ReplicaId, disk: Disk, patience: int) -> None:
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.patience = patience
        self.is_syncing_alone = True
        self.crashes_when_saved = False
        self.raft: Raft
        self.is_up = False
        self.start()

    def start(self) -> None:
        self.raft = Raft(
            self.name,
            shape=self.disk.log.shape(),
            hard_state=self.disk.hard_state,
            dice=lambda sides: self.patience % sides,
        )
        self.is_up = True
        self._written_number = self._synced_number = 0
        self._reign: Leading | None = None
        self._shown = LogIndex(-1)
        self._standing = standing_text(self.raft)

    def crash(self) -> None:
        self.is_up = False
        self.disk.crash()

    def do(self, event: Callable[[Raft], object]) -> None:
        """Let something happen, then do all that follows."""
        if not self.is_up:
            return
        try:
            event(self.raft)
            self._work()
        except _CrashedError:
            self.crash()
            self._say("crashes")

    def sync(self, what: str = "all") -> bool:
        """Let the disk write what it has; whether there was anything."""
        is_news = False
        if what in ("all", "state") and self._synced_number < self._written_number:
            self.disk.sync_hard_state()
            self._synced_number = self._written_number
            self.raft.saved(self._written_number)
            is_news = True
        if what in ("all", "log") and self.raft.durable < self.disk.log.last_index:
            self.disk.sync_log()
            self.raft.log_durable(self.disk.durable_index)
            is_news = True
        return is_news

    def write(self, kind: int, body: bytes) -> None:
        """The leader writes an entry of its own; the caller tells Raft."""
        head = b"" if kind == KIND_BATCH else bytes(NOTE_HEAD_BYTES)
        entry = Entry(self.raft.term, kind, head + body)
        self.disk.append([entry])
        self._say(f"  writes {entries_text(self.disk.log.last_index, [entry])}")

    def propose(self, payload: bytes) -> None:
        def event(raft: Raft) -> None:
            self.write(KIND_BATCH, payload)
            raft.appended()

        self.do(event)

    def change_members(self, members: Members) -> None:
        def event(raft: Raft) -> None:
            self._save(raft.hard_state_with(members))
            self.disk.sync_hard_state()
            self._maybe_crash()
            self.write(KIND_MEMBERS, members.encode())
            raft.appended_members(members)

        self.do(event)

    # --- what follows ---------------------------------------------------------------------------------

    def _work(self) -> None:
        for _ in range(_STEPS_MAX):
            self._tell_standing()
            is_busy = self._follow(self.raft.ready())
            leading = self.raft.leading
            if leading is not None and leading is not self._reign:
                self._reign = leading
                self.cluster.crowned(self.name, self.raft.term)
                if len(self.raft.members.voters) > 1:
                    self.write(KIND_REIGN, b"")
                    self.raft.appended()
                    is_busy = True
            if not is_busy and not (self.is_syncing_alone and self.sync()):
                return
        raise AssertionError(f"{self.name} is never done")

    def _follow(self, ready: Ready) -> bool:
        """Do what is to be done, in its order; whether there was anything."""
        if ready.hard_state is not None:
            self._save(ready.hard_state)
            self._written_number = ready.hard_state_number
            if ready.is_hard_state_first:
                self.disk.sync_hard_state()
                self._synced_number = self._written_number
                self.raft.saved(self._written_number)
                self._maybe_crash()
        if ready.install is not None:
            self._say(f"  begins anew behind {ready.install.last_index}/{ready.install.last_term}")
            self.disk.begin_anew(ready.install.last_index, ready.install.last_term)
        if ready.truncate_from is not None:
            self._say(f"  cuts from {ready.truncate_from}")
            self.disk.log.truncate_from(ready.truncate_from)
        if ready.entries:
            self._say(f"  writes {entries_text(self.disk.log.last_index + 1, ready.entries)}")
            self.disk.append(ready.entries)
        if ready.install is not None:
            self.raft.log_durable(ready.install.last_index)
        for receiver, message in ready.messages:
            self.cluster.send(Letter(self.name, receiver, message))
        for receiver in ready.replicate:
            self._replicate(receiver)
        self._show(ready)
        return bool(
            ready.hard_state or ready.install or ready.truncate_from or ready.entries or ready.messages
        ) or bool(ready.replicate or ready.reads or ready.reads_failed)

    def _replicate(self, receiver: ReplicaId) -> None:
        leading = self.raft.leading
        assert leading is not None
        message: Message
        if leading.needs_install(receiver):
            message = leading.install_message(receiver, b"where the store begins")
        else:
            entries = self.disk.log.between(leading.progress[receiver].next, self.cluster.batch)
            message = leading.append_message(receiver, entries)
        self.cluster.send(Letter(self.name, receiver, message))

    def _show(self, ready: Ready) -> None:
        if ready.commit > self._shown:
            log = self.disk.log
            for index in range(max(self._shown, log.base_index) + 1, ready.commit + 1):
                self.cluster.decided(self.name, index, log.at(index))
            if ready.commit > log.base_index:
                self._say(f"  shows {ready.commit}")
            self._shown = ready.commit
        for token, index in ready.reads:
            self._say(f"  confirms read {token} at {index}")
        for token in ready.reads_failed:
            self._say(f"  gives up read {token}")

    def _save(self, hard_state: HardState) -> None:
        self._say(f"  saves {hard_state_text(hard_state)}")
        self.disk.save(hard_state)

    def _maybe_crash(self) -> None:
        if self.crashes_when_saved:
            self.crashes_when_saved = False
            raise _CrashedError

    def _tell_standing(self) -> None:
        standing = standing_text(self.raft)
        if standing != self._standing:
            self._standing = standing
            self._say(standing)

    def _say(self, text: str) -> None:
        self.cluster.say(f"{self.name} {text}")


class Cluster:
    """Nodes and the letters between them; everything that happens is said to `events`."""

    def __init__(self) -> None:
        self.nodes: dict[ReplicaId, Node] = {}
        self.wire: list[Letter] = []
        self.events: list[str] = []
        self.batch = 8
        self.hides_heartbeats = False
        self.first_members = Members.of([])
        self._cut_links: set[frozenset[ReplicaId]] = set()
        self._leaders: dict[Term, ReplicaId] = {}
        self._decided: dict[int, Entry] = {}

    def say(self, text: str) -> None:
        self.events.append(text)

    def add(self, name: str, disk: Disk | None = None) -> Node:
        """A node with an empty disk knows the members of the group's first day."""
        hard_state = HardState(Term(0), NOBODY, (MembersAt(LogIndex(0), Term(0), self.first_members),))
        node = Node(self, ReplicaId(name), disk or Disk(hard_state), patience=2 * len(self.nodes))
        self.nodes[node.name] = node
        return node

    # --- the network ------------------------------------------------------------------------------------

    def send(self, letter: Letter) -> None:
        assert letter.receiver != NOBODY, f"a letter to nobody: {letter}"
        self.wire.append(letter)

    def cut(self, one: ReplicaId, other: ReplicaId) -> None:
        self._cut_links.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cut_links.clear()

    def waiting(self, link: str) -> list[Letter]:
        sender, _, receiver = link.replace("->", "→").partition("→")
        return [item for item in self.wire if fnmatchcase(item.sender, sender) and fnmatchcase(item.receiver, receiver)]

    def take(self, letter: Letter) -> None:
        for place, other in enumerate(self.wire):
            if other is letter:
                del self.wire[place]
                return
        raise AssertionError("it is not under way")

    def deliver(self, link: str = "*→*", count_max: int | None = None) -> None:
        """Bring letters, also those that follow from them, until none are left on this link."""
        for _ in range(_STEPS_MAX if count_max is None else count_max):
            letters = self.waiting(link)
            if not letters:
                return
            self._bring(letters[0])
        assert count_max is not None, "they never stop to write to each other"

    def _bring(self, letter: Letter) -> None:
        self.take(letter)
        receiver = self.nodes.get(letter.receiver)
        is_lost = frozenset((letter.sender, letter.receiver)) in self._cut_links
        is_lost |= receiver is None or not receiver.is_up
        if not self.hides_heartbeats or not message_text(letter.message).startswith(_HEARTBEATS):
            self.say(f"{letter}{' (lost)' if is_lost else ''}")
        if not is_lost:
            assert receiver is not None
            receiver.do(lambda raft: raft.step(letter.sender, letter.message))

    # --- promises -----------------------------------------------------------------------------------------

    def crowned(self, name: ReplicaId, term: Term) -> None:
        """Election safety (figure 3.2)."""
        assert self._leaders.setdefault(term, name) == name, f"two leaders in term {term}"

    def decided(self, name: ReplicaId, index: int, entry: Entry) -> None:
        """State machine safety (figure 3.2)."""
        assert self._decided.setdefault(index, entry) == entry, f"{name} shows another entry at {index}"
