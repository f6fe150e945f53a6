"""What other nodes say to this one and ask of it, once it takes part in the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster import commands, requests, snapshots
from holdfast.backends.cluster.configurations import Known, known_at, known_by
from holdfast.backends.cluster.control import CONTROL, Control
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.expired_ids import ExpiredIds
from holdfast.backends.cluster.forwarding import Lanes, Peers
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import Method
from holdfast.backends.cluster.retention import Retention
from holdfast.backends.cluster.shrinking import tell_members
from holdfast.backends.cluster.snapshots import SnapshotGiver
from holdfast.backends.cluster.state import Loaded, StateStore
from holdfast.backends.cluster.topics import Topics
from holdfast.consensus.messages import Install, Message
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import (
    BadPeerFrame,
    BuildTooOld,
    DataDirectoryError,
    HoldfastError,
    NotLeader,
    StorageFailed,
    Unavailable,
    WorldError,
)
from holdfast.model.ids import GroupId, LogIndex, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import MIB
from holdfast.storage.directory import DataDirectory
from holdfast.storage.durable import sync_directory
from holdfast.wire.peer import Hello

log = structlog.get_logger("holdfast.cluster")

_TRANSFER_S: Final = 3.0
# After this long without effect it is asked for again: a leader gives up sooner.
_TRANSFER_TRY_S: Final = 0.75
# So much of a log is given to a node that asks for a part of it.
_ENTRIES_BYTES: Final = MIB
_decode_publish = msgspec.msgpack.Decoder(requests.PublishRequest).decode
_decode_confirm = msgspec.msgpack.Decoder(requests.ConfirmRequest).decode
_decode_entries = msgspec.msgpack.Decoder(requests.EntriesRequest).decode
_decode_expire = msgspec.msgpack.Decoder(requests.ExpireRequest).decode
_decode_ids_request = msgspec.msgpack.Decoder(requests.IdsRequest).decode
_decode_transfer = msgspec.msgpack.Decoder(requests.TransferRequest).decode


class Serving:
    """Answers the nodes that are linked to this one."""

    def __init__(
        self,
        directory: DataDirectory,
        groups: Groups,
        topics: Topics,
        control: Control,
        state: ControlState,
        lanes: Lanes,
        peers: Peers,
        retention: Retention,
        ids: ExpiredIds,
        *,
        now_ms: Callable[[], TimestampMs],
        on_failure: Callable[[HoldfastError], None],
        status: Callable[[], bytes],
    ) -> None:
        self.groups = groups
        self._directory = directory
        self._topics = topics
        self._control = control
        self._state = state
        self._lanes = lanes
        self._peers = peers
        self._retention = retention
        self._ids = ids
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._status = status
        self._snapshots = SnapshotGiver(
            directory.state_file, lambda: control.replica.raft.shape.base_index, self._known_at
        )
        self._installing: asyncio.Task[None] | None = None
        # Partitions whose log is about to begin anew.
        self._fetching_ids: dict[GroupId, asyncio.Task[None]] = {}
        # Of the state that is, or was last, fetched from another node: bytes that came, and bytes there are.
        self.fetched_bytes, self.fetch_size_bytes = 0, 0
        self._handlers: dict[int, Callable[[memoryview], Awaitable[bytes]]] = {
            Method.PUBLISH: self._publish,
            Method.PROPOSE: self._propose,
            Method.CONFIRM: self._confirm,
            Method.SNAPSHOT: self._snapshots.give,
            Method.STATUS: self._tell_status,
            Method.TRANSFER: self._transfer,
            Method.ENTRIES: self._give_entries,
            Method.CALLBACKS: self._tell_callbacks,
            Method.CLOCK: self._tell_clock,
            Method.EXPIRE: self._expire,
            Method.MEMBERS: self._tell_members,
            Method.IDS: self._give_ids,
        }

    def add_handlers(self, handlers: dict[int, Callable[[memoryview], Awaitable[bytes]]]) -> None:
        """Requests that another part of this node answers."""
        self._handlers |= handlers

    async def stop(self) -> None:
        """A state that is being taken over stays as it is; the next start goes on with it."""
        self._snapshots.close()
        under_way = [*self._fetching_ids.values(), *([] if self._installing is None else [self._installing])]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _known_at(self, entry: LogIndex) -> Known | None:
        raft = self._control.replica.raft
        if entry > raft.shape.last_index:
            raise Unavailable("this node is getting the control log itself; try again in a moment")
        return known_at(raft, entry)

    @property
    def known(self) -> Known | None:
        """Who belongs to the cluster, as far as that is committed here."""
        return known_by(self._control.replica.raft)

    def on_messages(self, hello: Hello, messages: list[tuple[int, Message]]) -> None:
        if any(isinstance(message, Install) for _, message in messages):
            messages = [item for item in messages if not self._is_installation(hello, *item)]
        self.groups.on_messages(hello.replica, messages)

    async def on_request(self, node: str, method: int, body: memoryview) -> bytes:
        handler = self._handlers.get(method)
        if handler is None:
            raise BadPeerFrame(f"{node} asks for {method}, which this version does not know")
        try:
            return await handler(body)
        except msgspec.MsgspecError as error:
            raise BadPeerFrame(f"a request of {node} cannot be understood: {error}") from error

    # --- requests -----------------------------------------------------------------------------------

    async def _publish(self, body: memoryview) -> bytes:
        wanted = _decode_publish(body)
        partition = PartitionId(TopicName(wanted.topic), wanted.partition)
        replica = self._topics.found(partition)
        if not replica.leads or self._lanes.publish_here is None:
            raise NotLeader(f"{partition} is led by {replica.leader_node or 'nobody'} now")
        published = await self._lanes.publish_here(partition, bytearray(wanted.batch))
        return requests.encode(
            requests.PublishReply(
                published.base_offset,
                published.count,
                published.duplicates,
                None if published.offsets is None else list(published.offsets),
            )
        )

    async def _propose(self, body: memoryview) -> bytes:
        wanted = commands.decode(body)
        if not all(map(self._state.level.allows, wanted)):
            # Whoever proposes has seen the level raised; this node is about to. Nothing was written.
            raise NotLeader("this leader does not know yet that the cluster's level was raised")
        return commands.encode_decision(await self._control.decide(wanted))

    async def _confirm(self, body: memoryview) -> bytes:
        replica = self._replica(_decode_confirm(body).group)
        return requests.encode(requests.ConfirmReply(await replica.confirmed_index()))

    async def _tell_status(self, body: memoryview) -> bytes:
        return self._status()

    async def _tell_callbacks(self, body: memoryview) -> bytes:
        return msgspec.json.encode(self._state.callbacks.tell())

    async def _tell_clock(self, body: memoryview) -> bytes:
        return requests.encode(requests.ClockReply(self._now_ms()))

    async def _expire(self, body: memoryview) -> bytes:
        await self._retention.take_over(_decode_expire(body).expired)
        return b""

    async def _tell_members(self, body: memoryview) -> bytes:
        return tell_members(self._control)

    async def _give_ids(self, body: memoryview) -> bytes:
        wanted = _decode_ids_request(body)
        return await self._ids.page(self._replica(wanted.group), Offset(wanted.start))

    async def _transfer(self, body: memoryview) -> bytes:
        wanted = _decode_transfer(body)
        self.transfer(self._replica(wanted.group), wanted.node)
        return b""

    async def _give_entries(self, body: memoryview) -> bytes:
        wanted = _decode_entries(body)
        replica = self._replica(wanted.group)
        first, last = LogIndex(wanted.first), min(LogIndex(wanted.last), replica.shown_index)
        entries = await replica.read_entries(first, _ENTRIES_BYTES, last) if first >= replica.log.first_index else []
        stored = [requests.StoredEntry(each.term, each.kind, bytes(each.payload)) for each in entries]
        return requests.encode(requests.EntriesReply(stored))

    def transfer(self, replica: Replica, node: str) -> None:
        """Hand a group over. Raises `NotLeader`, `BadValue`."""
        leading = replica.raft.leading
        if leading is None:
            raise NotLeader(f"{replica.name} is led by {replica.leader_node or 'nobody'} now")
        for voter in replica.raft.members.voters:
            if node_of(voter) == node and voter in leading.progress:
                leading.transfer(voter)
                self.groups.touch(replica)

    async def transfer_anywhere(self, replica: Replica, node: str) -> None:
        """Have a group handed over by whoever leads it, and wait for that. Raises `Unavailable`.

        Asked for again and again: the leader may change meanwhile, or what it says to its successor be lost.
        """
        try:
            async with asyncio.timeout(_TRANSFER_S):
                while replica.leader_node != node:
                    await self._ask_to_transfer(replica, node)
                    asked_s = time.monotonic()
                    while replica.leader_node != node and time.monotonic() < asked_s + _TRANSFER_TRY_S:
                        await asyncio.sleep(0.01)
        except TimeoutError:
            raise Unavailable(f"{node} did not take over {replica.name}; {replica.leader_node} leads it") from None

    async def _ask_to_transfer(self, replica: Replica, node: str) -> None:
        leader = replica.leader_node
        try:
            if replica.raft.leading is not None:
                self.transfer(replica, node)
            elif leader is not None:
                request = requests.encode(requests.TransferRequest(replica.group, node))
                await self._peers.request(leader, Method.TRANSFER, request, _TRANSFER_S)
        except WorldError as error:
            log.info("transfer_not_begun", group=replica.name, leader=leader, to=node, problem=error.message)

    def _replica(self, group: int) -> Replica:
        replica = self.groups.replicas.get(GroupId(group))
        if replica is None:
            raise NotLeader(f"there is no group {group} on this node")
        return replica

    # --- a new beginning of the control log -----------------------------------------------------------

    def _is_installation(self, hello: Hello, group: int, message: Message) -> bool:
        """The state comes before the log: it is fetched first, and the message is heard when it is there."""
        replica = self.groups.replicas.get(GroupId(group))
        # One of a pair that has to give way keeps what it has until that is given.
        if not isinstance(message, Install) or (replica is not None and self.groups.is_replaced(replica, message)):
            return False
        if group != CONTROL:
            return self._is_beginning(hello, GroupId(group), message)
        if message.last_index <= self._control.applied:
            return False
        if self._installing is None or self._installing.done():
            self._installing = asyncio.get_running_loop().create_task(self._install(hello, message))
            self._installing.add_done_callback(self._notice_failure)
        return True

    def _is_beginning(self, hello: Hello, group: GroupId, message: Install) -> bool:
        """The same for a partition: the ids of what the leader has deleted come before its log."""
        replica = self.groups.replicas.get(group)
        if replica is None or message.last_index <= replica.raft.commit:
            return False
        if group not in self._fetching_ids:
            fetching = asyncio.get_running_loop().create_task(self._fetch_ids(hello, replica, message))
            self._fetching_ids[group] = fetching
            fetching.add_done_callback(lambda _: self._fetching_ids.pop(group, None))
        return True

    async def _fetch_ids(self, hello: Hello, replica: Replica, message: Install) -> None:
        try:
            await self._ids.fetch(self._peers, hello.node, replica)
        except (HoldfastError, OSError) as error:  # the leader asks again, or another one does
            log.warning("fetching_ids_failed", node=hello.node, group=replica.name, problem=str(error))
            return
        self.groups.on_messages(hello.replica, [(replica.group, message)])

    def _on_fetched(self, done: int, size: int) -> None:
        self.fetched_bytes, self.fetch_size_bytes = done, size

    def _notice_failure(self, installing: asyncio.Task[None]) -> None:
        """Half an exchange is no state to go on with; the next start finishes it."""
        if not installing.cancelled() and (error := installing.exception()) is not None:
            failed = StorageFailed(f"another node's state could not be taken over: {error!r}")
            self._on_failure(error if isinstance(error, BuildTooOld) else failed)

    async def _install(self, hello: Hello, message: Install) -> None:
        log.info("fetching_state", node=hello.node, up_to=message.last_index)
        try:
            incoming, known = await snapshots.fetch(self._peers, hello.node, self._directory.path, self._on_fetched)
        except DataDirectoryError:
            raise  # it would be no other the next time
        except (HoldfastError, OSError) as error:
            log.warning("fetching_state_failed", node=hello.node, problem=str(error))
            return
        if message.last_index <= self._control.applied:
            # Another leader's log, which begins earlier, has brought it here meanwhile, and perhaps more.
            snapshots.remove_incoming(self._directory.path)
            self.groups.on_messages(hello.replica, [(CONTROL, message)])
            return
        try:
            # Where it is not said, what holds at the beginning of the leader's log is the best there is.
            self.groups.expect_members(self._control.replica, known or Known(message.last_index, message.members[-1]))
        except Unavailable as error:
            log.warning("fetching_state_failed", node=hello.node, problem=str(error))
            return
        loaded: Loaded | None = None

        def exchange() -> tuple[StateStore, LogIndex]:
            nonlocal loaded
            for suffix in ("-wal", "-shm"):
                self._directory.state_file.with_name(f"state.sqlite{suffix}").unlink(missing_ok=True)
            incoming.replace(self._directory.state_file)
            sync_directory(self._directory.path)
            store, loaded = StateStore.open(
                self._directory.state_file, damaged_suffix=".damaged", on_failure=self._on_failure
            )
            return store, loaded.applied

        async def take_over() -> None:
            assert loaded is not None
            await self._state.replace(loaded)

        await self._control.replace_store(exchange, take_over)
        log.info("state_fetched", node=hello.node, applied=self._control.applied)
        self.groups.on_messages(hello.replica, [(CONTROL, message)])
