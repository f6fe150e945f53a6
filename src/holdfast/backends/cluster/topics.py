"""Topics on this node: what the control log says of them, made true with directories, logs and groups."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from holdfast.backends.cluster.commands import COMMANDS_MAX, CreateTopic, CreateTopicOfBefore, DeleteTopic
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.topic_files import TopicFiles
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import HoldfastError, TopicExists, TopicNotFound, Unavailable
from holdfast.model.ids import GroupId, PartitionId, TopicName
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import as_write_error

log = structlog.get_logger("holdfast.cluster")

# Partitions of a topic are groups with neighbouring numbers; group 0 is the control group.
_GROUPS_PER_TOPIC = 1 << 11
_REOPEN_S = 1.0


def group_of(topic: Topic, number: int) -> GroupId:
    return GroupId(topic.id * _GROUPS_PER_TOPIC + number)


def _close_opened(opening: asyncio.Future[list[PartitionLog]]) -> None:
    """Nobody waits for these logs any more."""
    if not opening.cancelled() and opening.exception() is None:
        for partition_log in opening.result():
            partition_log.close()


class Topics:
    """Known topics and their replicas. A topic may be known whose logs cannot be opened yet."""

    def __init__(self, files: TopicFiles, groups: Groups, founders: Members, *, is_up: Callable[[str], bool]) -> None:
        self.known: dict[TopicName, Topic] = {}
        self.replicas: dict[PartitionId, Replica] = {}
        self.watchers: list[Callable[[Topic], None]] = []
        self.reign_watchers: dict[bool, list[Callable[[PartitionId], None]]] = {False: [], True: []}
        # Of a pair: the node that should lead everything.
        self.favours: Callable[[], str | None] = lambda: None
        # The node that somebody wants to lead a partition.
        self.preferred: dict[PartitionId, str] = {}
        # Topics that are deleted further on in the control log, which is being applied again after a crash.
        self.leaving: set[str] = set()
        self.deletion_watchers: list[Callable[[TopicName], None]] = []
        self._files = files
        self._groups = groups
        # Of topics that are older than the cluster.
        self._founders = founders
        self._is_up = is_up
        self._unopened: set[TopicName] = set()
        self._reopening: asyncio.Task[None] | None = None
        # Logs that were opened before their topic is decided, by its token.
        self._prepared: dict[str, tuple[Topic, list[PartitionLog]]] = {}
        self._file_locks: dict[TopicName, tuple[asyncio.Lock, int]] = {}

    async def prepare(self, topic: Topic) -> None:
        """Open a topic's logs before it is proposed: what cannot be made here shall not be promised."""
        async with self._files_of(topic.name):
            if topic.name in self.known:
                raise TopicExists(f"topic {topic.name} exists already")
            self._prepared[topic.token] = (topic, await self._made(topic))

    async def give_up(self, topic: Topic) -> None:
        """It was not decided, as far as is known; should it be all the same, it is made anew."""
        async with self._files_of(topic.name):
            _, logs = self._prepared.pop(topic.token, (topic, []))
            for partition_log in logs:
                partition_log.close()
            is_ours = self._files.token_of(topic.name) == topic.token
            if is_ours and topic.name not in self.known:
                with contextlib.suppress(OSError):  # then it is an empty leftover for the next start
                    await asyncio.to_thread(self._files.move_to_trash, topic.name)

    @contextlib.asynccontextmanager
    async def _files_of(self, name: TopicName) -> AsyncIterator[None]:
        """One at a time makes or removes the files of a name: two topics may want it at once."""
        lock, waiting = self._file_locks.get(name, (asyncio.Lock(), 0))
        self._file_locks[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._file_locks.pop(name)
            if waiting > 1:
                self._file_locks[name] = (lock, waiting - 1)

    # --- the control log's commands -----------------------------------------------------------------

    async def create(
        self, command: CreateTopic | CreateTopicOfBefore, number: int, voters: Iterable[ReplicaId]
    ) -> Topic:
        """Raises `TopicExists` for another one of that name."""
        known = self.known.get(command.name)
        if known is not None:
            if known.token == command.token:
                return known
            raise TopicExists(f"topic {command.name} exists already")
        topic = Topic(
            name=command.name,
            config=command.config,
            created_ms=command.created_ms,
            id=number,
            token=command.token,
            voters=tuple(sorted(voters)),
        )
        await self.open(topic, is_new=True)
        log.info("topic_created", topic=topic.name, partitions=topic.config.partitions)
        return topic

    async def delete(self, command: DeleteTopic) -> Topic:
        """Raises `TopicNotFound`, also where the name belongs to another topic by now."""
        topic = self.known.get(command.name)
        if topic is None or topic.token != command.token:
            raise TopicNotFound(f"there is no topic {command.name}")
        # One step: nobody makes files under this name before the old ones are closed and gone.
        async with self._files_of(topic.name):
            await self._forget(topic)
            await asyncio.to_thread(self._files.remove, topic)
        log.info("topic_deleted", topic=topic.name)
        return topic

    # --- opening --------------------------------------------------------------------------------------

    def add(self, topic: Topic, logs: list[PartitionLog] | None) -> None:
        """A topic of the state at start; without logs, the control log is about to say that it is deleted."""
        self.known[topic.name] = topic
        if logs is not None:
            self._add(topic, logs)

    async def open(self, topic: Topic, *, is_new: bool = False) -> None:
        """Make a topic known here, once it can be used. What cannot be opened now is tried again: others have it."""
        if topic.token in self.leaving and self._files.token_of(topic.name) != topic.token:
            self.known[topic.name] = topic
            return  # it was deleted before the crash; the directory is gone, or that of its successor
        try:
            async with self._files_of(topic.name):
                logs = self._take_prepared(topic) or await self._made(topic)
                self.known[topic.name] = topic
                self._add(topic, logs, is_new=is_new)
            await self._groups.elect_at_once(self._replicas_of(topic))
        except (OSError, HoldfastError) as error:
            reason = as_write_error(error) if isinstance(error, OSError) else error
            log.error("topic_not_opened", topic=topic.name, problem=str(reason), hint="trying again every second")
            self.known[topic.name] = topic
            self._unopened.add(topic.name)
            if self._reopening is None:
                self._reopening = asyncio.get_running_loop().create_task(self._reopen_on())
        for on_topic in self.watchers:
            on_topic(topic)

    def _take_prepared(self, topic: Topic) -> list[PartitionLog] | None:
        """The logs that were opened for this topic. Those for another one of its name are closed: it lost the race."""
        for prepared, logs in [each for each in self._prepared.values() if each[0].name == topic.name]:
            del self._prepared[prepared.token]
            if prepared.token == topic.token:
                return logs
            for partition_log in logs:
                partition_log.close()
        return None

    async def _made(self, topic: Topic) -> list[PartitionLog]:
        """In a thread: each partition of a topic costs several syncs."""
        opening = asyncio.get_running_loop().run_in_executor(None, self._make_and_open, topic)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    def _make_and_open(self, topic: Topic) -> list[PartitionLog]:
        self._files.make(topic)
        return self._files.open(topic.name, topic.config.partitions)

    def _add(self, topic: Topic, logs: list[PartitionLog], *, is_new: bool = False) -> None:
        founders = Members.of(topic.voters) if topic.voters else self._founders
        for number, partition_log in enumerate(logs):
            partition = PartitionId(topic.name, number)
            replica = self._groups.add(group_of(topic, number), str(partition), partition_log, founders)
            self.replicas[partition] = replica
            replica.on_reign = functools.partial(self._tell_reign, partition)
            if is_new and len(founders.voters) > 1 and self._is_first_in_line(topic, number, replica):
                # Somebody has to begin, and nobody has to be waited for.
                replica.raft.campaign()
                self._groups.touch(replica)

    def watch(self, on_topic: Callable[[Topic], None]) -> None:
        """Those that are there, and every one that comes."""
        self.watchers.append(on_topic)
        for topic in list(self.known.values()):
            on_topic(topic)

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool) -> None:
        """Of internal topics, or of all others."""
        self.reign_watchers[of_internal].append(on_change)

    def _tell_reign(self, partition: PartitionId, replica: Replica) -> None:
        for on_change in self.reign_watchers[is_internal(partition.topic)]:
            on_change(partition)

    def _is_first_in_line(self, topic: Topic, number: int, replica: Replica) -> bool:
        """Whether this node is the first of those it sees in this partition's order of leaders."""
        for voter in self.line_of_leaders(replica.raft.members.voters, topic, number):
            if voter == replica.raft.replica:
                return True
            if self._is_up(node_of(voter)):
                return False
        return False

    async def _reopen_on(self) -> None:
        while self._unopened:
            await asyncio.sleep(_REOPEN_S)
            for name in list(self._unopened):
                with contextlib.suppress(OSError, HoldfastError):
                    await self._reopen(name)
        self._reopening = None

    async def _reopen(self, name: TopicName) -> None:
        async with self._files_of(name):
            topic = self.known.get(name)
            if topic is None or name not in self._unopened:
                return  # it was deleted, or is another one by now
            self._add(topic, await self._made(topic))
            self._unopened.discard(name)
        await self._groups.elect_at_once(self._replicas_of(topic))

    def _replicas_of(self, topic: Topic) -> list[Replica]:
        numbered = (self.replicas.get(PartitionId(topic.name, number)) for number in range(topic.config.partitions))
        return [replica for replica in numbered if replica is not None]

    async def _forget(self, topic: Topic) -> None:
        """Close everything of a topic; its files stay."""
        del self.known[topic.name]
        self._unopened.discard(topic.name)
        gone = TopicNotFound(f"topic {topic.name} was deleted")
        for number in range(topic.config.partitions):
            self.preferred.pop(PartitionId(topic.name, number), None)
            if self.replicas.pop(PartitionId(topic.name, number), None) is not None:
                await self._groups.remove(group_of(topic, number), gone)
        for on_deleted in self.deletion_watchers:
            on_deleted(topic.name)

    def token_of(self, name: TopicName) -> str:
        """What tells the topic that has this name now from others that had it."""
        topic = self.known.get(name)
        return "" if topic is None else topic.token

    def close(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()

    def line_of_leaders(self, voters: frozenset[ReplicaId], topic: Topic, number: int) -> list[ReplicaId]:
        """The order in which replicas are wanted as leaders: another one is first for each next partition."""
        ordered = sorted(voters)
        first = (topic.id // COMMANDS_MAX + topic.id % COMMANDS_MAX + number) % len(ordered)
        wanted = self.favours() or self.preferred.get(PartitionId(topic.name, number))
        return sorted(ordered[first:] + ordered[:first], key=lambda voter: node_of(voter) != wanted)

    def found(self, partition: PartitionId) -> Replica:
        """Raises `TopicNotFound`, or `Unavailable` for one that cannot be opened here now."""
        replica = self.replicas.get(partition)
        if replica is None:
            topic = self.known.get(partition.topic)
            if topic is not None and 0 <= partition.number < topic.config.partitions:
                raise Unavailable(f"{partition} could not be opened on this node yet; see its log")
            raise TopicNotFound(f"there is no partition {partition}")
        return replica
