"""A cluster that goes on while its nodes die one by one, down to the last: for those who prefer that to a majority.

While a majority is left, its leaders take the vote of a node that was silent for `shrink_after_ms`
(`consensus.letting_in`). Of the last two, neither is a majority, so the one that is left decides alone. It does so only
if the two had the same configuration when they were last linked. Otherwise the other one may have gone on alone while
this node was away, and may have messages that this one lacks. A group with two other voters waits for one of them, also
if this node is alone in the control group: those two may have acknowledged messages without it.

Two nodes that lose sight of each other both go on alone, and what one of them acknowledges then is lost. They must
never follow each other afterwards: a mark in `cluster.json` tells them apart (`formation.py`). The mark is on the disk,
and all links are dropped so that others hear of it first, before anything is written.

Crash cases, while the node goes on alone in one group after the other, the control group first:

- before the control group's configuration is saved: the node waits for the other one, as before;
- after it: a node that finds itself alone in the control group goes on alone in the other groups too, once the other
  node was silent for `shrink_after_ms` again. That needs no mark: only a voter of the control group goes on alone.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster import requests
from holdfast.backends.cluster.control import Control
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import MembersReply, Method
from holdfast.consensus.members import Members, MembersAt
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import HoldfastError, StorageFailed

log = structlog.get_logger("holdfast.cluster")

_ASK_S: Final = 1.0
# A node that was stopped for a while heard nothing meanwhile, so one look adds no more than this to the silence.
_LOOK_S_MAX: Final = 1.0
_decode_reply = msgspec.msgpack.Decoder(MembersReply).decode


class Shrinking:
    """Counts how long the other nodes are silent, and goes on without the last of them."""

    def __init__(self, after_ms: int | None, groups: Groups, control: Control, neighbours: Neighbours) -> None:
        self.is_on = after_ms is not None
        self._after_s = (after_ms or 0) / 1000
        self._groups = groups
        self._control = control
        self._neighbours = neighbours
        self._loop = asyncio.get_running_loop()
        self._looked_at_s = self._loop.time()
        self._silent_s: dict[str, float] = {}
        # The node that had this configuration too, the link it said so on, and the marks of other nodes then.
        self._agreed: tuple[str, int, MembersAt, frozenset[str]] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._trouble = ""

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    @property
    def is_agreed(self) -> bool:
        """Whether the last two nodes know the same configuration: without the other one, this one may go on."""
        return self._agreed is not None and self._agreed == self._agreement(self._agreed[0])

    def is_gone(self, node: str) -> bool:
        return self.is_on and self._silent_s.get(node, 0.0) >= self._after_s

    def look(self) -> None:
        """Called about once a second. Fewer calls only delay going on alone."""
        if not self.is_on or self._neighbours.is_outvoted:
            return
        now = self._loop.time()
        passed_s, self._looked_at_s = min(now - self._looked_at_s, _LOOK_S_MAX), now
        for node in set(self._neighbours.names) - {self._neighbours.node}:
            is_silent = not self._groups.is_heard(node)
            self._silent_s[node] = self._silent_s.get(node, 0.0) + passed_s if is_silent else 0.0
        others = self._others(self._control.replica)
        if others is None:
            return
        if not others:
            self._go_on_without([node for node in self._silent_s if self.is_gone(node)])
        elif len(others) == 1:
            self._look_at_the_other(*others)

    def _others(self, replica: Replica) -> set[str] | None:
        """The nodes that vote besides this one; `None` if this one has no vote."""
        raft = replica.raft
        return {node_of(each) for each in raft.members.voters - {raft.replica}} if raft.is_voter else None

    def _agreement(self, node: str) -> tuple[str, int, MembersAt, frozenset[str]]:
        """What must be as it was when the other node was asked. With a new mark, it may have gone on alone since."""
        members = self._control.replica.raft.members_history[-1]
        return node, self._neighbours.links_made[node], members, self._neighbours.marks_of_others

    def _look_at_the_other(self, node: str) -> None:
        agreed = self._agreement(node)
        if self._agreed == agreed:
            if self.is_gone(node):
                self._go_on_without([node])
        elif self._groups.is_heard(node) and (self._asking is None or self._asking.done()):
            self._asking = self._loop.create_task(self._ask(agreed))
            self._asking.add_done_callback(_notice)

    async def _ask(self, wanted: tuple[str, int, MembersAt, frozenset[str]]) -> None:
        reply = _decode_reply(await self._neighbours.request(wanted[0], Method.MEMBERS, b"", _ASK_S))
        if reply == _reply(wanted[2]):
            self._agreed = wanted

    def _go_on_without(self, gone: list[str]) -> None:
        """Be the only voter of every group in which just one of those votes too. What fails is tried again."""
        control = self._control.replica
        replicas = [each for each in self._groups.replicas.values() if self._is_left_by_one(each, gone)]
        able = [each for each in replicas if each.raft.leading is not None or each.raft.may_campaign]
        # The control group comes first, and where its disk is full, nothing else does.
        if not able or (control in replicas and control not in able) or self._groups.has_failed:
            return
        able.sort(key=lambda replica: replica is not control)
        try:
            if control in able:
                self._neighbours.go_on_alone()
            self._groups.take_over([each for each in able if each.raft.leading is None])
            led = [replica for replica in able if replica.raft.leading is not None]
            self._groups.change_members_now([(replica, _alone(replica)) for replica in led])
            self._trouble = ""
        except StorageFailed as error:
            # What the disk has is not known any more.
            self._groups.fail(error)
        except HoldfastError as error:
            if self._trouble != error.code:
                self._trouble = error.code
                log.error("cannot_go_on_alone", problem=error.message, hint="it is tried again")
        else:
            log.warning("alone", without=gone, groups=len(led), hint="what is acknowledged is on this node only")

    def _is_left_by_one(self, replica: Replica, gone: list[str]) -> bool:
        others = self._others(replica)
        return others is not None and len(others) == 1 and others <= set(gone)


def tell_members(control: Control) -> bytes:
    """What this node answers to `Method.MEMBERS`."""
    return requests.encode(_reply(control.replica.raft.members_history[-1]))


def _reply(at: MembersAt) -> MembersReply:
    return MembersReply(at.since, at.term, str(at.members))


def _alone(replica: Replica) -> Members:
    raft = replica.raft
    return Members(frozenset({raft.replica}), raft.members.everybody - {raft.replica})


def _notice(asking: asyncio.Task[None]) -> None:
    """It is asked again at the next look; a node of another build does not know the question."""
    if not asking.cancelled() and (error := asking.exception()) is not None:
        log.info("members_not_told", problem=str(error))
