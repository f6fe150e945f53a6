"""The other nodes: forming a cluster with them, reaching them, and hearing of them.

Between the links, which carry bytes, and the groups, which have not begun yet when the first bytes arrive.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog
import uuid_utils

from holdfast.backends.cluster import commands, formation, levels, telling
from holdfast.backends.cluster.acquaintances import Acquaintances
from holdfast.backends.cluster.commands import Command, Decision
from holdfast.backends.cluster.configurations import Known, is_outvoted
from holdfast.backends.cluster.formation import Formation
from holdfast.backends.cluster.levels import ClusterLevel
from holdfast.backends.cluster.links import LinkTiming, PeerLinks
from holdfast.backends.cluster.pace import USUAL_PACE, Pace
from holdfast.backends.cluster.pairing import Pairing
from holdfast.backends.cluster.replica import Replica, still_leads
from holdfast.backends.cluster.requests import Method
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.messages import Message
from holdfast.consensus.partner import PairSettings, Standing
from holdfast.consensus.replica_names import replica_id
from holdfast.consensus.timing import DEFAULT_ELECTIONS, ElectionSettings
from holdfast.model.errors import (
    BadValue,
    BuildTooOld,
    ConfigError,
    DataDirectoryError,
    HoldfastError,
    NameTaken,
    NotLeader,
    Unavailable,
)
from holdfast.model.member_errors import NodeRemoved
from holdfast.storage.directory import DataDirectory
from holdfast.wire.peer import OLDEST_VERSION, Hello

if TYPE_CHECKING:
    from holdfast.backends.cluster.serving import Serving

log = structlog.get_logger("holdfast.cluster")

_FORMATION: Final = "formation"
_STANDING: Final = "pair"
_HEARTBEAT: Final = "heartbeat_ms"
_KNOWN: Final = "configuration"
# Of two, the one that is left must know at once that the other is gone, and come together again soon.
_PAIR_TIMING: Final = LinkTiming(retry_min_s=0.01, refused_retry_s=0.5)
# A link says that it is alive at least this often, however rare heartbeats are.
_KEEPALIVE_S_MAX: Final = 1.0
_DECIDE_S: Final = 5.0
_WAITING_LOG_S: Final = 5.0
_PAIR_LOOK_S: Final = 0.25


class Disagreement(NamedTuple):
    """With a node that is not talked to: the two go by different members."""

    hello: Hello
    known: Known
    reason: str


class Neighbours:
    """Who they are comes from the settings; whether they are there, from the links."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        listen: tuple[str, int] | None,
        peers: Mapping[str, str],
        pair: PairSettings | None = None,
        join: str | None = None,
        elections: ElectionSettings = DEFAULT_ELECTIONS,
        pace: Pace = USUAL_PACE,
    ) -> None:
        self._pace = pace
        self.node = directory.identity.node
        self.addresses: dict[str, str] = {}
        self.up_since_s: dict[str, float] = {}
        # How often each was linked since this node started.
        self.links_made: Counter[str] = Counter()
        self._directory = directory
        self._listen = listen
        self.known = Acquaintances(directory, peers=peers, join=join, is_pair=pair is not None)
        if self.known.are_any and listen is None:
            raise ConfigError("a node with peers needs an address of its own for them; give it with --peer HOST:PORT")
        if pair is not None and len(self._peers) != 1:
            raise ConfigError("a pair has two nodes: name this one and its partner in peers, and nobody else")
        self._pair = pair
        self.elections = elections
        self.pairing: Pairing | None = None
        self.level = ClusterLevel()
        # The cluster has gone on without this build: told when that is heard of while it serves.
        self.on_too_old: Callable[[HoldfastError], None] = lambda error: None
        self._too_old: BuildTooOld | None = None
        # Of a pair: told that the partner has taken over; returns whether this node begins anew.
        self.on_replaced: Callable[[], bool] = lambda: False
        self._partner_hello: Hello | None = None
        # Of a new one of a pair: whether its partner has its name, and had it first.
        self._is_name_taken = False
        self._gives_way = False
        self._boot = str(uuid_utils.uuid7())
        self._formation: Formation | None = None
        self._links: PeerLinks | None = None
        self._tells = telling.is_on()
        # Who belongs to the cluster, as far as it was known when this node was opened.
        self._known_at_start: Known | None = None
        self._disagreements: dict[str, Disagreement] = {}
        self._serving: Serving | None = None
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._changed = asyncio.Event()

    @property
    def _peers(self) -> dict[str, tuple[str, ...]]:
        return self.known.book.addresses

    @property
    def has_peers(self) -> bool:
        return self.known.are_any

    @property
    def names(self) -> list[str]:
        """All nodes by name, this one included."""
        return self.known.names

    @property
    def listens(self) -> bool:
        """Whether there is an address for other nodes."""
        return self._listen is not None

    @property
    def own_life(self) -> str:
        return self._directory.life

    @property
    def cluster(self) -> str:
        return self._formation.cluster if self._formation is not None else ""

    @property
    def dropped_messages(self) -> int:
        """Messages of the consensus that nobody got, since their link was down or full."""
        return 0 if self._links is None else self._links.dropped_messages

    # --- life -------------------------------------------------------------------------------------

    def check_history(self, *, has_topics: bool) -> None:
        """A broker that stood alone cannot be told to have peers: they do not have what it has. Raises.

        One of a pair can: its partner is let in, and gets everything from it.
        """
        found = formation.load(self._directory.path)
        if self._pair is not None and found is not None:
            return
        # A cluster of one that has grown has noted the others.
        is_alone = found is not None and set(found.founders) == {self.node} and not self.known.book.noted
        if self.has_peers and (is_alone or (found is None and has_topics)):
            raise DataDirectoryError(
                f"{self._directory.path} has topics, but its cluster.json is missing or that of a broker that stands "
                "alone. If it is missing, copy it from another node of the cluster. A new node of a cluster "
                "begins with an empty directory: name another with --data. To let others join this one, start it "
                "without peers and join, and them with --join"
            )

    async def start(self, known: Known | None = None) -> None:
        """Listen for the others and look for them. `known` is who belongs to the cluster, as this node was opened."""
        self._known_at_start = known
        if self._listen is None:
            return
        self._formation = formation.load(self._directory.path)
        timing = LinkTiming(refused_retry_s=self._pace.refused_retry_s) if self._pair is None else _PAIR_TIMING
        keepalive_s = min(self.elections.heartbeat_ms / 1000, _KEEPALIVE_S_MAX)
        self._links = PeerLinks(self.own_hello, self, timing._replace(keepalive_s=keepalive_s))
        try:
            host, port = await self._links.start(*self._listen)
        except OSError as error:
            where = f"{self._listen[0]}:{self._listen[1]}"
            reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ConfigError(
                f"cannot listen on {where} for peers: {reason}; give another with --peer or HOLDFAST_PEER, and in peers"
            ) from error
        listened = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.addresses["peer"] = listened
        self.addresses["peer"] = self.known.begin(self._links, listened, self._changed.set)

    async def stop(self) -> None:
        await self.known.stop()
        if self._links is not None:
            await self._links.stop()

    def attach(self, serving: Serving) -> None:
        """From now on there is somebody to hear what the others say. Raises `BuildTooOld`."""
        if self._too_old is not None:
            raise self._too_old
        self._serving = serving
        if self._links is not None:
            for node in filter(self._links.is_up, self._peers):
                serving.groups.on_up(node)

    async def form(self) -> Formation:
        """Which cluster this node belongs to, and who founded it; waits for the others where there is none yet."""
        self._formation = found = formation.load(self._directory.path)
        if found is not None:
            await self.known.check_cluster()
        # Whoever joins is answered in a moment.
        said_at = self._loop.time() if self.known.join is not None else 0.0
        while found is None:
            if self._too_old is not None:
                raise self._too_old
            if self._is_name_taken:
                (other,) = self._peers
                self._directory.rename(other)
                raise NameTaken(f"the partner is called {self.node}, so this one is called {other}; give it that name")
            found = self._formed()
            if found is not None:
                break
            if self._loop.time() - said_at > _WAITING_LOG_S:
                said_at = self._loop.time()
                missing = [node for node in self._peers if not self.is_up(node)]
                all_nodes = "a new cluster begins when all nodes are there"
                if self.known.join is not None:
                    missing, all_nodes = [self.known.join], "it has to say which cluster this is"
                hint = all_nodes if self._pair is None else "a backup begins with what its primary has"
                log.warning("waiting_for_peers", missing=missing, hint=hint)
            self._changed.clear()
            try:
                async with asyncio.timeout(_WAITING_LOG_S if self._pair is None else _PAIR_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                self._ask_again()
            self.known.check_join()
        if self._formation != found:
            formation.save(self._directory.path, found)
            self._formation = found
            log.info("cluster_formed", cluster=found.cluster, nodes=sorted(found.founders))
            if self._pair is not None:
                # A partner that was linked before waits to be told, and nodes say only once who they are.
                for node in self._peers:
                    self.drop_link(node, "it has to hear which pair this is")
        return found

    def _ask_again(self) -> None:
        """Of a pair: who said who it is before it began a pair has to say it again, and nodes do that once a link."""
        if self._pair is None or self._pair.founds or self._links is None:
            return
        for node in self._peers:
            hello = self._links.hello_of(node)
            if hello is not None and _FORMATION not in hello.facts:
                self._links.drop(node, "it has not said yet which pair it is")

    def _formed(self) -> Formation | None:
        founders = {self.node: self._directory.life}
        for node in self._peers:
            hello = self._links.hello_of(node) if self._links is not None else None
            if hello is None:
                continue
            if _FORMATION in hello.facts:
                return formation.decode(hello.facts[_FORMATION].encode())
            founders[node] = hello.life
        if self._pair is not None:
            return self._formed_pair(is_partner_there=len(founders) > 1)
        if self.known.join is not None:
            return None  # it founds nothing
        return formation.founded_by(founders) if len(founders) == len(self._peers) + 1 else None

    def _formed_pair(self, *, is_partner_there: bool) -> Formation | None:
        """The primary begins alone, but not while a partner that has served before may be about to answer."""
        assert self._pair is not None
        is_absent = self._loop.time() - self._began_s > self._pair.patience_s
        founds = self._pair.founds and (is_partner_there or is_absent)
        return formation.founded_by({self.node: self._directory.life}) if founds else None

    def own_hello(self) -> Hello:
        facts = {levels.UNDERSTOOD: str(levels.LEVEL), levels.CLUSTER: str(self.level.number)}
        facts[_HEARTBEAT] = str(self.elections.heartbeat_ms)
        if self._formation is not None:
            facts[_FORMATION] = self._formation.encode().decode()
        if self.pairing is not None:
            facts[_STANDING] = self.pairing.standing.encode()
        if (known := self._configuration) is not None:
            facts[_KNOWN] = known.encode()
        facts |= self.known.facts()
        return Hello(
            cluster=self.cluster,
            node=self.node,
            life=self._directory.life,
            boot=self._boot,
            oldest=OLDEST_VERSION,
            addresses=self.addresses,
            facts=facts,
        )

    @property
    def _configuration(self) -> Known | None:
        """Each of a pair may go on alone, so the two need not agree."""
        if self._pair is not None:
            return None
        return self._known_at_start if self._serving is None else self._serving.known

    @property
    def disagreement(self) -> str | None:
        """What this node and another one know, if this one disagrees with most nodes about the members."""
        if not self._disagreements:
            return None
        disagreements = self._current_disagreements()
        is_with_most = len(disagreements) > sum(map(self.is_up, self._peers)) or self.is_outvoted
        return disagreements[0].reason if disagreements and is_with_most else None

    @property
    def is_outvoted(self) -> bool:
        """Whether this node takes part in nothing, since it may go by members that were replaced.

        It ends when enough nodes agree with it, or those that disagree link with it or have left the cluster.
        """
        if not self._disagreements:
            return False
        own = self._configuration
        agreeing = {self.node, *filter(self.is_up, self._peers)}
        contradicting = [each.known for each in self._current_disagreements()]
        return own is not None and is_outvoted(own, agreeing, contradicting)

    def _current_disagreements(self) -> list[Disagreement]:
        return [each for each in self._disagreements.values() if not self.known.is_gone(each.hello)]

    # --- reaching them ----------------------------------------------------------------------------

    def is_up(self, node: str) -> bool:
        return node == self.node or (self._links is not None and self._links.is_up(node))

    def check_can_lead(self, node: str) -> None:
        """Raises `BadValue` for a node that is not one, or is away."""
        if node not in self.names:
            raise BadValue(f"there is no node {node}; the nodes are {', '.join(self.names)}")
        if not self.is_up(node):
            raise BadValue(f"{node} cannot be reached now; it cannot lead")

    def life_of(self, node: str) -> str | None:
        """The life of a node's disk as it says itself; `None` while it cannot be reached."""
        if node == self.node:
            return self._directory.life
        hello = self._links.hello_of(node) if self._links is not None else None
        return hello.life if hello is not None else None

    @property
    def partner_hello(self) -> Hello | None:
        """Of a pair: what the other one last said of itself, be it in a hello that was refused."""
        return self._partner_hello

    def partner_to_let_in(self) -> ReplicaId | None:
        """Of a pair: the other one, if it is there."""
        if self.pairing is None or not self.is_up(self.pairing.partner):
            return None
        life = self.life_of(self.pairing.partner)
        return None if life is None else replica_id(self.pairing.partner, life)

    def seconds_up(self, node: str) -> float:
        """How long it has been there without a break."""
        since = self.up_since_s.get(node)
        return 0.0 if since is None else self._loop.time() - since

    def send(self, node: str, group: int, message: Message) -> None:
        if self._links is not None and not self.is_outvoted:
            self._links.send(node, group, message)

    async def request(
        self, node: str, method: int, body: bytes, timeout_s: float, leads: Callable[[], bool] | None = None
    ) -> memoryview:
        if self._links is None:
            raise Unavailable(f"there is no node {node}")
        return await self._links.request(node, method, body, timeout_s, leads)

    async def propose(self, control: Replica, wanted: list[Command]) -> Decision:
        """Have commands decided by the leader of the control group, which is another node."""
        leader = control.leader_node
        if leader is None or leader == self.node:
            raise NotLeader("the control group has no leader now")
        if not self.is_up(leader):
            raise NotLeader(f"{leader} leads the control group and cannot be reached")
        if self._tells:
            telling.tell("change_forwarded", wanted, leader=leader)
        leads = still_leads(leader, control)
        body = await self.request(leader, Method.PROPOSE, commands.encode(wanted), _DECIDE_S, leads)
        return commands.decode_decision(body)

    # --- hearing of them --------------------------------------------------------------------------

    def on_messages(self, hello: Hello, messages: list[tuple[int, Message]]) -> None:
        takes_part = not self._gives_way and not self.is_outvoted
        if self._serving is not None and takes_part and not self.known.is_gone(hello):
            self._serving.on_messages(hello, messages)

    async def on_request(self, node: str, method: int, body: memoryview) -> bytes:
        if self._serving is None:
            raise Unavailable(f"{self.node} is still starting")
        hello = self._links.hello_of(node) if self._links is not None else None
        if hello is not None and self.known.is_gone(hello):
            raise NodeRemoved(f"{node} was taken out of this cluster")
        return await self._serving.on_request(node, method, body)

    def on_up(self, hello: Hello) -> None:
        self.up_since_s[hello.node] = self._loop.time()
        self.links_made[hello.node] += 1
        self._changed.set()
        self._disagreements.pop(hello.node, None)
        log.info("node_up", node=hello.node)
        self.known.reached(hello.node)
        if self.pairing is not None:
            self.pairing.on_up()
        if self._serving is not None:
            self._serving.groups.on_up(hello.node)

    def on_down(self, node: str) -> None:
        self.up_since_s.pop(node, None)
        log.warning("node_down", node=node)
        if self.pairing is not None:
            self.pairing.on_down()
        if self._serving is not None:
            self._serving.groups.on_down(node)

    def on_dropped(self, node: str, groups: Collection[int]) -> None:
        if self._serving is not None:
            self._serving.groups.on_dropped(node, groups)

    def on_nobody_there(self, node: str) -> None:
        if self.pairing is not None:
            self.pairing.on_refused()

    def drop_link(self, node: str, reason: str) -> None:
        if self._links is not None:
            self._links.drop(node, reason)

    def on_heard(self, node: str) -> None:
        self.known.heard(node)
        if self.pairing is not None:
            self.pairing.on_heard()
        if self._serving is not None:
            self._serving.groups.on_heard(node)

    def on_namesake(self, hello: Hello) -> None:
        """A member with a new disk may be started under its partner's name; it takes the other name."""
        is_new_backup = self._pair is not None and not self._pair.founds and self._formation is None
        if is_new_backup and _FORMATION in hello.facts:
            self._is_name_taken = True
            self._changed.set()

    def refusal(self, hello: Hello) -> str | None:
        if (reason := self.known.refusal(hello, self.cluster)) is not None:
            return reason
        theirs: Formation | None = None
        if _FORMATION in hello.facts:
            try:
                theirs = formation.decode(hello.facts[_FORMATION].encode())
            except msgspec.MsgspecError as error:
                return f"{hello.node} does not say clearly which cluster it belongs to: {error}"
        if self._gives_way:
            return f"{self.node} was replaced, and begins anew"
        heartbeat_refusal = self.elections.refusal(self.node, hello.node, hello.facts.get(_HEARTBEAT))
        if (reason := self._level_refusal(hello) or heartbeat_refusal) is not None:
            return reason
        if self.pairing is not None and _STANDING in hello.facts:
            return self._standing_refusal(hello, self.pairing.standing)
        if theirs is not None and (reason := self._apart_refusal(hello.node, theirs)) is not None:
            return reason
        return self._configuration_refusal(hello)

    def _apart_refusal(self, node: str, theirs: Formation) -> str | None:
        """A node that went on alone is followed, unless this one did so too without knowing."""
        own = self._formation
        if own is None or own.cluster != theirs.cluster or theirs.is_continued_by(own):
            return None
        if not own.is_continued_by(theirs):
            return (
                f"{self.node} and {node} each belong to a part of this cluster that went on alone, and both may have "
                "acknowledged messages that the other does not have: keep one part; on the nodes of the other, stop "
                "the broker, move its data directory away and start it again"
            )
        return self._note_formation(msgspec.structs.replace(own, went_alone=theirs.went_alone))

    def _note_formation(self, noted: Formation) -> str | None:
        """Save it; returns why that is not possible now."""
        try:
            formation.save(self._directory.path, noted)
        except DataDirectoryError as error:
            return error.message
        self._formation = noted
        return None

    def _configuration_refusal(self, hello: Hello) -> str | None:
        """Refuse a node that disagrees about the members: one of the two could acknowledge with too few disks."""
        own = self._configuration
        if own is None or _KNOWN not in hello.facts or hello.cluster != self.cluster:
            return None
        try:
            other = Known.decode(hello.facts[_KNOWN])
        except ValueError:
            return f"{hello.node} does not say clearly who belongs to the cluster"
        if not own.contradicts(other):
            self._disagreements.pop(hello.node, None)
            return None
        # The same words on both sides.
        said = sorted([(self.node, own), (hello.node, other)])
        at = min(own.entry, other.entry)
        reason = (
            f"{' and '.join(node for node, _ in said)} disagree on who belonged to the cluster at entry {at} of its "
            f"control log: {'; '.join(f'{known} ({node})' for node, known in said)}. Start the one that disagrees with "
            "the other nodes with an empty data directory"
        )
        self._disagreements[hello.node] = Disagreement(hello, other, reason)
        if self._serving is not None:
            self._serving.groups.stand_aside_if_outvoted()
        return reason

    @property
    def marks_of_others(self) -> frozenset[str]:
        """The times that another node went on alone, as far as this one has heard."""
        marks = () if self._formation is None else self._formation.went_alone
        return frozenset(mark for mark in marks if not mark.startswith(f"{self.node}."))

    def go_on_alone(self) -> None:
        """Mark that this node goes on without a majority, and have all others hear of it first. Raises."""
        assert self._formation is not None
        mark = f"{self.node}.{uuid_utils.uuid7().hex}"
        if (problem := self._note_formation(self._formation.after_going_alone(mark))) is not None:
            raise Unavailable(problem)
        for node in self._peers:
            self.drop_link(node, "it has to hear that this node goes on alone")

    def _level_refusal(self, hello: Hello) -> str | None:
        """Of two builds of which one does not understand what the other's cluster writes."""
        understood, at = (
            levels.number_said(hello.facts.get(name, str(levels.BASELINE)))
            for name in (levels.UNDERSTOOD, levels.CLUSTER)
        )
        if understood is None or at is None:
            return f"{hello.node} does not say clearly which level it understands: that is a number of 1 to 9 digits"
        if understood < self.level.number:
            return (
                f"the cluster is at level {self.level.number}, and the build of {hello.node} understands {understood}: "
                f"start the version on {hello.node} that the other nodes run"
            )
        try:
            levels.check_understood(at)
        except BuildTooOld as error:
            # Whoever belongs to no cluster, or to another, does not decide whether this node may serve.
            if hello.cluster and (self._formation is None or hello.cluster == self.cluster):
                self._leave(error)
            return error.message
        return None

    def _leave(self, error: BuildTooOld) -> None:
        self._too_old = error
        self._changed.set()
        if self._serving is not None:
            self.on_too_old(error)

    def levels_of_linked(self) -> dict[str, int]:
        """What those understand who are there now."""
        found = {}
        for node in self._peers:
            hello = self._links.hello_of(node) if self._links is not None else None
            if hello is not None:
                said = levels.number_said(hello.facts.get(levels.UNDERSTOOD, str(levels.BASELINE)))
                found[node] = levels.BASELINE if said is None else said
        return found

    def give_way(self) -> None:
        """The partner took over: nothing is said to it, nor heard of it, until this node begins anew."""
        hello = self._partner_hello
        if hello is None or "http" not in hello.addresses:
            return  # it is still starting, and does not say yet where it takes what it is to be given
        self._gives_way = self.on_replaced()

    def _standing_refusal(self, hello: Hello, own: Standing) -> str | None:
        """Of two that both went on alone, one has to begin anew before they talk."""
        if hello.cluster != self.cluster:
            return f"{hello.node} says how it stands in a pair, but not in which"
        self._partner_hello = hello
        try:
            other = Standing.decode(hello.facts[_STANDING])
        except ValueError as error:
            return str(error)
        if own.yields_to(other):
            self.give_way()
            return f"{hello.node} took over in epoch {other.term}; {self.node} begins anew as its backup"
        if other.yields_to(own):
            return f"{self.node} took over in epoch {own.term}; {hello.node} has to begin anew"
        return None
