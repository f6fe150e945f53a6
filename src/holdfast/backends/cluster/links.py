"""How the nodes of a cluster reach each other: two connections for each pair of nodes, one made by either.

What a node sends goes through the connection it made itself, replies come back on it; a connection that was
accepted is for receiving. So nobody has to agree on which of two connections counts. In a picture of n1 and n2::

    n1 ── HELLO, RAFT, REQUEST ──▶ n2        made by n1; n2 answers HELLO, REPLY
    n1 ◀── HELLO, RAFT, REQUEST ── n2        made by n2; n1 answers HELLO, REPLY

A link is up while the connection this node made is, and both sides are content with each other's HELLO. It is lost
when either connection is: that a peer's own connection broke is the first sign that its process is gone. A new
connection of a peer takes the place of its old one; if its process is another one, the link is lost too.

`send` promises nothing: messages are lost with the link, and dropped while the link is down or 64 MiB wait to be
sent. In the latter case everything is dropped until half of that is gone, then `on_dropped` is called once, with the
groups that lost something: what is sent from then on arrives, so their leaders probe their followers there anew
(`Leading.lost_link`).

A peer that is silent is not lost, `on_heard` tells how silent. But a connection on which nothing comes for
`silence_s`, or nothing that was sent is acknowledged, is closed, so that a new one can be tried: after a split of
the network the kernel would wait long before it tries the old one again. Requests to a leader do not wait that long:
they fail as soon as another node leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.backends.cluster.link_accepted import AcceptedConnection
from holdfast.backends.cluster.link_context import LinkContext, LinkEvents, LinkTiming
from holdfast.backends.cluster.link_dialed import Link, split_address
from holdfast.consensus.messages import Message
from holdfast.model.errors import LeaderChanged, Unavailable
from holdfast.model.limits import PEER_STRANGERS_MAX, PEERS_MAX
from holdfast.wire.peer import Buffer, Hello

# So often within `silence_s` is looked for connections on which nothing came.
_LOOKS_PER_SILENCE: Final = 4
# How often to check whether the leaders that were asked still lead. A request fails at the third check that finds
# another leader; by then, an answer that was on its way has arrived.
_LEADER_LOOK_S: Final = 0.1
_LEADER_LOOKS: Final = 3


class PeerLinks:
    """All links of one node."""

    def __init__(self, hello: Callable[[], Hello], events: LinkEvents, timing: LinkTiming | None = None) -> None:
        self._context = LinkContext(hello, events, timing or LinkTiming())
        self.dialed: dict[str, Link] = {}
        self.accepted: dict[str, tuple[Hello, AcceptedConnection]] = {}
        self.strangers: set[AcceptedConnection] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._look: asyncio.TimerHandle | None = None
        # Replies to wait for while the node that was asked leads, and how many checks in a row found another leader.
        self._of_leaders: dict[asyncio.Future[memoryview], tuple[str, Callable[[], bool]]] = {}
        self._looks_without_lead: dict[asyncio.Future[memoryview], int] = {}
        self._leader_look: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._is_stopped = False

    # --- beginning and end ------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where, which is news if `port` is 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: AcceptedConnection(self._context, self), host, port)
        self._looked_at = loop.time()
        self._look_for_silence()
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def set_peers(self, peers: Mapping[str, str | tuple[str, ...]]) -> None:
        """Keep links to these nodes, by `host:port`, and to no others. Raises `BadValue` for a bad address.

        Where a node has several addresses, one after the other is tried.
        """
        own = self._context.hello().node
        wanted = {node: (found,) if isinstance(found, str) else found for node, found in peers.items() if node != own}
        for addresses in wanted.values():
            for address in addresses:
                split_address(address)
        for node, link in list(self.dialed.items()):
            found = wanted.get(node, ())
            # One that is up where it is still wanted stays up, whatever other addresses there are.
            if link.address in found and (link.up is not None or link.addresses == found):
                link.addresses = found
            else:
                del self.dialed[node]
                link.drop("no longer wanted")
                self._stop_later(link)
        for node, addresses in wanted.items():
            if node not in self.dialed and not self._is_stopped:
                self.dialed[node] = Link(self._context, node, addresses)

    def _stop_later(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(link.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def stop(self) -> None:
        """Close everything. Requests that are under way fail, handlers that answer one are cancelled."""
        self._is_stopped = True
        if self._look is not None:
            self._look.cancel()
        if self._server is not None:
            self._server.close()
        self.set_peers({})
        connections = [*self.strangers, *(connection for _, connection in self.accepted.values())]
        await asyncio.gather(*(connection.stopped() for connection in connections), *self._stopping)
        if self._server is not None:
            await self._server.wait_closed()

    # --- what a node does with its links ------------------------------------------------------------------------

    def send(self, node: str, group: int, message: Message) -> None:
        """Queue a message; it leaves at the end of this turn of the loop, or is dropped and counted.

        Nobody may change its payloads any more. Raises `TooLarge` for a message that no peer would take.
        """
        link = self.dialed.get(node)
        connection = None if link is None else link.up
        if connection is None:
            self._context.dropped_messages += 1
        else:
            connection.send(group, message)

    async def request(
        self, node: str, method: int, body: Buffer, timeout_s: float, leads: Callable[[], bool] | None = None
    ) -> memoryview:
        """Ask and wait for the reply. Raises what the peer refused with.

        Raises `Unavailable` if the link is down, breaks or is full, or nothing comes in time; but for a link that
        was down or full, the peer may have done what was asked all the same. With `leads`, which says whether the peer
        still leads as far as this node knows, raises `LeaderChanged` when it does not any more and is silent.
        """
        link = self.dialed.get(node)
        connection = None if link is None else link.up
        if connection is None:
            raise Unavailable(f"there is no link to {node}")
        reply = connection.request(method, body)
        if leads is not None:
            self._of_leaders[reply] = node, leads
            if self._leader_look is None:
                self._leader_look = asyncio.get_running_loop().call_later(_LEADER_LOOK_S, self._look_at_leaders)
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise Unavailable(f"{node} did not answer within {timeout_s:g} s") from None
        finally:
            self._of_leaders.pop(reply, None)

    def _look_at_leaders(self) -> None:
        """A leader that hangs does not answer, and its link breaks late: by then, another one may lead for long."""
        before, self._looks_without_lead = self._looks_without_lead, {}
        for reply, (node, leads) in self._of_leaders.items():
            if not leads() and not reply.done():
                looks = self._looks_without_lead[reply] = before.get(reply, 0) + 1
                if looks >= _LEADER_LOOKS:
                    reply.set_exception(LeaderChanged(f"{node} did not answer, and another node leads now"))
        self._leader_look = None
        if self._of_leaders:
            self._leader_look = asyncio.get_running_loop().call_later(_LEADER_LOOK_S, self._look_at_leaders)

    def drop(self, node: str, reason: str) -> None:
        """Connect anew, either way, so that both sides say again who they are."""
        link = self.dialed.get(node)
        if link is not None:
            link.drop(reason)
        if node in self.accepted:
            self.accepted[node][1].end(reason)

    @property
    def hello(self) -> Hello:
        """What this node says of itself now."""
        return self._context.hello()

    @property
    def names(self) -> list[str]:
        """The nodes that links are kept to."""
        return list(self.dialed)

    def is_up(self, node: str) -> bool:
        link = self.dialed.get(node)
        return link is not None and link.up is not None

    def hello_of(self, node: str) -> Hello | None:
        """What a connected node last said of itself."""
        link = self.dialed.get(node)
        if link is not None and link.up is not None:
            return link.up.hello
        return self.accepted[node][0] if node in self.accepted else None

    def own_host_towards(self, node: str) -> str | None:
        """Under which of its addresses this node goes to another one that is up."""
        link = self.dialed.get(node)
        return None if link is None or link.up is None else link.up.own_host

    @property
    def dropped_messages(self) -> int:
        """Messages that `send` took and nobody will get, as far as is known here."""
        return self._context.dropped_messages

    # --- the door: connections that peers make ------------------------------------------------------------------

    def came(self, connection: AcceptedConnection) -> bool:
        if self._is_stopped:
            return False
        if len(self.strangers) >= PEER_STRANGERS_MAX:
            reason = f"{PEER_STRANGERS_MAX} connections have not said who they are"
            self._context.trouble("door", "peer_refused", peer=None, address=connection.address, reason=reason)
            return False
        self.strangers.add(connection)
        return True

    def refusal(self, hello: Hello) -> str | None:
        reason = self._context.refusal(hello)
        if reason is None and hello.node not in self.accepted and len(self.accepted) >= PEERS_MAX:
            return f"{self._context.hello().node} has {PEERS_MAX} peers already"
        return reason

    def is_known(self, connection: AcceptedConnection, hello: Hello) -> None:
        self.strangers.discard(connection)
        before = self.accepted.get(hello.node)
        self.accepted[hello.node] = (hello, connection)
        link = self.dialed.get(hello.node)
        if before is not None:
            before[1].replaced()
        if link is None:
            return
        if link.up is not None and link.up.hello is not None and link.up.hello.boot != hello.boot:
            link.drop("the peer was restarted")
        # It is there: do not wait for the next try.
        link.hurry()

    def left(self, connection: AcceptedConnection, hello: Hello | None, reason: str) -> None:
        self.strangers.discard(connection)
        if hello is None or self.accepted.get(hello.node, (hello, None))[1] is not connection:
            return
        del self.accepted[hello.node]
        link = self.dialed.get(hello.node)
        if reason and link is not None:
            link.drop(f"its own connection: {reason}")

    def _look_for_silence(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        silence_s = self._context.timing.silence_s
        step_s = silence_s / _LOOKS_PER_SILENCE
        # If this node itself stood still, what its peers sent in the meantime was not read yet.
        if now - self._looked_at < 2 * step_s:
            for _, connection in list(self.accepted.values()):
                if connection.is_reading and now - connection.heard_at > silence_s:
                    connection.silent()
        self._looked_at = now
        self._look = loop.call_later(step_s, self._look_for_silence)


__all__ = ["LinkEvents", "LinkTiming", "PeerLinks"]
