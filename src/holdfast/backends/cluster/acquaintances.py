"""Which other nodes this one knows: where they are, which of them are wanted, and when they were last heard of.

At first that is what the settings say, or whoever listens at the address that a newcomer was given. From then on it is
what the control state says (`follow`), and links are kept to those nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from holdfast.backends.cluster.link_context import BELONGS_ELSEWHERE, NOT_YET
from holdfast.backends.cluster.links import PeerLinks
from holdfast.backends.cluster.meeting import Refused, meet
from holdfast.backends.cluster.peer_book import PeerBook, is_loopback, is_usable, reachable
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.replica_names import replica_id
from holdfast.model.errors import ConfigError, Unavailable
from holdfast.storage.directory import DataDirectory
from holdfast.wire.peer import Hello

log = structlog.get_logger("holdfast.cluster")

# In a hello: that this node belongs to no cluster yet, and wants to; and replicas that have left the cluster for good.
_JOINS: Final = "joins"
_REMOVED: Final = "removed"
_FIND_S: Final = 0.25
# Who is taken for another one that has just gone is not, a moment later: one that is silent is given up after 5 s.
_JOIN_PATIENCE_S: Final = 7.0
# How long a start waits to hear that it would join another cluster, and how long its own one may take to answer then.
_FIRST_TRY_S: Final = 2.0
_OWN_CLUSTER_S: Final = 1.0
_LOOK_S: Final = 0.02


class Acquaintances:
    """`peers` and `join` are of the settings."""

    def __init__(self, directory: DataDirectory, *, peers: Mapping[str, str], join: str | None, is_pair: bool) -> None:
        self.book = PeerBook(directory.path, directory.identity.node, peers)
        self.join = join
        # Told once that this node was taken out, and by whom.
        self._on_removed: Callable[[str], None] | None = None
        self._removal_told_by: str | None = None
        self._directory = directory
        self._own_address = peers.get(self.node)
        self._listened = ""
        self._is_pair = is_pair
        self._links: PeerLinks | None = None
        self._loop = asyncio.get_running_loop()
        self._finder: asyncio.Task[None] | None = None
        self._join_refusal: Refused | None = None
        self._was_tried = False
        # Of the control state, once it is there.
        self._present: Callable[[], Collection[str]] | None = None
        self._is_gone: Callable[[ReplicaId], bool] = lambda replica: False
        self._gone_replicas: Callable[[], list[str]] = list
        self._began_s = self._loop.time()
        self._began_ms = _now_ms()
        self._heard_ms: dict[str, int] = {}

    @property
    def node(self) -> str:
        return self._directory.identity.node

    @property
    def names(self) -> list[str]:
        """All nodes of the cluster, this one included."""
        others = self.book.addresses if self._present is None else self._present()
        return sorted({self.node, *others})

    @property
    def are_any(self) -> bool:
        return bool(self.book.addresses) or self.join is not None

    # --- links ------------------------------------------------------------------------------------

    def begin(self, links: PeerLinks, listened: str, on_news: Callable[[], None]) -> str:
        """Keep links to whom is known, and look for somebody where nobody is; returns where others reach this node."""
        self._links, self._listened = links, listened
        links.set_peers(self.book.addresses)
        if self.join is not None:
            self._finder = self._loop.create_task(self._find(self.join, on_news))
        return self._own_address or listened

    async def stop(self) -> None:
        if self._finder is not None:
            self._finder.cancel()
            await asyncio.gather(self._finder, return_exceptions=True)

    @property
    def linked(self) -> list[str]:
        """The nodes that can be reached now."""
        return [] if self._links is None else [node for node in self.book.addresses if self._links.is_up(node)]

    async def _find(self, address: str, on_news: Callable[[], None]) -> None:
        """Get to know whoever listens there, unless others are reached already."""
        said = ""
        while True:
            if not self.linked and not self.is_removed and self._links is not None:
                try:
                    met = await meet(address, self._links.hello)
                except Unavailable as error:
                    self._join_refusal = error if isinstance(error, Refused) else None
                    if error.message != said:
                        said = error.message
                        log.warning("cannot_join_yet", through=address, reason=said, hint="it is tried again")
                    on_news()
                else:
                    self._join_refusal = None
                    self._goes_out_as(met.own_host)
                    self.introduce(met.hello.node, address)
            self._was_tried = True
            await asyncio.sleep(_FIND_S)

    def reached(self, node: str) -> None:
        """A link to a node is up."""
        if self._links is not None:
            self._goes_out_as(self._links.own_host_towards(node))

    def _goes_out_as(self, host: str | None) -> None:
        """Who listens everywhere is told by its way to others where they reach it: from afar, if any of them is."""
        if self._links is None or self._own_address is not None or is_usable(self._listened):
            return
        told = self._links.hello.addresses
        found = reachable(self._listened, host)
        if not is_usable(told["peer"]) or (is_loopback(told["peer"]) and not is_loopback(found)):
            told["peer"] = found

    def check_join(self) -> None:
        """Who is refused for long, and belongs to no cluster yet, was given the wrong address or name. Raises."""
        if self._join_refusal is not None and self._loop.time() - self._began_s > _JOIN_PATIENCE_S:
            raise ConfigError(f"cannot join through {self.join}: {self._join_refusal.message}")

    async def check_cluster(self) -> None:
        """A disk of one cluster is not to join another one. Raises where that is so, and its own cannot be reached."""
        if self._finder is None:
            return
        deadline = self._loop.time() + _FIRST_TRY_S
        while not (self._was_tried or self.linked) and self._loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        deadline = self._loop.time() + _OWN_CLUSTER_S
        while (refusal := self._join_refusal) is not None and BELONGS_ELSEWHERE in refusal.message:
            if self.linked:
                return
            if self._loop.time() > deadline:
                raise ConfigError(
                    f"cannot join through {self.join}: {refusal.message}. {self._directory.path} is of another "
                    "cluster: give an empty directory with --data to join this one, or start it without --join"
                )
            await asyncio.sleep(_LOOK_S)

    def introduce(self, node: str, address: str) -> None:
        """Somebody has said where a node is."""
        if self.book.introduce(node, address):
            self._relink()

    def follow(
        self,
        present: Callable[[], Collection[str]],
        is_gone: Callable[[ReplicaId], bool],
        gone_replicas: Callable[[], list[str]],
    ) -> None:
        """From now on the control state says who belongs to the cluster, and which replicas have left it for good."""
        if not self._is_pair:
            self._present, self._is_gone, self._gone_replicas = present, is_gone, gone_replicas

    def note(self, addresses: Mapping[str, str], gone: Collection[str]) -> None:
        """What the control state says of where nodes are and who has left; links follow."""
        if self._links is not None and not self._is_pair:
            self.book.note(addresses, gone)
            self._relink()

    def _relink(self) -> None:
        if self._links is None or self.is_removed:
            return
        left = [node for node in self._links.names if node not in self.book.addresses]
        self._links.set_peers(self.book.addresses)
        for node in left:
            # It connects again, and is told why nobody looks for it any more.
            self._links.drop(node, "it has left the cluster")

    # --- hellos -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """What a hello of this node says beside who it is."""
        facts = {} if self.join is None else {_JOINS: "yes"}
        gone = self._gone_replicas()
        return facts | ({_REMOVED: ",".join(gone)} if gone else {})

    def wishes_to_join(self, node: str) -> bool:
        """Whether a node that is there was started to join, and does not only look for those it knew."""
        hello = None if self._links is None else self._links.hello_of(node)
        return hello is not None and _JOINS in hello.facts

    def is_gone(self, hello: Hello) -> bool:
        """Whether somebody was taken out who may not know it."""
        return self._is_gone(hello.replica)

    def refusal(self, hello: Hello, cluster: str) -> str | None:
        """Why somebody is not wanted as an acquaintance. `cluster` is this node's own, empty while it has none."""
        # Whoever belongs to no cluster, or to another, does not decide whether this node belongs to its own.
        is_of_ours = bool(cluster) and hello.cluster == cluster
        if is_of_ours and replica_id(self.node, self._directory.life) in hello.facts.get(_REMOVED, "").split(","):
            self._hear_of_removal(hello.node)
        if self.is_removed:
            return f"{self.node} was taken out of its cluster"
        if self.is_gone(hello):
            return None  # it hears that from what this node says of itself
        if self._is_up_with_another_life(hello):
            return f"another node goes by the name {hello.node}, and is up; give this one a name of its own"
        if hello.node in self.book.addresses:
            if not self._is_pair:
                # It may have moved. Not from within the links.
                self._loop.call_soon(self.introduce, hello.node, hello.addresses.get("peer", ""))
            return None
        if self._is_pair or not cluster or not (_JOINS in hello.facts or hello.cluster):
            if self.join is not None and not cluster:
                # Whom it has asked calls back before its answer is read.
                return f"{NOT_YET}{self.node} does not know yet which cluster it joins"
            known = ", ".join(sorted(self.book.addresses)) or "nobody"
            hint = "it is one of a pair" if self._is_pair else "to join its cluster, start it with --join"
            return f"{hello.node} is not among the peers of {self.node}: {known}; {hint}"
        # Not from within the links.
        self._loop.call_soon(self.introduce, hello.node, hello.addresses.get("peer", ""))
        return None

    def _is_up_with_another_life(self, hello: Hello) -> bool:
        links = self._links
        other = None if links is None or not links.is_up(hello.node) else links.hello_of(hello.node)
        return other is not None and other.boot != hello.boot and other.life != hello.life

    @property
    def is_removed(self) -> bool:
        """Whether this node has heard that it was taken out."""
        return self._removal_told_by is not None

    def tell_of_removal(self, on_removed: Callable[[str], None]) -> None:
        """Whom to tell who said so; also where it was said before anybody here could hear it."""
        self._on_removed = on_removed
        if self._removal_told_by is not None:
            self._loop.call_soon(on_removed, self._removal_told_by)

    def _hear_of_removal(self, told_by: str) -> None:
        if not self.is_removed:
            self._removal_told_by = told_by
            if self._on_removed is not None:
                self._on_removed(told_by)
            if self._links is not None:
                self._loop.call_soon(self._links.set_peers, {})

    # --- silence ----------------------------------------------------------------------------------

    def heard(self, node: str) -> None:
        self._heard_ms[node] = _now_ms()

    def silent_since_ms(self, node: str) -> int | None:
        """Since when nothing was heard of a node that cannot be reached; `None` for one that can be.

        One that was never heard of is silent since this node was started.
        """
        is_up = node == self.node or (self._links is not None and self._links.is_up(node))
        return None if is_up else self._heard_ms.get(node, self._began_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
