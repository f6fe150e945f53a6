"""Damage that shows while a node runs is mended with what the other nodes have.

The bytes of a log may go bad long after they were written. Nothing that is damaged is served; the entries are
fetched from a node that has them, checked, and written where they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import EntriesReply, EntriesRequest, Method, encode
from holdfast.consensus.replica_names import node_of
from holdfast.model.entries import Entry
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import LogIndex, Term
from holdfast.storage.entries import BadEntry
from holdfast.storage.frames import Hole
from holdfast.storage.mending import mend
from holdfast.storage.segment import Segment

log = structlog.get_logger("holdfast.storage")

_REPLY_S: Final = 5.0
# What could not be mended is not tried again before this.
_AGAIN_S: Final = 2.0
_decode_reply = msgspec.msgpack.Decoder(EntriesReply).decode


class Mending:
    """Mends the logs of one node; what several ask for at once is done once."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._under_way: dict[Replica, asyncio.Task[bool]] = {}
        self._failed_s: dict[Replica, float] = {}

    async def mend(self, replica: Replica) -> bool:
        """Whether a log has no hole any more."""
        failed_s = self._failed_s.pop(replica, None)
        now = asyncio.get_running_loop().time()
        if failed_s is not None and now - failed_s < _AGAIN_S:
            self._failed_s[replica] = failed_s
            return False
        return await asyncio.shield(self.begin(replica))

    def begin(self, replica: Replica) -> asyncio.Task[bool]:
        task = self._under_way.get(replica)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._mend_all(replica))
            self._under_way[replica] = task
            task.add_done_callback(lambda _: self._under_way.pop(replica, None))
        return task

    async def stop(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _mend_all(self, replica: Replica) -> bool:
        for segment, hole in _holes(replica):
            if not await self._mend(replica, segment, hole):
                log.error(
                    "not_mended",
                    group=replica.name,
                    file=segment.path.name,
                    hint="no other node that has these entries can be asked now; it is tried again when they are read",
                )
                self._failed_s[replica] = asyncio.get_running_loop().time()
                return False
            log.warning(
                "mended", group=replica.name, file=segment.path.name, entries=hole.next_index - hole.first_index
            )
        replica.raft.may_campaign = not replica.disk_full
        return True

    async def _mend(self, replica: Replica, segment: Segment, hole: Hole) -> bool:
        for node in self._who_may_know(replica):
            try:
                entries = await self._fetched(replica, node, hole)
                if (segment, hole) not in _holes(replica):
                    return True  # retention was faster
                # On the loop, and it waits for the disk: it is rare, and others must not read meanwhile.
                mend(segment, hole, entries)
            except (HoldfastError, BadEntry) as error:
                log.info("cannot_mend_with", node=node, group=replica.name, problem=str(error))
            else:
                return True
        return False

    def _who_may_know(self, replica: Replica) -> Iterable[str]:
        nodes = {node_of(voter) for voter in replica.raft.members.voters} - {replica.node}
        return sorted((node for node in nodes if self._peers.is_up(node)), key=lambda node: node != replica.leader_node)

    async def _fetched(self, replica: Replica, node: str, hole: Hole) -> list[Entry]:
        entries: list[Entry] = []
        last = LogIndex(hole.next_index - 1)
        while (first := LogIndex(hole.first_index + len(entries))) <= last:
            request = encode(EntriesRequest(replica.group, first, last))
            reply = _decode_reply(await self._peers.request(node, Method.ENTRIES, request, _REPLY_S))
            if not reply.entries:
                raise BadEntry(f"{node} does not have entry {first}")
            entries += [Entry(Term(each.term), each.kind, each.payload) for each in reply.entries]
        return entries[: hole.next_index - hole.first_index]


def _holes(replica: Replica) -> list[tuple[Segment, Hole]]:
    """What can be mended in place: not the end of the file that is written to."""
    active = replica.log.active
    return [
        (segment, hole)
        for segment in replica.log.segments
        for hole in segment.holes
        if segment is not active or hole.end < segment.size
    ]
