"""The one seam: what a backend promises to everything before and after it.

Before `append` and after `read` the code is the same for every backend. A backend decides where
partitions live and how they survive; it knows nothing of connections, subscribers or formats other
than the record batch.

Who decides on a partition leads it: this node, another node, or a database. Where this node does not lead, everything
goes through `forward`, and whoever leads gives the offsets and recognises the ids.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.draws import Draw, Drawn
from holdfast.model.errors import NotSupported
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished, StoredId
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig

Unwatch = Callable[[], None]


class Backend(Protocol):
    """Where partitions live. All calls come from one event loop; none blocks it for long."""

    @property
    def node_id(self) -> str:
        """The name this node goes by in descriptions, `leader` among them."""
        ...

    def problem(self) -> str | None:
        """Why nothing can be appended now, for people; `None` while it can."""
        ...

    @property
    def delivers_where_led(self) -> bool:
        """Whether live subscribers are connected to all nodes, and only the one that leads delivers to them."""
        ...

    # --- messages ---------------------------------------------------------------------------------

    def leads(self, partition: PartitionId) -> bool:
        """Whether `append` would be taken here now; where another node leads, it is for `forward`."""
        ...

    def has_waiting(self, partition: PartitionId) -> bool:
        """Whether something is being forwarded from here that a new publish must not overtake."""
        ...

    def reign(self, partition: PartitionId) -> int | None:
        """A number that changes with every change of leader, while this node leads and shows all that was before.

        What is remembered of a partition's messages, such as their ids, holds within one reign only.
        """
        ...

    def is_void(self, partition: PartitionId, offset: Offset) -> bool:
        """Whether a message was given to another node, which stores it anew: its id is not recognised by this copy."""
        ...

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool = False) -> None:
        """Call `on_change` from now on whenever `reign` of a partition may have begun, changed or ended.

        Of users' topics, or of internal ones. Where nodes share the work, this one takes part from now on.
        """
        ...

    def append(self, partition: PartitionId, batch: bytearray) -> Future[Offset]:
        """Store one valid record batch; the future gives the base offset once it is durable.

        The backend writes the base offset and the leader epoch into `batch` and owns it from then on.
        Offsets are given in the order of the calls, and futures of a partition finish in that order.
        Where the store is as durable as promised at once, the future is already done on return.
        Raises, or fails the future with, `Unavailable`: nothing was promised; or `LeaderChanged`: nobody knows.
        """
        ...

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> Future[Offset]:
        """Store batches one behind the other, each as `append` would; done once the last of them is durable.

        Cheaper than as many calls. The future gives the base offset of the first. Where only some could be written,
        that is `LeaderChanged`: nobody knows what becomes of those.
        """
        ...

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> Future[BatchPublished]:
        """Have the node that leads the partition publish a batch, with all that belongs to it, dedupe included.

        In the order of the calls as far as no leader is lost; waits a while for a leader. With ids it is sent
        again where its fate is unknown. Raises like `append`. If the future is cancelled, a batch that was not sent yet
        is not sent any more. A pushed batch carries its columns (`wire.push_batch`):
        who hands it on as it is saves the store work; whoever encodes or keeps it takes its bytes.
        """
        ...

    def publish_with(self, publish_here: Callable[[PartitionId, bytearray], Future[BatchPublished]]) -> None:
        """What is forwarded to this node is published with this."""
        ...

    async def catch_up(self, partition: PartitionId) -> None:
        """Wait until everything that was acknowledged anywhere before this call is visible here.

        Raises `NoQuorum` where nobody can tell.
        """
        ...

    def staleness_ms(self, partition: PartitionId) -> int:
        """How long ago this node last knew that it shows everything, or nearly; 0 while it leads."""
        ...

    def is_current(self, partition: PartitionId) -> bool:
        """Whether the end that is known here was the real one at least once since the start."""
        ...

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        """Whole committed batches, the first one holding `offset`; at least one if there is any.

        They hold the messages that were appended, in as many batches as the store likes.

        An empty answer means that nothing is committed at `offset` yet. Raises `OffsetOutOfRange`
        below the start or above the end, `DamagedData` where the bytes fail their checksum.
        """
        ...

    def start_offset(self, partition: PartitionId) -> Offset:
        """The oldest message that is still there."""
        ...

    def end_offset(self, partition: PartitionId) -> Offset:
        """One past the last committed message."""
        ...

    def cuts(self, partition: PartitionId) -> Sequence[Offset]:
        """Where the end went back to, each time that it did since the start, oldest first.

        A store may be replaced by one that lacks its last commits: what stood from there on is gone, and other messages
        take those offsets.
        """
        ...

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        """The first offset at or after `offset` that is neither expired nor damaged."""
        ...

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        """The first offset whose batch holds a message of that time or later; the end if there is none."""
        ...

    async def time_ms(self, partition: PartitionId) -> TimestampMs:
        """What time it is, to say how old something in there is: where several nodes have it, no single clock decides.

        Raises `NoQuorum` where too few nodes can be asked.
        """
        ...

    async def expired_ids(self, partition: PartitionId, start: Offset) -> Sequence[StoredId]:
        """Ids of messages from `start` on that are below the log's begin, for the dedupe window, by their offsets.

        None where the store recognises ids by itself.
        """
        ...

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        """Call `on_commit` whenever the end moves; also once the topic is deleted."""
        ...

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        """Raises `Unavailable` where nobody could tell since the start which topics there are."""
        ...

    def topics(self) -> Sequence[Topic]: ...

    @property
    def partitions_left(self) -> int:
        """How many more there may be, as far as is known here."""
        ...

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        """Durable on return. Raises `TopicExists`; then this node knows the topic that has the name.

        `LeaderChanged` means that nobody knows whether it was created; the same is true of all changes below.

        `maker` is stored with the topic (`Topic.maker`), so that every node can tell which request created it.
        """
        ...

    async def delete_topic(self, name: TopicName) -> None:
        """Messages and cursors go with it. Raises `TopicNotFound`."""
        ...

    # Of an internal topic (`names.is_internal`), what is below its `DONE_CURSOR` is deleted; no setting matters.

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        """Call `on_topic` for each topic there is, and from now on for each that is created."""
        ...

    def watch_deletions(self, on_deleted: Callable[[TopicName], None]) -> None:
        """Call `on_deleted` for each topic that is deleted, through whichever node: what is known of it is void."""
        ...

    def describe_partition(self, partition: PartitionId) -> PartitionDescription: ...

    # --- cursors ----------------------------------------------------------------------------------

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        """Where a named reader stands, by partition; `None` if there is no such reader."""
        ...

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]: ...

    async def catch_up_cursors(self) -> None:
        """Wait until every topic and cursor position that was stored anywhere before this call is known here."""
        ...

    def watch_cursors(self, on_move: Callable[[TopicName, CursorName], None]) -> None:
        """Call `on_move` from now on whenever a cursor of an internal topic is known to stand elsewhere."""
        ...

    def set_cursor(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool = False
    ) -> Future[None]:
        """Move some or all positions, in either direction unless `only_forward`; done once that is durable.

        Reads see the new position at once, and the old one again if it could not be stored. With no
        positions it waits for what is being stored of this cursor. A reader's own progress never goes backwards,
        whichever node it reaches; a seek may go anywhere.
        """
        ...

    async def take_cursor(
        self, topic: TopicName, name: CursorName, number: int, *, stands_at: Offset | None, to: Offset
    ) -> None:
        """Move one position from exactly where it stands, `None` being nowhere yet; durable on return.

        Raises `CursorMoved` where it stands elsewhere, through whichever node it came there: of all who read from one
        place and then take it, one gets it. `LeaderChanged` means that nobody knows who did.
        """
        ...

    async def draw_cursor(
        self,
        topic: TopicName,
        name: CursorName,
        number: int,
        *,
        start: Offset,
        end: Offset,
        wanted: Sequence[Draw],
        notes_nothing: bool = False,
    ) -> list[Drawn]:
        """Give readers who share a cursor what comes next in one partition, in their order; durable on return.

        From where the cursor stands, but not below `start`, up to `end`: of all that is drawn, through whichever nodes,
        no offset is given twice. A draw that comes twice is recognised by its reader and request, also after a change
        of leader, and has the same result (`model.draws`). That nothing is to be had is as current as what is known
        here; with `notes_nothing` it is a result like any other, and makes the cursor where there is none.
        `LeaderChanged` means that nobody knows; to draw again with the same requests is safe.
        """
        ...

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None: ...

    # --- the cluster ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        """The nodes and what they do; a node without peers is a cluster of one."""
        ...

    def describe_groups(self, topic: TopicName | None) -> list[GroupDescription]:
        """The groups of a topic's partitions, or all there are, as this node sees them."""
        ...

    async def transfer(self, partition: PartitionId | None, node: str) -> None:
        """Have another node lead a partition, or the control group. Raises `BadValue`."""
        ...

    # Nodes come and go, one at a time. What is asked for is decided on return, and carried out after that; `members`
    # tells how far it is. Raise `NotSupported` where nodes are not what keeps messages, `NodeNotFound`,
    # `MembershipChanging` and `WouldLoseQuorum`.

    async def members(self) -> MembersDescription:
        """The nodes that belong to the cluster, are about to, or have left it."""
        ...

    def check_belongs(self) -> None:
        """Raises `NodeRemoved` where this node was taken out: what it has is old, and whoever waits here waits in vain.

        Those who watch a partition are told then.
        """
        ...

    async def remove_member(self, node: str, *, undo: bool = False) -> None:
        """Have a node lead nothing, and leave all groups; or stay, where it is leaving."""
        ...

    async def drain_member(self, node: str, *, undo: bool = False) -> None:
        """Have a node lead nothing until that is undone."""
        ...

    async def replace_member(self, old: str, new: str) -> None:
        """Have a node leave as soon as another one votes everywhere."""
        ...


class NoMembers:
    """For a backend whose nodes do not come and go by being told to."""

    why_no_members: ClassVar[str]

    async def members(self) -> MembersDescription:
        raise NotSupported(self.why_no_members)

    def check_belongs(self) -> None:
        return

    async def remove_member(self, node: str, *, undo: bool = False) -> None:
        raise NotSupported(self.why_no_members)

    async def drain_member(self, node: str, *, undo: bool = False) -> None:
        raise NotSupported(self.why_no_members)

    async def replace_member(self, old: str, new: str) -> None:
        raise NotSupported(self.why_no_members)


class NothingVoid:
    """For a backend whose nodes give nothing away, and whose store forgets nothing."""

    def is_void(self, partition: PartitionId, offset: Offset) -> bool:
        return False

    def cuts(self, partition: PartitionId) -> Sequence[Offset]:
        return ()
