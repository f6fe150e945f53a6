"""Two nodes without a third: who of them serves when the other is gone.

A pair is a cluster of two in which nobody is asked for a majority. While both are there, the one that leads
acknowledges what both have. When its partner is gone, the one that is left goes on alone: a leader writes
into every group that it is the only voter from here on, and a follower takes the lead first, in a term that only
it can have. Whoever comes back is let in as a learner, and counts again when it has everything.

*Gone* means: its connection broke and it refuses a new one, which is known within a moment; or nothing was heard of
it for `misses` times `heartbeat_s`. Two nodes that cannot see each other both go on alone. When they meet again, the
one in the later term stays (`Standing.yields_to`); the other gives what only it has to the first, and begins anew.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

from holdfast.backends.cluster.control import CONTROL
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.replica import Replica
from holdfast.consensus.members import Members
from holdfast.consensus.partner import PairSettings, PartnerWatch, Standing
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.errors import HoldfastError, LeaderChanged, StorageFailed, Unavailable
from holdfast.model.ids import Term

log = structlog.get_logger("holdfast.pair")

# So often is looked whether the partner was heard.
_LOOK_S: Final = 0.05
# While it is away, so often is looked for groups that are not alone yet.
_AGAIN_S: Final = 0.25


class Surroundings(Protocol):
    """What a pairing needs of the node it is on."""

    node: str

    @property
    def names(self) -> list[str]: ...

    def drop_link(self, node: str, reason: str) -> None: ...

    def life_of(self, node: str) -> str | None: ...

    def give_way(self) -> None: ...


class Pairing:
    """Watches the partner of a node, and has the groups of this one go on without it."""

    def __init__(self, settings: PairSettings, groups: Groups, neighbours: Surroundings) -> None:
        (self.partner,) = set(neighbours.names) - {neighbours.node}
        self.settings = settings
        # How often this node had to take the lead, and how long nobody led before it did.
        self.failovers = 0
        self.last_gap_s = 0.0
        self._groups = groups
        self._neighbours = neighbours
        self._loop = asyncio.get_running_loop()
        self._watch = PartnerWatch(settings, self._loop.time())
        self._went_on_s = 0.0
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_away(self) -> bool:
        return self._watch.is_away

    @property
    def standing(self) -> Standing:
        raft = self._groups.replicas[CONTROL].raft
        return Standing(raft.term, raft.members.voters == {raft.replica})

    def check_backup(self, replica: Replica) -> None:
        """Raises `Unavailable` where a backup is required, and a group has none."""
        if (problem := self.problem(replica)) is not None:
            raise Unavailable(problem)

    def problem(self, replica: Replica) -> str | None:
        """Why a group takes nothing, where a backup is required."""
        if self.settings.requires_backup and replica.raft.members.voters == {replica.raft.replica}:
            return f"there is no backup, and one is required: {self.partner} is away or not ready yet"
        return None

    def start(self) -> None:
        if self.standing.is_alone:
            self._say_alone(self.standing.term, took_over=False)
        self._task = self._loop.create_task(self._look_on())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- hearing of it ----------------------------------------------------------------------------------

    def on_up(self) -> None:
        self._is_back(self._watch.linked(self._loop.time()))

    def on_down(self) -> None:
        self._watch.unlinked()

    def on_heard(self) -> None:
        self._is_back(self._watch.heard(self._loop.time()))

    def _is_back(self, was_away: bool) -> None:
        if was_away:
            log.info("partner_is_back", partner=self.partner)

    def on_refused(self) -> None:
        if self._watch.refused():
            self._is_gone("it refuses connections")

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._loop.time()
            if self._watch.look(now):
                self._is_gone(f"nothing was heard of it for {now - self._watch.heard_at_s:.1f} s")
            elif now - self._went_on_s > _AGAIN_S and (self._watch.is_away or self._is_somebody_else()):
                # Some may have failed, or been made since.
                self._go_on()

    def meets_another_leader(self, replica: Replica) -> None:
        """The control group decides who gives way; for others the two have to say anew how they stand."""
        if replica.group == CONTROL:
            self._neighbours.give_way()
        else:
            self._neighbours.drop_link(self.partner, f"both lead {replica.name}")

    # --- going on without it ----------------------------------------------------------------------------

    def _is_gone(self, why: str) -> None:
        log.warning("partner_is_gone", partner=self.partner, why=why)
        # When it comes back, both say anew how they stand.
        self._neighbours.drop_link(self.partner, "it was silent for too long")
        self._go_on()

    def _go_on(self) -> None:
        """Take the lead where the partner had it, and be alone in every group. What fails is tried again."""
        if self._groups.has_failed:
            return
        self._went_on_s = self._loop.time()
        try:
            self._take_over_and_be_alone()
            self._trouble = ""
        except StorageFailed as error:
            # What the disk has is not known any more: to try again would be to hope.
            self._groups.fail(error)
        except HoldfastError as error:
            if self._trouble != error.code:
                self._trouble = error.code
                log.error("cannot_go_on_alone", problem=error.message, hint="it is tried again")

    def go_on_as_before(self) -> None:
        """At start: who was alone in one group had gone on alone, and was stopped before it was so in all."""
        if any(map(_is_alone, self._groups.replicas.values())):
            self._go_on()

    def _is_somebody_else(self) -> bool:
        return any(map(self._waits_for_a_lost_disk, self._groups.replicas.values()))

    def _waits_for_a_lost_disk(self, replica: Replica) -> bool:
        """The partner is there, but what a group knows of it is a disk it no longer has: that one is gone for good."""
        life = self._neighbours.life_of(self.partner)
        members = replica.raft.members.everybody
        if life is None:
            return False
        known = [life_of(each) for each in members if node_of(each) == self.partner]
        return any(each != life for each in known)

    def _take_over_and_be_alone(self) -> None:
        replicas = list(self._groups.replicas.values())
        if any(not replica.raft.is_voter for replica in replicas):
            # It does not have everything: what it lacks, only the partner has.
            return
        if not self._watch.is_away and self._is_somebody_else():
            replicas = [replica for replica in replicas if self._waits_for_a_lost_disk(replica)]
        followed = [replica for replica in replicas if replica.raft.leading is None]
        able = [replica for replica in followed if replica.raft.may_campaign]
        if able:
            self._groups.take_over(able)
        together = [
            replica
            for replica in replicas
            if replica.raft.leading is not None and replica.raft.members.everybody != {replica.raft.replica}
        ]
        if not together:
            return
        if self.settings.requires_backup:
            for replica in together:
                replica.audience.refuse_appends(LeaderChanged("the backup was lost before it was known to have this"))
        self._groups.change_members_now([(replica, Members(frozenset({replica.raft.replica}))) for replica in together])
        for replica in together:
            if replica.group == CONTROL:
                if replica in followed:
                    self.failovers += 1
                    self.last_gap_s = self._loop.time() - self._watch.heard_at_s
                self._say_alone(replica.raft.term, took_over=replica in followed)

    def _say_alone(self, epoch: Term, *, took_over: bool) -> None:
        hint = "nothing is taken until the other is back" if self.settings.requires_backup else "stored here only"
        log.warning("alone", partner=self.partner, epoch=epoch, took_over=took_over, hint=hint)


def _is_alone(replica: Replica) -> bool:
    return replica.raft.members.voters == {replica.raft.replica}
