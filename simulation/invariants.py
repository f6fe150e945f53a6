"""What must hold whatever goes wrong. Checked as things happen, each against one history of the whole cluster.

The history of a group is the list of its committed entries, written down when the first node shows them; whatever
any node shows, acknowledges or answers later must agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.consensus.members import NOBODY, Members, ReplicaId
from holdfast.consensus.messages import AppendReply, HeartbeatReply, Message, VoteReply, VoteRequest
from holdfast.model.entries import KIND_BATCH, KIND_MEMBERS, NOTE_HEAD_BYTES, Entry
from holdfast.model.ids import LogIndex, Term
from simulation.replica import DEDUPE_IDS_MAX, Replica
from simulation.requests import Answer, Request
from simulation.state import Batch, offset_behind
from simulation.world import Violation, World

if TYPE_CHECKING:
    from simulation.node import Node


class Checker:
    """The history, and what was promised to whom."""

    def __init__(self, world: World, groups: int, keep_entries: int) -> None:
        self._world = world
        self._keep_entries = keep_entries
        self.nodes: list[Node] = []
        self.history: list[list[Entry]] = [[] for _ in range(groups)]
        # The name of the message at each offset.
        self.messages: list[list[str]] = [[] for _ in range(groups)]
        # What a reader has seen or a producer was told: no reader who asks later may see less.
        self.visible = [0] * groups
        self.cursors: dict[str, int] = {}
        # Groups whose leader has no reason to go.
        self.steady: set[int] = set()
        self._sent: dict[str, Request] = {}
        self._cursors_asked: dict[str, int] = {}
        self._ids: list[dict[str, tuple[int, int]]] = [{} for _ in range(groups)]
        self._ids_count = [0] * groups
        self._newest_terms = [Term(0)] * groups
        self._leaders: dict[tuple[int, Term], ReplicaId] = {}
        self._votes: dict[tuple[int, ReplicaId, Term], ReplicaId] = {}
        self._promised: dict[tuple[int, ReplicaId], tuple[Term, ReplicaId]] = {}
        self._commits: dict[tuple[int, ReplicaId, Term], int] = {}
        self._producers: dict[tuple[int, int], int] = {}

    # --- elections ----------------------------------------------------------------------------------

    def elected(self, replica: Replica) -> None:
        group, term = replica.group, replica.raft.term
        self._world.counts["elections"] += 1
        if self._world.is_traced:
            self._world.note(f"{replica.label} LEADS in term {term}, members {replica.raft.members}")
        other = self._leaders.setdefault((group, term), replica.name)
        if other != replica.name:
            raise Violation("one leader per term", f"group {group} term {term}: {other} and {replica.name}")
        if group in self.steady:
            raise Violation("a healthy majority keeps its leader", f"group {group}: {replica.name} in term {term}")
        # What it knew before was committed under other members, maybe.
        self._commits[group, replica.name, term] = replica.raft.commit
        if term < self._newest_terms[group]:
            return  # it was frozen when it won, and does not know yet that its time is over
        self._newest_terms[group] = term
        history = self.history[group]
        last = len(history) - 1
        if last >= 0 and (replica.store.log.last_index < last or not replica.store.log.has(last, history[last])):
            raise Violation("a leader has all that is committed", f"{replica.label} lacks entry {last}")

    def said(self, sender: Replica, receiver: ReplicaId, message: Message) -> None:
        """Promises are on the disk before they are made."""
        saved = sender.store.synced_hard_state
        if isinstance(message, VoteReply) and message.is_granted and not message.is_trial:
            self._vote(sender, receiver, message.term)
            if (saved.term, saved.vote) != (message.term, receiver):
                raise Violation("promises are on the disk", f"{sender.label} gave {receiver} an unsaved vote")
        elif isinstance(message, VoteRequest) and not message.is_trial:
            self._vote(sender, sender.name, message.term)
        elif isinstance(message, AppendReply | HeartbeatReply) and message.match > -1:
            key = sender.group, sender.name
            promised = self._promised.get(key, (Term(0), NOBODY))
            if promised[0] < message.term:
                self._promised[key] = message.term, NOBODY
            if saved.term < message.term or not sender.store.is_synced(message.match):
                raise Violation("promises are on the disk", f"{sender.label} answered {message}")

    def _vote(self, sender: Replica, candidate: ReplicaId, term: Term) -> None:
        given = self._votes.setdefault((sender.group, sender.name, term), candidate)
        if given != candidate:
            raise Violation("one vote per term", f"{sender.label} term {term}: {given} and {candidate}")
        self._promised[sender.group, sender.name] = term, candidate

    def started(self, replica: Replica) -> None:
        """What was promised is remembered."""
        term, vote = self._promised.get((replica.group, replica.name), (Term(0), NOBODY))
        saved = replica.store.hard_state
        if saved.term < term or (saved.term == term and vote not in (NOBODY, saved.vote)):
            raise Violation("the hard state never goes back", f"{replica.label}: {saved}, promised {term} {vote}")
        self.members_follow(replica)

    def members_follow(self, replica: Replica) -> None:
        members = self._members_in_log(replica)
        if members is not None and replica.raft.members != members:
            detail = f"{replica.label} goes by {replica.raft.members}, not {members}"
            raise Violation("members are what the log says", detail)

    def _members_in_log(self, replica: Replica) -> Members | None:
        """From the newest such entry of the log, or of what it has dropped; `None` if that is the very first."""
        log = replica.store.log
        dropped = self.history[replica.group][: log.base_index + 1]
        for entry in (*reversed(log.entries), *reversed(dropped)):
            if entry.kind == KIND_MEMBERS:
                return Members.decode(entry.payload[NOTE_HEAD_BYTES:])
        return None

    def compacted(self, replica: Replica) -> None:
        shape, log = replica.raft.shape, replica.store.log
        terms = [shape.term_at(LogIndex(index)) for index in range(log.base_index, log.last_index + 1)]
        if terms != [log.base_term, *(entry.term for entry in log.entries)]:
            raise Violation("what Raft knows of a log is so", f"{replica.label}: {terms}")

    def members_change(self, replica: Replica, members: Members) -> None:
        """A leader is about to write that."""
        raft = replica.raft
        if raft.members_index > raft.commit or len(raft.members.voters ^ members.voters) > 1:
            raise Violation("one change of members at a time", f"{replica.label}: {raft.members} to {members}")
        log = replica.store.log
        if raft.members.voters != {replica.name} and (
            raft.commit <= log.base_index or log.at(raft.commit).term != raft.term
        ):
            raise Violation("members are changed by who knows what is committed", f"{replica.label} to {members}")

    # --- committing ---------------------------------------------------------------------------------

    def committed(self, replica: Replica) -> None:
        """What a leader takes for committed is on the disks of a majority of its voters."""
        raft, group = replica.raft, replica.group
        key = group, replica.name, raft.term
        commit = raft.commit
        if commit <= self._commits.get(key, -1):
            return
        self._commits[key] = commit
        log = replica.store.log
        if commit <= log.base_index:
            return
        entry = log.at(commit)
        if entry.term != raft.term and raft.members.voters != {replica.name}:
            raise Violation("a leader counts for entries of its own term only", f"{replica.label} entry {commit}")
        having = 0
        for voter in raft.members.voters:
            node = self.nodes[int(voter.partition(".")[0][1:])]
            # A replica that was lost meanwhile had it as long as it was there.
            store = node.stores.get(group)
            having += node.name_in(group) != voter or (store is not None and store.synced.has(commit, entry))
        if having < len(raft.members.voters) // 2 + 1:
            raise Violation("committed is what a majority has", f"{replica.label} entry {commit}, {having} have it")

    def installed(self, replica: Replica, last_index: int) -> None:
        if last_index <= replica.applied:
            raise Violation("nothing that was shown is taken back", f"{replica.label} begins anew behind {last_index}")

    def shown(self, replica: Replica, first: int, entries: Sequence[Entry]) -> None:
        history = self.history[replica.group]
        synced = replica.store.synced
        if synced.last_index < first + len(entries) - 1:
            raise Violation(
                "nothing is shown that could be forgotten", f"{replica.label} entry {synced.last_index + 1}"
            )
        saved = replica.store.synced_hard_state.term
        if any(entry.term > saved for entry in entries):
            # After a crash, a leader of the term that was saved could cut it.
            raise Violation("nothing is shown that could be forgotten", f"{replica.label} shows a term after {saved}")
        for index, entry in enumerate(entries, first):
            if index < len(history):
                if history[index] is not entry and history[index] != entry:
                    detail = f"{replica.label} entry {index}: {entry}, not {history[index]}"
                    raise Violation("committed entries are the same everywhere", detail)
            elif index > len(history):
                raise Violation("committed entries are the same everywhere", f"{replica.label} skips to {index}")
            else:
                history.append(entry)
                self._take(replica.group, index, entry)

    def _take(self, group: int, index: int, entry: Entry) -> None:
        messages = self.messages[group]
        if entry.kind != KIND_BATCH:
            if offset_behind(entry) != len(messages):
                raise Violation("offsets have no gaps", f"group {group} entry {index}: {entry}")
            return
        batch = Batch.decode(entry.payload)
        if batch.base_offset != len(messages):
            raise Violation("offsets have no gaps", f"group {group} entry {index}: {batch}, expected {len(messages)}")
        request = self._sent.get(batch.name)
        if request is None or (request.group, request.number) != (group, batch.size):
            raise Violation("nothing is seen that was not sent", f"group {group} entry {index}: {batch}")
        messages.extend([batch.name] * batch.size)
        if batch.message_id:
            self._take_id(group, index, batch)

    def _take_id(self, group: int, index: int, batch: Batch) -> None:
        self._ids_count[group] += 1
        number = self._ids_count[group]
        first = self._ids[group].get(batch.message_id)
        # The window is bounded, and rebuilt from what every log keeps.
        if first is not None and number - first[0] < DEDUPE_IDS_MAX and index - first[1] < self._keep_entries:
            raise Violation("nothing is seen twice", f"group {group}: {batch} at entries {first[1]} and {index}")
        self._ids[group][batch.message_id] = number, index

    # --- what clients are told ------------------------------------------------------------------------

    def asked(self, request: Request) -> None:
        self._sent[request.name] = request

    def asked_cursor(self, cursor: str, position: int) -> None:
        self._cursors_asked[cursor] = max(position, self._cursors_asked.get(cursor, 0))

    def acknowledged(self, request: Request, answer: Answer) -> None:
        group, offset = request.group, answer.value
        self._world.counts["messages acknowledged"] += request.number
        messages = self.messages[group]
        if messages[offset : offset + request.number] != [request.name] * request.number:
            raise Violation("what is acknowledged is committed", f"group {group} offset {offset}: {request}")
        producer = group, request.client
        if offset <= self._producers.get(producer, -1):
            raise Violation("one producer's messages are in its order", f"group {group}: {request} at {offset}")
        self._producers[producer] = offset
        self.visible[group] = max(self.visible[group], offset + request.number)

    def read(self, request: Request, answer: Answer, visible: int) -> None:
        """`visible` is what was seen by anybody when the read was begun; 0 if it may be behind."""
        group, count = request.group, answer.value
        self._world.counts["reads"] += 1
        messages = self.messages[group]
        if count > len(messages) or (count and messages[count - 1] != answer.name):
            raise Violation("offsets are the same for every reader", f"group {group}: {count} messages, {answer.name}")
        if count < visible:
            raise Violation("what one reader saw all see", f"group {group}: {count} messages, {visible} were seen")
        self.visible[group] = max(self.visible[group], count)

    def cursor_moved(self, cursor: str, position: int) -> None:
        self.cursors[cursor] = max(position, self.cursors.get(cursor, 0))

    def cursor_read(self, cursor: str, position: int, seen: int) -> None:
        if position < seen:
            raise Violation("cursors never go back", f"{cursor} is at {position} and was at {seen}")
        if position > self._cursors_asked.get(cursor, 0):
            raise Violation("nothing is seen that was not sent", f"{cursor} is at {position}")
        self.cursor_moved(cursor, position)
