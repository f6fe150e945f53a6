"""The bugs of a plain pair that are planted: each a name, what is wrong with it, and the exact text that is changed.

Those that end in "(was here once)" are bugs the simulator found in the real code.
"""

from __future__ import annotations

from simulation.planted import mutant

STANDING = "holdfast.consensus.plain_standing"
SENDING = "holdfast.consensus.plain_sending"
MARKS = "holdfast.consensus.plain_marks"
NODE = "simulation.plain_node"
SESSION = "simulation.plain_session"
DISK = "simulation.plain_disk"


PLAIN_MUTANTS = (
    mutant(
        "acknowledged-before-replicated",
        "Together with a backup, what is on the own disk is acknowledged.",
        (SENDING, "max(self.committed, min(self.stored, self.confirmed))", "self.stored"),
    ),
    mutant(
        "together-too-early",
        "A backup counts before it has everything.",
        (SENDING, "self.sent is not None and self.confirmed >= self._target", "self.sent is not None"),
    ),
    mutant(
        "error-is-a-confirmation",
        "A backup that refuses is taken for one that has it.",
        (
            NODE,
            'elif packet[0] == "error" and self.streams is connection:\n            self._refused()\n',
            'elif packet[0] == "error" and self.streams is connection and self.sending is not None:\n'
            "            self.sending.confirm(self.sending.sent or 0)\n            self._advance()\n",
        ),
        profile="connections",
    ),
    mutant(
        "confirmed-before-synced",
        "A backup confirms what is not on its disk.",
        (SESSION, "self._answers[0][0] <= self._node.disk.synced", "self._answers[0][0] <= self._node.disk.end"),
    ),
    mutant(
        "sent-before-stored",
        "A primary sends what it may lose, and numbers something else the same.",
        (NODE, "self.sending.stored_to(self.disk.synced)", "self.sending.stored_to(self.disk.end)"),
    ),
    mutant(
        "duplicate-acknowledged-early",
        "A repeated id is acknowledged while the first one is still on its way to the backup.",
        (
            NODE,
            "            self.waiting[message_id].append(answer)\n",
            "            self.checks.acknowledged(self, message_id)\n            answer(True)\n",
        ),
    ),
    mutant(
        "pruned-before-marked",
        "One mark stands for everything before it, though messages of other topics are not delivered.",
        (MARKS, "        if position == self.mark:\n", "        if position >= self.mark:\n"),
        profile="everything",
    ),
    mutant(
        "takes-over-without-draining",
        "What a backup holds is not put into the topics when it takes over.",
        (
            NODE,
            "        self._begin_to_serve(self.disk.end)\n",
            "        self.drained = self.disk.end\n        self._begin_to_serve(self.disk.end)\n",
        ),
    ),
    mutant(
        "forgets-what-is-not-at-the-backup",
        "What was delivered while the backup was away is forgotten before the backup has it.",
        (NODE, "min(below, self.sending.reached, self.drained)", "min(below, self.drained)"),
    ),
    mutant(
        "gives-nothing",
        "One that was replaced throws away what only it has.",
        (NODE, "        yield from self._give(winner.reign, first)\n", ""),
    ),
    mutant(
        "gives-too-little",
        "Only what was acknowledged after the winner's last number is given.",
        (STANDING, "        common = winner.base\n", "        common = winner.end\n"),
    ),
    mutant(
        "keeps-its-own",
        "One that was replaced does not cut its journal.",
        (NODE, "        self.disk.cut(position)\n", ""),
    ),
    mutant(
        "nobody-gives-way",
        "Of two primaries in the same epoch neither gives way.",
        (
            STANDING,
            "    if other.reign > own.reign:\n        return Verdict.GIVE_WAY\n",
            "    if other.reign.epoch > own.reign.epoch:\n        return Verdict.GIVE_WAY\n",
        ),
        profile="splits",
    ),
    mutant(
        "marks-are-told-once",
        "A mark that was lost with a connection is never told again.",
        (NODE, "            if entry.position < firsts[entry.topic]:\n", "            if False:\n"),
    ),
    mutant(
        "marks-go-with-the-journal",
        "What was delivered and forgotten is never told to a backup that has lost the mark (was here once).",
        (NODE, "        for position in range(mark, self.disk.start):\n", "        for position in range(0):\n"),
        profile="crashes",
    ),
    mutant(
        "told-too-early",
        "After a restart marks are told before everything is in its topic again (was here once).",
        (NODE, "        self.recovers_to = self.disk.end\n", "        self.recovers_to = 0\n"),
        profile="crashes",
    ),
    mutant(
        "waits-for-a-dead-connection",
        "A connection that died before anything was heard on it is never dialled again (was here once).",
        (
            NODE,
            "(since_ms := self.unanswered_since_ms) is not None and now_ms - since_ms > PATIENCE_MS",
            "False",
        ),
        profile="splits",
    ),
    mutant(
        "recognises-what-it-gave-away",
        "A message that was given away and comes back is taken for delivered (was here once).",
        (NODE, "stored.message_id == message_id and not self._is_void(stored)", "stored.message_id == message_id"),
        profile="everything",
    ),
    mutant(
        "places-of-both",
        "Places of two reigns in the same epoch are compared by number (was here once).",
        (
            NODE,
            "            if (self.disk.reign, entry.position) > last:\n",
            "            if (self.disk.reign.epoch, entry.position) > (last[0].epoch, last[1]):\n",
        ),
        profile="splits",
    ),
)
