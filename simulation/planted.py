"""The bugs that are planted: each a name, what is wrong with it, and the exact text that is changed.

Those that end in "(was here once)" are bugs the simulator found in the real code.
"""

from __future__ import annotations

from typing import NamedTuple

RAFT = "holdfast.consensus.raft"
FOLLOWING = "holdfast.consensus.following"
LEADING = "holdfast.consensus.leading"
MEMBERS = "holdfast.consensus.members"
LETTING_IN = "holdfast.consensus.letting_in"
MEMBERSHIP = "holdfast.consensus.membership"
LOG_SHAPE = "holdfast.consensus.log_shape"
LIVENESS = "holdfast.consensus.liveness"
REPLICA = "simulation.replica"
NODE = "simulation.node"
STATE = "simulation.state"


class Mutant(NamedTuple):
    """`edits` are (module, old text that occurs exactly once, new text)."""

    name: str
    what: str
    edits: tuple[tuple[str, str, str], ...]
    # The faults that bring the bug about soonest. `None`: each seed chooses.
    profile: str | None = None


def mutant(name: str, what: str, *edits: tuple[str, str, str], profile: str | None = None) -> Mutant:
    return Mutant(name, what, edits, profile)


_DISK = (
    mutant(
        "log-never-synced",
        "The driver reports a sync of the log that never was.",
        (REPLICA, "        self.store.log_synced(written)\n", ""),
    ),
    mutant(
        "vote-never-synced",
        "The driver reports a sync of the hard state that never was.",
        (REPLICA, "        self.store.hard_state_synced(number)\n", ""),
    ),
    mutant(
        "stale-sync",
        "A sync that began before the log was cut counts for what was written in its place.",
        (REPLICA, "self._sync_reaches = min(self._sync_reaches, LogIndex(ready.truncate_from - 1))", "pass"),
    ),
    mutant(
        "vote-before-sync",
        "Votes are sent before they are on the disk.",
        (RAFT, "self._held.append((self._hard_state_number, receiver, message))", "self.say(receiver, message)"),
    ),
    mutant(
        "shown-before-its-term",
        "Entries are shown when they are on the disk, and the term they were taken in is not (was here once).",
        (RAFT, "return shown if self.is_term_saved else min(shown, self._shown_before_term)", "return shown"),
    ),
    mutant(
        "ack-before-sync",
        "A follower acknowledges what is not on its disk.",
        (FOLLOWING, "return min(self._matched, self._raft.durable)", "return self._matched"),
    ),
    mutant(
        "leader-counts-unsynced",
        "A leader counts itself for what is not on its disk.",
        (LEADING, "match[raft.replica] = raft.durable", "match[raft.replica] = raft.shape.last_index"),
    ),
    mutant(
        "match-before-term",
        "A match is promised before its term is on the disk (was here once).",
        (FOLLOWING, "        if not self._raft.is_term_saved:\n            return _NOTHING\n", ""),
    ),
    mutant(
        "shows-what-it-could-forget",
        "A node shows what its own disk does not have.",
        (RAFT, "shown = min(self.commit, self.durable)", "shown = self.commit"),
    ),
    mutant(
        "lost-disk-keeps-its-name",
        "A node whose disk was lost comes back under its old name.",
        (
            NODE,
            "            self.stores.pop(group, None)\n            self.lives[group] += 1\n",
            "            if group in self.stores:\n                self.stores[group] = self._new_store(group)\n",
        ),
    ),
    mutant(
        "compaction-off-by-one",
        "What a log's beginning amounts to lacks the last entry that was dropped.",
        (REPLICA, "log.entries[: base - log.base_index]:", "log.entries[: base - log.base_index - 1]:"),
    ),
    mutant(
        "compaction-mixes-terms",
        "Dropping entries forgets the run of terms the first kept entry belongs to.",
        (LOG_SHAPE, "self._starts[1] <= base_index + 1:", "self._starts[1] <= base_index + 2:"),
    ),
    mutant(
        "compaction-keeps-the-term",
        "Dropping entries leaves the term of the log's beginning as it was.",
        (LOG_SHAPE, "self.base_index, self.base_term = base_index, term", "self.base_index = base_index"),
    ),
)

_ELECTIONS = (
    mutant(
        "votes-twice",
        "A second vote is given in the same term.",
        (RAFT, "self.vote in (NOBODY, sender)", "self.vote in (NOBODY, self.vote)"),
    ),
    mutant(
        "forgets-its-vote",
        "The vote is forgotten by a restart.",
        (
            RAFT,
            "self.term, self.vote, saved_members = hard_state",
            "self.term, self.vote, saved_members = hard_state._replace(vote=NOBODY)",
        ),
    ),
    mutant(
        "votes-for-a-log-behind",
        "A vote is given to a log that lacks entries.",
        (
            RAFT,
            "is_current = (request.last_term, request.last_index) >=",
            "is_current = (request.last_term, 1 << 60) >=",
        ),
    ),
    mutant(
        "votes-by-length-only",
        "A longer log wins over one with a newer last term.",
        (
            RAFT,
            "is_current = (request.last_term, request.last_index) >= (self.shape.last_term, self.shape.last_index)",
            "is_current = request.last_index >= self.shape.last_index",
        ),
    ),
    mutant(
        "votes-while-led",
        "A vote is given although a leader is heard.",
        (RAFT, "if self.hears_leader and not request.is_transfer:", "if False:"),
    ),
    mutant(
        "no-trial",
        "Nobody asks whether an election would work before it stands.",
        (RAFT, "if not is_transfer and self.members.voters != {self.replica}:", "if False:"),
    ),
    mutant(
        "wrong-majority",
        "Half of an even number of voters is taken for a majority.",
        (MEMBERS, "return len(self.voters) // 2 + 1", "return (len(self.voters) + 1) // 2"),
    ),
    mutant(
        "leads-on-alone",
        "A leader that hears no majority leads on.",
        (LEADING, "if not self._hears_quorum() and self._raft.seat is None:", "if False:"),
    ),
    mutant(
        "removed-voter-does-not-stand",
        "A removed voter does not stand, though only it has the entry that says so (was here once).",
        (RAFT, "if not self._may_stand or", "if not self.is_voter or"),
    ),
)

_REPLICATION = (
    mutant(
        "cuts-what-matches",
        "Entries that are the same are cut.",
        (FOLLOWING, "if term != entry.term:", "if term is not None:"),
    ),
    mutant(
        "keeps-what-conflicts",
        "Entries that differ are kept.",
        (FOLLOWING, "if term != entry.term:", "if term is None:"),
    ),
    mutant(
        "commits-old-terms",
        "An entry of an earlier term is committed by counting.",
        (
            LEADING,
            "not (raft.shape.term_at(index) == raft.term or self._is_alone)",
            "raft.shape.term_at(index) is None",
        ),
    ),
    mutant(
        "commit-beyond-the-match",
        "A follower takes entries for committed that it did not compare with the leader's.",
        (
            FOLLOWING,
            "raft.commit = max(raft.commit, min(append.commit, self._matched))",
            "raft.commit = max(raft.commit, min(append.commit, shape.last_index))",
        ),
        # Harmless in itself: a leader that goes back further than it must shows entries that were not compared.
        (
            LEADING,
            "min(agreed, reply.hint_index) + 1",
            "min(agreed, reply.hint_index, self._raft.shape.base_index) + 1",
        ),
    ),
    mutant(
        "heartbeat-beyond-the-match",
        "The same, from a heartbeat.",
        (LEADING, "min(raft.commit, progress.match), self._round", "raft.commit, self._round"),
    ),
    mutant(
        "match-of-an-earlier-term",
        "What matched the leader of an earlier term is promised to the next.",
        (
            RAFT,
            "        self._held.clear()\n        self._following = Following(self)\n",
            "        self._held.clear()\n",
        ),
    ),
    mutant(
        "lost-messages-stay-lost",
        "What was lost on the way is never sent again.",
        (LEADING, "if progress.stalled_ticks > self._raft.timing.election_ticks and", "if False and"),
    ),
    mutant(
        "installs-over-newer",
        "A late installation throws away what came after it.",
        (FOLLOWING, "if install.last_index <= raft.commit:", "if False:"),
        (FOLLOWING, "if raft.shape.term_at(install.last_index) != install.last_term:", "if True:"),
    ),
    mutant(
        "never-installs",
        "A log that ends before the leader's begins is asked again and again (was here once).",
        (LEADING, "min(agreed, reply.hint_index) + 1", "agreed + 1"),
    ),
    mutant(
        "newcomer-not-asked",
        "A newcomer hears nothing until the next message is published (was here once).",
        (LEADING, " or is_unknown:", ":"),
    ),
    mutant(
        "answers-nobody",
        "An answer is sent to a leader that is not known any more (was here once).",
        (FOLLOWING, "or raft.leader in (NOBODY, raft.replica):", "or raft.leading is not None:"),
    ),
)

_MEMBERS = (
    mutant(
        "members-forgotten",
        "A restart forgets the members that are in the log.",
        (MEMBERS, "return (first, *sorted(behind, key=lambda at: at.since))", "return (first,)"),
    ),
    mutant(
        "members-after-the-log",
        "Members are written into the log before they are saved.",
        (RAFT, "self._is_hard_state_first = self.leading is None", "self._is_hard_state_first = False"),
    ),
    mutant(
        "cut-members-stay",
        "Members whose entry was cut still count.",
        (RAFT, "self.members_history = tuple(at for at in self.members_history if at.since < index)", "pass"),
    ),
    mutant(
        "install-keeps-members",
        "An installation leaves the old members in place.",
        (RAFT, "self.members_history = install.members", "pass"),
    ),
    mutant(
        "two-voters-at-once",
        "Two voters may be changed at once.",
        (MEMBERS, "len(self.voters ^ other.voters) <= 1", "len(self.voters ^ other.voters) <= 9"),
    ),
    mutant(
        "change-upon-change",
        "Members are changed while another change is not committed.",
        (LEADING, "if raft.members_index > raft.commit:", "if False:"),
    ),
    mutant(
        "change-too-early",
        "Members are changed by a leader that has not committed anything yet.",
        (LEADING, "        if not self.is_settled:\n            return", "        if False:\n            return"),
    ),
    mutant(
        "learners-count",
        "Learners count as voters for a commit.",
        (MEMBERS, "(match[voter] for voter in self.voters)", "(match[voter] for voter in self.everybody)"),
    ),
    mutant(
        "members-count-late",
        "A configuration counts only once it is committed.",
        (
            RAFT,
            "return self.members_history[-1].members",
            "known = max(self.commit, self.members_history[0].since)\n"
            "        return [at for at in self.members_history if at.since <= known][-1].members",
        ),
    ),
)

_COMING_AND_GOING = (
    mutant(
        "out-before-the-rest-has-everything",
        "A node is taken out although too few of the others have everything.",
        (LETTING_IN, "if self.is_enough(leading, raft, voters - {leaver}):", "if True:"),
        # New evidence finds most of the same cases.
        (LETTING_IN, "if self.evidence.is_there(leading, raft, step.voters) else None", ""),
        profile="members",
    ),
    mutant(
        "votes-with-an-empty-log",
        "A learner votes before it has anything.",
        (LETTING_IN, "in voting_nodes or not self._has_everything(leading, raft, learner):", "in voting_nodes:"),
        (LETTING_IN, "if self.evidence.is_there(leading, raft, step.voters) else None", ""),
        profile="members",
    ),
    mutant(
        "out-on-old-evidence",
        "A voter goes though those who stay were not asked whether they are there (was here once).",
        (
            LETTING_IN,
            "return step if self.evidence.is_there(leading, raft, step.voters) else None",
            "return step",
        ),
        profile="members",
    ),
    mutant(
        "two-changes-at-once",
        "A node may leave while another one is joining.",
        (
            MEMBERSHIP,
            "            case Kind.LEAVE:\n                if busy is not None and busy.node != change.node:",
            "            case Kind.LEAVE:\n                if False:",
        ),
        profile="members",
    ),
    mutant(
        "kept-without-its-disk",
        "A node whose removal is taken back stays under a name that never counts again.",
        (MEMBERSHIP, "kept = tuple(life for life in row.lives if life not in lives)", "kept = row.lives"),
        profile="members",
    ),
    mutant(
        "joined-before-it-votes",
        "A node counts as one that has joined when it votes in the control group.",
        (
            MEMBERSHIP,
            "votes = all(_is_decided(raft) and names <= raft.members.voters for raft in groups)",
            "votes = True",
        ),
        profile="members",
    ),
    mutant(
        "gone-before-it-left",
        "A node is called removed while groups still have it.",
        (MEMBERSHIP, "is_out = not votes_here and not is_elsewhere and", "is_out = not votes_here and"),
        profile="members",
    ),
    mutant(
        "removed-node-keeps-its-name",
        "A node that was taken out comes back with an empty disk under the name whose promises were counted.",
        (
            NODE,
            "        self.lives = [life + 1 for life in self.lives]\n        self.wants_in = False\n",
            "        self.stores = {}\n        self.wants_in = False\n",
        ),
        (
            MEMBERSHIP,
            "return row is not None and row.place is not Place.LEAVING and life_of(replica) in row.lives",
            "return row is not None and row.place is Place.REMOVED and life_of(replica) in row.lives",
        ),
        (
            "simulation.housekeeping",
            "if place not in (Place.JOINING, Place.VOTER) and not self.membership.is_removed(name):",
            "if place not in (Place.JOINING, Place.VOTER):",
        ),
        profile="members",
    ),
)

_READING = (
    mutant(
        "reads-unconfirmed",
        "A read is served without asking a majority who leads.",
        (
            LEADING,
            "        if self._is_alone:\n            self._confirmed",
            "        if True:\n            self._confirmed",
        ),
    ),
    mutant(
        "reads-too-early",
        "A read is served before the reign has committed anything.",
        (LEADING, "        if self.is_settled:\n", "        if True:\n"),
    ),
    mutant(
        "sleeps-for-ever",
        "Followers that sleep are not woken when their leader's node is gone.",
        (RAFT, 'only silent."""\n        self.wake()\n', 'only silent."""\n'),
    ),
    mutant(
        "new-process-unnoticed",
        "A node that was started anew is taken for the one that was there before.",
        (LIVENESS, "        self._lost[node] = None\n", "        pass\n"),
    ),
)

_CLIENTS = (
    mutant(
        "ids-lost-on-failover",
        "A new leader does not know the ids that are in its log.",
        (REPLICA, "for entry in log.entries[: self.applied - log.base_index]:", "for entry in ():"),
    ),
    mutant(
        "ids-known-too-early",
        "A new leader takes ids before it has seen everything that came before it.",
        (REPLICA, "if not self._reign.is_settled or self.applied < self._window_from:", "if False:"),
    ),
    mutant(
        "ids-of-all-groups",
        "One window recognises ids for all groups of a node.",
        (
            REPLICA,
            "self._window = DedupeWindow(ids_max=DEDUPE_IDS_MAX, age_ms_max=1)",
            "self._window = vars(self.node).setdefault('window', DedupeWindow(ids_max=DEDUPE_IDS_MAX, age_ms_max=1))",
        ),
    ),
    mutant(
        "ack-before-commit",
        "A leader acknowledges what it has only written.",
        (
            REPLICA,
            "        self.raft.appended()\n        return index\n",
            "        self.raft.appended()\n"
            "        self._answer(request, origin, batch.base_offset)\n"
            "        return index\n",
        ),
    ),
    mutant(
        "forwarding-acks",
        "A node acknowledges what it has only passed on.",
        (
            NODE,
            '("forward", request))\n',
            '("forward", request))\n'
            "            offset = replica.state.next_offset\n"
            "            self.answer(origin, Answer(request.client, request.operation, True, offset))\n",
        ),
    ),
    mutant(
        "cursor-goes-back",
        "A late request moves a cursor back.",
        (STATE, "max(self.cursors.get(cursor, 0), int(position))", "int(position)"),
    ),
)

MUTANTS = (*_DISK, *_ELECTIONS, *_REPLICATION, *_MEMBERS, *_COMING_AND_GOING, *_READING, *_CLIENTS)
