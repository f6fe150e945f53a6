"""The bugs of a plain pair that are planted: each a name, what is wrong with it, and the exact text that is changed.

Those that end in "(was here once)" are bugs the simulator found in the real code.
"""

from __future__ import annotations

from simulation.planted import Mutant

STANDING = "holdfast.consensus.plain_standing"
SENDING = "holdfast.consensus.plain_sending"
MARKS = "holdfast.consensus.plain_marks"
NODE = "simulation.plain_node"
SESSION = "simulation.plain_session"
DISK = "simulation.plain_disk"


def _mutant(name: str, what: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, what, edits)


PLAIN_MUTANTS = (
    _mutant(
        "acknowledged-before-replicated",
        "Together with a backup, what is on the own disk is acknowledged.",
        (SENDING, "max(self.committed, min(self.stored, self.confirmed))", "self.stored"),
    ),
    _mutant(
        "together-too-early",
        "A backup counts before it has everything.",
        (SENDING, "self.sent is not None and self.confirmed >= self._target", "self.sent is not None"),
    ),
    _mutant(
        "error-is-a-confirmation",
        "A backup that refuses is taken for one that has it.",
        (
            NODE,
            'elif packet[0] == "error" and self.streams is connection:\n            self._refused()\n',
            'elif packet[0] == "error" and self.streams is connection and self.sending is not None:\n'
            "            self.sending.confirm(self.sending.sent or 0)\n            self._advance()\n",
        ),
    ),
    _mutant(
        "confirmed-before-synced",
        "A backup confirms what is not on its disk.",
        (SESSION, "self._answers[0][0] <= self._node.disk.synced", "self._answers[0][0] <= self._node.disk.end"),
    ),
    _mutant(
        "sent-before-stored",
        "A primary sends what it may lose, and numbers something else the same.",
        (NODE, "self.sending.stored_to(self.disk.synced)", "self.sending.stored_to(self.disk.end)"),
    ),
    _mutant(
        "duplicate-acknowledged-early",
        "A repeated id is acknowledged while the first one is still on its way to the backup.",
        (
            NODE,
            "            self.waiting[message_id].append(answer)\n",
            "            self.checks.acknowledged(self, message_id)\n            answer(True)\n",
        ),
    ),
    _mutant(
        "pruned-before-marked",
        "One mark stands for everything before it, though messages of other topics are not delivered.",
        (MARKS, "        if position == self.mark:\n", "        if position >= self.mark:\n"),
    ),
    _mutant(
        "takes-over-without-draining",
        "What a backup holds is not put into the topics when it takes over.",
        (
            NODE,
            "        self._begin_to_serve(self.disk.end)\n",
            "        self.drained = self.disk.end\n        self._begin_to_serve(self.disk.end)\n",
        ),
    ),
    _mutant(
        "forgets-what-is-not-at-the-backup",
        "What was delivered while the backup was away is forgotten before the backup has it.",
        (NODE, "min(below, self.sending.reached, self.drained)", "min(below, self.drained)"),
    ),
    _mutant(
        "gives-nothing",
        "One that was replaced throws away what only it has.",
        (NODE, "        yield from self._give(winner.reign, first)\n", ""),
    ),
    _mutant(
        "gives-too-little",
        "Only what was acknowledged after the winner's last number is given.",
        (STANDING, "        common = winner.base\n", "        common = winner.end\n"),
    ),
    _mutant(
        "keeps-its-own",
        "One that was replaced does not cut its journal.",
        (NODE, "        self.disk.cut(position)\n", ""),
    ),
    _mutant(
        "nobody-gives-way",
        "Of two primaries in the same epoch neither gives way.",
        (
            STANDING,
            "    if other.reign > own.reign:\n        return Verdict.GIVE_WAY\n",
            "    if other.reign.epoch > own.reign.epoch:\n        return Verdict.GIVE_WAY\n",
        ),
    ),
    _mutant(
        "marks-are-told-once",
        "A mark that was lost with a connection is never told again.",
        (NODE, "            if entry.position < firsts[entry.topic]:\n", "            if False:\n"),
    ),
    _mutant(
        "marks-go-with-the-journal",
        "What was delivered and forgotten is never told to a backup that has lost the mark (was here once).",
        (NODE, "        for position in range(mark, self.disk.start):\n", "        for position in range(0):\n"),
    ),
    _mutant(
        "told-too-early",
        "After a restart marks are told before everything is in its topic again (was here once).",
        (NODE, "        self.recovers_to = self.disk.end\n", "        self.recovers_to = 0\n"),
    ),
    _mutant(
        "waits-for-a-dead-connection",
        "A connection that died before anything was heard on it is never dialled again (was here once).",
        (
            NODE,
            "(since_ms := self.unanswered_since_ms) is not None and now_ms - since_ms > PATIENCE_MS",
            "False",
        ),
    ),
    _mutant(
        "recognises-what-it-gave-away",
        "A message that was given away and comes back is taken for delivered (was here once).",
        (NODE, "stored.message_id == message_id and not self._is_void(stored)", "stored.message_id == message_id"),
    ),
    _mutant(
        "places-of-both",
        "Places of two reigns in the same epoch are compared by number (was here once).",
        (
            NODE,
            "            if (self.disk.reign, entry.position) > last:\n",
            "            if (self.disk.reign.epoch, entry.position) > (last[0].epoch, last[1]):\n",
        ),
    ),
)

# What brings a bug about soonest, where that is not just anything.
PROFILE_OF = {
    "nobody-gives-way": "splits",
    "places-of-both": "splits",
    "error-is-a-confirmation": "connections",
    "pruned-before-marked": "everything",
    "told-too-early": "crashes",
    "waits-for-a-dead-connection": "splits",
    "recognises-what-it-gave-away": "everything",
    "marks-go-with-the-journal": "crashes",
}
# Where the first seed that finds it is not near 0: the hunt begins there.
START_OF = {"recognises-what-it-gave-away": 120, "places-of-both": 90}
