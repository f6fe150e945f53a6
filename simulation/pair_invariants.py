"""What must hold of a pair whatever goes wrong.

Of two there is no single history: while they do not see each other, each has its own. So what is written down here
is what each replica has shown under its name, which it may never take back, and what anybody was told, which must be
with both in the end, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.consensus.members import Members, ReplicaId
from holdfast.model.entries import KIND_BATCH, Entry
from holdfast.model.ids import LogIndex, Term
from simulation.disk import Store
from simulation.invariants import Checker
from simulation.pair_replica import PairReplica
from simulation.replica import Replica
from simulation.state import Batch, offset_behind
from simulation.world import Violation, World

if TYPE_CHECKING:
    from simulation.pair_node import PairNode

GROUPS_MAX = 4
# So long before it is seen a pause may have ended, and so much may be missing of what was waited for.
LOOK_MS = 60.0


def names_in(store: Store) -> list[str]:
    """The messages that would be there behind a crash, in order."""
    return [Batch.decode(entry.payload).name for entry in store.synced.entries if entry.kind == KIND_BATCH]


class PairChecker(Checker):
    """Reuses what is true of any two replicas: votes, promises, members that follow from the log."""

    def __init__(self, world: World) -> None:
        super().__init__(world, GROUPS_MAX, keep_entries=0)
        self.pair: list[PairNode] = []
        self.told: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self._reigns: dict[tuple[int, Term], ReplicaId] = {}
        self._shown: dict[tuple[int, ReplicaId], list[Entry]] = {}
        self._decided_at_last_look: dict[Replica, LogIndex] = {}

    # --- as it happens ------------------------------------------------------------------------------

    def elected(self, replica: Replica) -> None:
        self._world.counts["reigns"] += 1
        if self._world.is_traced:
            self._world.note(f"{replica.label} LEADS in term {replica.raft.term}, members {replica.raft.members}")
        other = self._reigns.setdefault((replica.group, replica.raft.term), replica.name)
        if other != replica.name:
            raise Violation("one leader per term", f"{replica.label} and {other} in term {replica.raft.term}")

        # What it knew as a follower was committed by somebody else.
        self._commits[replica.group, replica.name, replica.raft.term] = replica.raft.commit
        if not replica.raft.is_voter:
            raise Violation("who leads votes", f"{replica.label} in term {replica.raft.term}: {replica.raft.members}")

    def committed(self, replica: Replica) -> None:
        """What a leader takes for committed is on the disks of all voters: two of two, or one of one."""
        commit, log = replica.raft.commit, replica.store.log
        key = replica.group, replica.name, replica.raft.term
        if commit <= self._commits.get(key, -1):
            return
        self._commits[key] = commit
        if not replica.store.synced.has(commit, log.at(commit)):
            raise Violation("committed is what all voters have", f"{replica.label} entry {commit} is not on its disk")
        if replica.raft.members.voters == {replica.name}:
            if not replica.store.is_synced(self._alone_since(replica)):
                # Behind a crash it would not know that it was alone, and follow whoever leads.
                raise Violation("alone is who has that on its disk", f"{replica.label} committed {commit} before")
            return
        for node in self.pair:
            store = node.stores.get(replica.group)
            is_voter = node.name in replica.raft.members.voters and not node.is_replaced
            if is_voter and (store is None or not store.synced.has(commit, log.at(commit))):
                raise Violation("committed is what all voters have", f"{replica.label} entry {commit}, not {node.name}")

    def _alone_since(self, replica: Replica) -> LogIndex:
        """Where it was written that it is the only voter; whoever came to listen since changes nothing."""
        since = replica.raft.members_index
        for at in reversed(replica.raft.members_history):
            if at.members.voters != {replica.name}:
                break
            since = at.since
        return since

    def members_change(self, replica: Replica, members: Members) -> None:
        """A leader is about to write that: who votes from now on has everything but what came since the last look."""
        super().members_change(replica, members)
        commit = max(LogIndex(0), self._decided_at_last_look.get(replica, replica.raft.commit))
        for node in self.pair:
            store = node.stores.get(replica.group)
            is_new = node.name in members.voters - replica.raft.members.voters
            if is_new and (store is None or not store.synced.has(commit, replica.store.log.at(commit))):
                raise Violation("who votes has everything", f"{replica.label} entry {commit}, not {node.name}")

    def looked_after(self, replicas: Iterable[Replica]) -> None:
        """A node has looked at its groups, to let its partner in where that keeps up."""
        self._decided_at_last_look.update({replica: replica.raft.commit for replica in replicas})

    def shown(self, replica: Replica, first: int, entries: Sequence[Entry]) -> None:
        """What a replica has shown it shows for as long as it has that name."""
        if replica.store.synced.last_index < first + len(entries) - 1:
            raise Violation("nothing is shown that could be forgotten", f"{replica.label} entry {first}")
        saved = replica.store.synced_hard_state.term
        if any(entry.term > saved for entry in entries):
            raise Violation("nothing is shown that could be forgotten", f"{replica.label} shows a term after {saved}")
        shown = self._shown.setdefault((replica.group, replica.name), [])
        for index, entry in enumerate(entries, first):
            if index < len(shown):
                if shown[index] != entry:
                    detail = f"{replica.label} entry {index}: {entry}, was {shown[index]}"
                    raise Violation("nothing that was shown is taken back", detail)
                continue
            behind = offset_behind(shown[-1]) if shown else 0
            begins = Batch.decode(entry.payload).base_offset if entry.kind == KIND_BATCH else offset_behind(entry)
            if begins != behind:
                raise Violation("offsets have no gaps", f"{replica.label} entry {index} at {begins}, not {behind}")
            shown.append(entry)
            if entry.kind == KIND_BATCH:
                self.seen[Batch.decode(entry.payload).name] = replica.group

    def members_follow(self, replica: Replica) -> None:
        """Called when a log was cut or opened, too: it still has what was shown."""
        super().members_follow(replica)
        log = replica.store.log
        for index, entry in enumerate(self._shown.get((replica.group, replica.name), ())):
            if not log.has(index, entry):
                raise Violation("nothing that was shown is taken back", f"{replica.label} lost entry {index}: {entry}")

    def threw_away(self, node: PairNode) -> None:
        """Whoever begins anew has given what it showed before."""
        for (group, name), shown in self._shown.items():
            if name != node.name:
                continue
            store = node.other.stores.get(group)
            there = set() if store is None else set(names_in(store))
            for entry in shown:
                if entry.kind == KIND_BATCH and Batch.decode(entry.payload).name not in there:
                    detail = f"group {group} {name}: {Batch.decode(entry.payload)} is not with n{node.partner}"
                    raise Violation("nothing is thrown away that was not given", detail)

    def lost_disk(self, node: PairNode) -> None:
        """What it did that nobody heard of never was: others were promised nothing by it."""
        self._reigns = {key: name for key, name in self._reigns.items() if name != node.name}

    def was_silent(self, node: PairNode) -> None:
        """It takes its partner for gone: it must have listened for as long as it should."""
        awake_ms = node.world.now_ms - node.thawed_ms
        if awake_ms < node.settings.patience_s * 1000 - LOOK_MS:
            raise Violation("one's own pause is not the other's silence", f"n{node.number} awake for {awake_ms:.0f} ms")

    def told_publisher(self, name: str, group: int) -> None:
        self._world.counts["messages acknowledged"] += 1
        self.told[name] = group

    # --- in the end ---------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        """Why the pair is not in order yet."""
        for node in self.pair:
            if not node.is_serving or node.is_replaced:
                return f"n{node.number} does not serve"
        first, second = self.pair
        if set(first.replicas) != set(second.replicas):
            return f"groups are {sorted(first.replicas)} and {sorted(second.replicas)}"
        for group in sorted(first.replicas):
            replicas = [first.replicas[group], second.replicas[group]]
            reason = self._unsettled_group(replicas)
            if reason is not None:
                return f"group {group}: {reason}"
        return None

    def unsettled_members(self) -> str | None:
        """Why not both of them vote in every group yet."""
        for node in self.pair:
            if not node.is_serving or len(node.replicas) < 2:
                return f"n{node.number} does not serve"
            for replica in node.replicas.values():
                if len(replica.raft.members.voters) != 2:
                    return f"{replica.label} goes by {replica.raft.members}"
        return None

    def _unsettled_group(self, replicas: list[PairReplica]) -> str | None:
        names = {replica.name for replica in replicas}
        leaders = [replica for replica in replicas if replica.raft.leading is not None]
        if len(leaders) != 1:
            return f"{len(leaders)} lead"
        for replica in replicas:
            if replica.raft.members.voters != names or replica.raft.members.learners:
                return f"{replica.name} goes by {replica.raft.members}"
            last = leaders[0].store.log.last_index
            if replica.applied != last or replica.store.log.last_index != last:
                return f"{replica.name} shows {replica.applied} of {last}"
        return None

    def check_everything_is_there(self) -> None:
        """Of a pair that is in order: both have the same, and everything that anybody was told, once."""
        first, second = self.pair
        for group in sorted(first.replicas):
            logs = [node.replicas[group].store.synced.entries for node in (first, second)]
            if logs[0] != logs[1]:
                raise Violation("both have the same in the end", f"group {group}")
            counts = Counter(names_in(first.stores[group]))
            for promises in (self.told, self.seen):
                for name, there in promises.items():
                    if there == group and not counts[name]:
                        what = "acknowledged" if promises is self.told else "shown"
                        raise Violation("nothing that was promised is lost", f"group {group}: {name} was {what}")
            for name, count in counts.items():
                if count > 1:
                    raise Violation("nothing is there twice", f"group {group}: {name} {count} times")
