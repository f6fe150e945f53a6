"""What is asked for about the nodes of a cluster: let one in, drain it, take it out, put one in another's place.

Everything is decided by the control log, so any node may be asked. Only whether a node can be spared is checked here,
with what is known now: the leaders of all groups are asked, each for its own. Should that change until the node is
taken out of a group, its leader waits (`consensus.letting_in`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from holdfast.backends.cluster import requests
from holdfast.backends.cluster.commands import ChangeMember, Command
from holdfast.backends.cluster.control import Control
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.peer_book import is_usable
from holdfast.backends.cluster.requests import JoinReply, MayLeaveReply, MayLeaveRequest, Method
from holdfast.backends.cluster.upkeep import Upkeep
from holdfast.consensus.membership import Change, Kind, Place
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.errors import BadValue, HoldfastError, NoQuorum, NotSupported
from holdfast.model.ids import TimestampMs
from holdfast.model.limits import CLUSTER_NODES_MAX
from holdfast.model.member_errors import NodeNameTaken, NodeRemoved, WouldLoseQuorum
from holdfast.model.names import NODE_NAME

_ANSWER_S: Final = 3.0
# An election takes less, also where a node has just gone.
_LEADERS_S: Final = 5.0
_LEADERS_PAUSE_S: Final = 0.1
# So many groups are named where a node cannot be spared.
_NAMED_MAX: Final = 3
# A name of a host has at most 253.
_ADDRESS_CHARACTERS_MAX: Final = 300
_decode_join = msgspec.msgpack.Decoder(requests.JoinRequest).decode
_decode_may_leave = msgspec.msgpack.Decoder(requests.MayLeaveRequest).decode
_decode_reply = msgspec.msgpack.Decoder(requests.MayLeaveReply).decode


class MembershipCalls:
    """Asked by other nodes and by people."""

    def __init__(
        self,
        groups: Groups,
        control: Control,
        state: ControlState,
        neighbours: Neighbours,
        upkeep: Upkeep,
        propose: Callable[[Command], asyncio.Future[None]],
        catch_up: Callable[[], Awaitable[None]],
        now_ms: Callable[[], TimestampMs],
        why_not: str | None,
    ) -> None:
        self._groups = groups
        self._control = control
        self._state = state
        self._neighbours = neighbours
        self._upkeep = upkeep
        self._propose = propose
        self._catch_up = catch_up
        self._now_ms = now_ms
        # Why nodes of this cluster cannot come and go.
        self._why_not = why_not

    # --- for nodes --------------------------------------------------------------------------------

    async def join(self, body: memoryview) -> bytes:
        """A node wants in. That it is let in, step by step, follows from what is decided here."""
        wanted = _decode_join(body)
        self._check_supported()
        membership, replicas = self._state.membership, self._control.replica.raft.members.everybody
        place = membership.place_of(wanted.node, replicas)
        if place not in (Place.JOINING, Place.VOTER):
            self._check_newcomer(wanted, was_removed=place is Place.REMOVED)
            # One that waits until another one has come or gone asks again and again: no entry for each.
            await self._check(Kind.JOIN, wanted.node)
            await self._change(Kind.JOIN, wanted.node, life=wanted.life, address=wanted.address)
        return requests.encode(JoinReply(self._addresses()))

    def _check_newcomer(self, wanted: requests.JoinRequest, *, was_removed: bool) -> None:
        node = wanted.node
        if not NODE_NAME.match(node):
            raise BadValue(f"a node is named with 1 to 64 letters, digits, '_' and '-', not {node[:60]!a}")
        if not NODE_NAME.match(wanted.life):
            raise BadValue(f"the life of a disk is 1 to 64 letters, digits, '_' and '-', not {wanted.life[:60]!a}")
        if not is_usable(wanted.address) or len(wanted.address) > _ADDRESS_CHARACTERS_MAX:
            raise BadValue(f"{node} does not say where others reach it; start it with --peer HOST:PORT")
        if self._state.membership.is_removed(replica_id(node, wanted.life)):
            raise NodeRemoved(f"{node} was taken out of this cluster with the disk it has; start it again with --join")
        if was_removed and not self._neighbours.known.wishes_to_join(node):
            # A new life, as after damage to its disk, is no wish of anybody's.
            raise NodeRemoved(f"{node} was taken out of this cluster; to have it back, start it with --join")
        life = self._neighbours.life_of(node)
        if life is None:
            raise BadValue(f"{node} has to ask for itself; start it with --join")
        if node == self._neighbours.node or life != wanted.life:
            raise NodeNameTaken(f"another node goes by the name {node}, and is up; give this one a name of its own")
        if len(self._neighbours.names) >= CLUSTER_NODES_MAX:
            raise NotSupported(f"a cluster has at most {CLUSTER_NODES_MAX} nodes")

    def _addresses(self) -> dict[str, str]:
        known = {node: row.addresses.get("peer", "") for node, row in self._state.nodes.items()}
        known[self._neighbours.node] = self._neighbours.addresses.get("peer", "")
        return {node: address for node, address in known.items() if is_usable(address)}

    async def may_leave(self, body: memoryview) -> bytes:
        return requests.encode(self._may_leave_here(_decode_may_leave(body).node))

    def _may_leave_here(self, node: str) -> MayLeaveReply:
        led = [replica for replica in self._groups.replicas.values() if replica.raft.leading is not None]
        lacking = [replica.name for replica in led if not self._upkeep.can_spare(replica, node)]
        return MayLeaveReply(len(led), lacking[:_NAMED_MAX])

    # --- for people -------------------------------------------------------------------------------

    async def remove(self, node: str, *, undo: bool = False) -> None:
        """Have a node leave, or stay after all. Raises `NodeNotFound`, `WouldLoseQuorum`, `MembershipChanging`."""
        if len(self._neighbours.names) == 1:
            await self._check(Kind.LEAVE, node)  # whyever nodes cannot leave here: the last one cannot anyway
        self._check_supported()
        if undo:
            await self._check(Kind.KEEP, node)
            await self._change(Kind.KEEP, node)
            return
        await self._check(Kind.LEAVE, node)
        await self._check_can_be_spared(node)
        await self._change(Kind.LEAVE, node)

    async def drain(self, node: str, *, undo: bool = False) -> None:
        kind = Kind.UNDRAIN if undo else Kind.DRAIN
        await self._check(kind, node)
        await self._change(kind, node)

    async def replace(self, old: str, new: str) -> None:
        self._check_supported()
        await self._check(Kind.REPLACE, new, old)
        if self._state.membership.place_of(new, self._control.replica.raft.members.everybody) is Place.VOTER:
            await self._check_can_be_spared(old)
        await self._change(Kind.REPLACE, new, other=old)

    def _check_supported(self) -> None:
        if self._why_not is not None:
            raise NotSupported(self._why_not)

    async def _check(self, kind: Kind, node: str, other: str = "") -> None:
        """Before the others are asked: what the control log would refuse anyway, as far as it is decided by now."""
        await self._catch_up()
        membership, replicas = self._state.membership, self._control.replica.raft.members.everybody
        change = Change(kind, node, membership.number_of(node), self._now_ms(), other)
        if (refusal := membership.refusal(change, replicas)) is not None:
            raise refusal

    async def _change(self, kind: Kind, node: str, *, other: str = "", life: str = "", address: str = "") -> None:
        expects = self._state.membership.number_of(node)
        await self._propose(ChangeMember(kind, node, expects, self._now_ms(), other, life, address))

    async def _check_can_be_spared(self, node: str) -> None:
        """Raises `WouldLoseQuorum`, and `NoQuorum` where nobody can tell."""
        told = await self._ask_leaders(node)
        lacking = [name for reply in told for name in reply.lacking]
        if lacking:
            rest = sorted({node_of(voter) for voter in self._control.replica.raft.members.voters} - {node})
            away = [each for each in rest if not self._neighbours.is_up(each)]
            who = f"{', '.join(away)} cannot be reached" if away else "some of them do not have everything yet"
            raise WouldLoseQuorum(
                f"without {node}, the rest ({', '.join(rest)}) would be no majority that has everything of "
                f"{', '.join(lacking[:_NAMED_MAX])}: {who}; start or add nodes first"
            )

    async def _ask_leaders(self, node: str) -> list[MayLeaveReply]:
        """Until every group has a leader that answers: those that are being spread are between two nodes now and then.

        Raises `NoQuorum` where that takes too long.
        """
        deadline = asyncio.get_running_loop().time() + _LEADERS_S
        while True:
            names = [each for each in self._neighbours.names if self._neighbours.is_up(each)]
            replies = await asyncio.gather(*(self._ask(each, node) for each in names))
            told = [reply for reply in replies if reply is not None]
            if sum(reply.led for reply in told) >= len(self._groups.replicas):
                return told
            if asyncio.get_running_loop().time() > deadline:
                raise NoQuorum("not every partition has a leader that answers now; try again in a moment")
            await asyncio.sleep(_LEADERS_PAUSE_S)

    async def _ask(self, node: str, leaver: str) -> MayLeaveReply | None:
        if node == self._neighbours.node:
            return self._may_leave_here(leaver)
        body = requests.encode(MayLeaveRequest(leaver))
        try:
            return _decode_reply(await self._neighbours.request(node, Method.MAY_LEAVE, body, _ANSWER_S))
        except (HoldfastError, msgspec.MsgspecError):
            return None  # what it leads is missing in the sum
