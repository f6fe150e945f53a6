"""The bugs of a pair that are planted: each a name, what is wrong with it, and the exact text that is changed.

Those that end in "(was here once)" are bugs the simulator found in the real code.
"""

from __future__ import annotations

from simulation.planted import LEADING, RAFT, mutant

ROLES = "holdfast.consensus.roles"
PARTNER = "holdfast.consensus.partner"
NODE = "simulation.pair_node"
REPLICA = "simulation.pair_replica"
LETTING_IN = "holdfast.consensus.letting_in"
REJOINING = "simulation.pair_rejoining"


_TAKING_OVER = (
    mutant(
        "terms-of-both",
        "Each of two takes over in the next term, whosever that is.",
        (ROLES, "return Term(term + 1 + (term + 1 + seat) % 2)", "return Term(term + 1)"),
    ),
    mutant(
        "leads-but-is-not-alone",
        "Who takes over does not write that it is alone.",
        (NODE, "        if together:\n", "        if together and not followed:\n"),
        (NODE, "elif self._watch.is_away or self._is_somebody_else():", "elif self._is_somebody_else():"),
    ),
    mutant(
        "alone-before-the-disk",
        "One that is alone acknowledges what is not on its disk, nor that it is alone.",
        (
            LEADING,
            "match[raft.replica] = raft.durable",
            "match[raft.replica] = raft.shape.last_index if self._is_alone else raft.durable",
        ),
    ),
    mutant(
        "alone-unsaved",
        "The configuration of who is alone is not saved before it is written.",
        (NODE, "            replica.save_members_now(members)\n", "            pass\n"),
    ),
    mutant(
        "learner-takes-over",
        "One that does not vote yet takes over.",
        (
            NODE,
            "if not all(replica.raft.is_voter and replica.raft.may_campaign for replica in followed):",
            "if False:",
        ),
        (
            RAFT,
            "if not self.is_voter or not self.may_campaign or self.leading is not None or self._takes_over:",
            "if not self.may_campaign or self.leading is not None or self._takes_over:",
        ),
        (
            RAFT,
            "if self.role is not wanted or reply.term != asked_for or sender not in self.members.voters:",
            "if self.role is not wanted or reply.term != asked_for:",
        ),
    ),
    mutant(
        "takes-over-some-groups",
        "One that votes in some groups takes over those and leaves the others to nobody (was here once).",
        (
            NODE,
            "if not all(replica.raft.is_voter and replica.raft.may_campaign for replica in followed):",
            "followed = [replica for replica in followed if replica.raft.is_voter]\n        if False:",
        ),
    ),
    mutant(
        "half-alone",
        "A crash while it went alone leaves it alone in some groups only (was here once).",
        (
            NODE,
            "        if any(replica.is_alone for replica in self.replicas.values()):\n"
            "            self.elect_without_others()\n"
            "            self._go_on()\n",
            "        if self.replicas[CONTROL].is_alone:\n            self.elect_without_others()\n",
        ),
        profile="moments",
    ),
    mutant(
        "never-outbids",
        "One that is alone and hears of a later term leads no more.",
        (NODE, "            if was_leading and replica.raft.leading is None:\n", "            if False:\n"),
        profile="moments",
    ),
    mutant(
        "own-pause",
        "One that stood still takes that for the other's silence.",
        (
            PARTNER,
            "            self.heard_at_s = now_s\n        self._looked_at_s",
            "            pass\n        self._looked_at_s",
        ),
    ),
    mutant(
        "never-gone",
        "A partner that is silent is waited for, for ever.",
        (
            PARTNER,
            "return now_s - self._silent_since_s(now_s) > self.settings.patience_s and self._gone()",
            "return False",
        ),
    ),
    mutant(
        "somebody-else-unnoticed",
        "A partner that is back with another disk is waited for under its old name (was here once).",
        (NODE, "elif self._watch.is_away or self._is_somebody_else():", "elif self._watch.is_away:"),
    ),
)

_GIVING_WAY = (
    mutant(
        "just-follows",
        "One that was alone follows who leads in a later term, and cuts its log.",
        (PARTNER, "return self.is_alone and other.is_alone and self.term < other.term", "return False"),
        (NODE, "if replica is not None and self._is_replaced_by(replica, message):", "if replica is None:"),
    ),
    mutant(
        "nobody-gives-way",
        "Two that were both alone refuse each other for ever.",
        (
            NODE,
            "        if own.yields_to(other):\n            self.on_replaced()\n",
            "        if own.yields_to(other):\n",
        ),
    ),
    mutant(
        "goes-on-when-replaced",
        "One that gives way still answers until it has stopped, and outbids who took over (was here once).",
        (NODE, "if not self.is_serving or self.is_replaced:", "if not self.is_serving:"),
        (NODE, '        if self.is_replaced:\n            return f"n{self.number} begins anew"\n', ""),
        profile="meetings",
    ),
)

_GIVING = (
    mutant(
        "gives-nothing",
        "One that was replaced throws its logs away.",
        (
            REJOINING,
            "        self._waiting = self._messages()\n        self._give(",
            "        self._waiting = []\n        self._give(",
        ),
    ),
    mutant(
        "gives-without-ids",
        "What is given has no ids.",
        (REJOINING, "batch.message_id or made_id(group, entry)", '""'),
    ),
    mutant(
        "gives-what-had-no-id-without-one",
        "What came without an id is given without one.",
        (REJOINING, "batch.message_id or made_id(group, entry)", "batch.message_id"),
        profile="moments",
    ),
    mutant(
        "forgets-what-was-under-way",
        "Only what was written behind the note of being alone is given (was here once).",
        (
            REJOINING,
            "            first = self._first_of_its_own(store, self._node.other.stores.get(group))\n",
            "            first = store.hard_state.members[-1].since + 1\n",
        ),
    ),
    mutant(
        "gives-all-of-it-again",
        "One that gives way does not look at what the other one has, and relies on its dedupe window (was here once).",
        (REJOINING, "theirs = self._ids_of_the_other()", "theirs = set()"),
    ),
    mutant(
        "given-too-early",
        "It is noted that everything was given before it was.",
        (
            REJOINING,
            '        node.reached("giving")\n',
            '        node.reached("giving")\n        node.is_given = True\n',
        ),
    ),
    mutant(
        "keeps-its-name",
        "One that threw its logs away comes back under its name.",
        (
            NODE,
            "        self.stores.clear()\n        self.life += 1\n        self.is_replaced",
            "        self.stores.clear()\n        self.is_replaced",
        ),
    ),
    mutant(
        "terms-again",
        "A new life leads in terms of an earlier one, whose ids have them in it (was here once).",
        (NODE, "        self.terms |= {group: store.hard_state.term for group, store in self.stores.items()}\n", ""),
    ),
)

_LETTING_IN = (
    mutant(
        "votes-too-early",
        "A partner that is back votes before it has everything.",
        (
            LETTING_IN,
            "return progress is not None and progress.match >= max(LogIndex(0), self._decided.get(raft, raft.commit))",
            "return progress is not None",
        ),
    ),
    mutant(
        "never-let-in",
        "A partner that is back is not let in.",
        (LETTING_IN, "or self._with_partner(raft, partner)", ""),
    ),
)

PAIR_MUTANTS = (*_TAKING_OVER, *_GIVING_WAY, *_GIVING, *_LETTING_IN)
