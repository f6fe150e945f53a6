"""Opening a data directory: everything is made whole after a crash, and what cannot be is noticed.

A node that stands alone serves around damage: there is nobody to ask. A node with peers must not: what it lost
may be what a majority relied on. It begins a new life before it takes part in anything, sets the damaged parts
aside, and is let in again as a newcomer that gets them from the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from holdfast.backends.cluster import commands, levels, snapshots, state_versions
from holdfast.backends.cluster.commands import DeleteTopic, RaiseLevel
from holdfast.backends.cluster.control import CONTROL
from holdfast.backends.cluster.hard_states import HardStates
from holdfast.backends.cluster.log_shapes import shape_of
from holdfast.backends.cluster.state import Loaded, StateStore
from holdfast.backends.cluster.topic_files import TopicFiles, report_damage
from holdfast.backends.cluster.topics import group_of
from holdfast.consensus.members import members_in_log
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.entries import KIND_COMMAND, NOTE_HEAD_BYTES
from holdfast.model.errors import BuildTooOld, DataDirectoryError, HoldfastError
from holdfast.model.ids import LogIndex, Offset, TimestampMs, TopicName
from holdfast.model.limits import MIB
from holdfast.model.names import path_part
from holdfast.model.topics import Topic
from holdfast.storage.directory import DataDirectory
from holdfast.storage.entries import DamagedEntries
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal, VotesDamaged

log = structlog.get_logger("holdfast.storage")

# Commands are small; a node that is behind gets a snapshot rather than years of them.
_CONTROL_SEGMENT_BYTES: Final = 4 * MIB


class Opened(NamedTuple):
    store: StateStore
    loaded: Loaded
    hard_states: HardStates
    control_log: PartitionLog
    logs: dict[TopicName, list[PartitionLog]]
    # Tokens of topics that the control log deletes further on.
    leaving: set[str]


class Opening:
    """One start of one node.

    Whether somebody else has what this one lost is known by the votes it has given: there stands who votes in the
    control group. `has_peers` is what the settings say, for where nothing was voted on yet, and for a pair, whose half
    that goes on alone is followed by the other all the same.
    """

    def __init__(
        self,
        directory: DataDirectory,
        files: TopicFiles,
        *,
        has_peers: bool,
        is_pair: bool,
        now_ms: Callable[[], TimestampMs],
        on_failure: Callable[[HoldfastError], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._has_peers = has_peers
        self._is_pair = is_pair
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._has_new_life = False

    def open(self) -> Opened:
        """Raises `DataDirectoryError`; for what a newer build has written before anything is changed."""
        state_versions.check_before_opening(self._directory.state_file)
        try:
            return self._tried()
        except BuildTooOld:
            raise
        except DataDirectoryError:
            # A full disk must not keep people from reading: the reserve is for this.
            if not self._directory.release_reserve():
                raise
            return self._tried()

    def _tried(self) -> Opened:
        """Everything or nothing: what was opened is closed again if a later part cannot be."""
        with contextlib.ExitStack() as undo:
            try:
                opened = self._open(undo)
            except OSError as error:
                path = self._directory.path
                raise DataDirectoryError(f"cannot use {path}: {error.strerror}; check room and permissions") from error
            undo.pop_all()
            return opened

    def _lose(self, what: str) -> None:
        """Something that was promised is gone: be somebody else before anything is mended or made anew."""
        log.error("lost", what=what)
        if self._has_peers and not self._has_new_life:
            self._directory.begin_new_life(self._now_ms())
            self._has_new_life = True
            log.error("new_life", life=self._directory.life, hint="the other nodes have it all")

    def _open(self, undo: contextlib.ExitStack) -> Opened:
        snapshots.remove_incoming(self._directory.path)
        self._files.empty_trash()
        had_state, had_control = self._directory.state_file.exists(), _has_segments(self._directory.control)
        hard_states = self._open_votes(must_exist=self._has_peers and (had_state or had_control))
        undo.callback(hard_states.journal.close)
        if not had_control:
            self._look_for_others(hard_states, None)
        if hard_states.of(CONTROL) is not None and not had_control:
            self._lose("the control log is missing")
        control_log, recovery = PartitionLog.open(self._directory.control, segment_bytes=_CONTROL_SEGMENT_BYTES)
        undo.callback(control_log.close)
        if had_control:
            self._look_for_others(hard_states, control_log)
        store, loaded = self._open_state()
        undo.callback(store.close_now)
        if recovery.holes:
            self._lose("the control log is damaged")
        self._go_on_as_the_only_voter(hard_states)
        self._join(control_log, loaded, is_damaged=bool(recovery.holes))
        logs: dict[TopicName, list[PartitionLog]] = {}
        leaving = _deletions(control_log, loaded.applied)
        for known in list(loaded.topics.values()):
            topic = self._with_files(known, leaving, hard_states)
            if topic is None:
                continue
            loaded.topics[topic.name] = topic
            logs[topic.name] = self._open_logs(topic, hard_states)
            for partition_log in logs[topic.name]:
                undo.callback(partition_log.close)
        if self._has_peers:
            self._look_at_younger_topics({topic.token for topic in loaded.topics.values()})
        return Opened(store, loaded, hard_states, control_log, logs, leaving)

    def _look_for_others(self, hard_states: HardStates, control_log: PartitionLog | None) -> None:
        """A cluster that shrank to this node has nobody else, whatever its settings say: a new life had no majority.

        A log that is missing or damaged says nothing against a configuration that was saved.
        """
        saved = hard_states.of(CONTROL)
        if saved is None or self._is_pair:
            return
        found = saved.members
        if control_log is not None and not control_log.holes():
            found = members_in_log(found, shape_of(control_log))
        self._has_peers = any(node_of(voter) != self._directory.identity.node for voter in found[-1].members.voters)

    def _go_on_as_the_only_voter(self, hard_states: HardStates) -> None:
        """Without its `holdfast.json` a node has another life; a broker that stands alone would never vote again."""
        saved = hard_states.of(CONTROL)
        if saved is None or self._has_peers or self._is_pair or len(saved.members[-1].members.voters) != 1:
            return
        (voter,) = saved.members[-1].members.voters
        if life_of(voter) != self._directory.life:
            log.warning(
                "goes_on_as_before", life=life_of(voter), hint="holdfast.json was lost; votes.log says who this is"
            )
            self._directory.resume(life_of(voter))

    def _open_votes(self, *, must_exist: bool) -> HardStates:
        path = self._directory.votes_file
        try:
            return HardStates(*VoteJournal.open(path, must_exist=must_exist))
        except VotesDamaged as error:
            # Alone, nobody else votes: what is lost then is only how often this node was elected.
            self._lose(error.message)
            if path.exists():
                path.rename(path.with_name(f"{path.name}.damaged-{self._now_ms()}"))
            return HardStates(*VoteJournal.open(path))

    def _open_state(self) -> tuple[StateStore, Loaded]:
        """With peers a damaged file is not mended: it begins anew, and the control log or a peer fills it."""
        return StateStore.open(
            self._directory.state_file,
            damaged_suffix=f".damaged-{self._now_ms()}",
            on_failure=self._on_failure,
            on_damage=self._lose,
            may_salvage=not self._has_peers,
        )

    def _join(self, control_log: PartitionLog, loaded: Loaded, *, is_damaged: bool) -> None:
        """Make the control log and the state fit together; see the crash cases in `state.py`."""
        is_behind = loaded.applied < control_log.first_index - 1
        if is_behind:
            self._lose(f"the state ends at {loaded.applied}, the control log begins at {control_log.first_index}")
        if loaded.applied > control_log.last_index or (self._has_peers and (is_behind or is_damaged)):
            # What the state holds is sound; what comes behind it is with the others.
            control_log.reset(LogIndex(loaded.applied + 1), Offset(0), loaded.applied_term)
        elif is_behind:
            # Alone: what the log no longer has is found again by the topics' directories.
            loaded.applied = LogIndex(control_log.first_index - 1)
            loaded.is_incomplete = True

    def _with_files(self, topic: Topic, leaving: set[str], hard_states: HardStates) -> Topic | None:
        """A topic that has something to open; none if it was deleted, as the control log is about to say.

        With peers, one in which nothing was promised has lost nothing: the state came from another node, and a crash
        before its directory was made.
        """
        token = self._files.token_of(topic.name)
        if token == topic.token:
            return topic
        if topic.token in leaving:
            return None
        is_missing = token is not None or not self._files.has_directory(topic.name)
        if is_missing and (_has_promised(topic, hard_states) or not self._has_peers):
            self._lose(f"the directory of {topic.name} is {'that of another topic' if token else 'missing'}")
        if token is not None and not self._has_peers:
            # There is nobody to ask which of the two is right. Messages are not thrown away on a suspicion.
            return msgspec.structs.replace(topic, token=token)
        self._files.make(topic)
        return topic

    def _open_logs(self, topic: Topic, hard_states: HardStates) -> list[PartitionLog]:
        for number in range(topic.config.partitions):
            path = self._directory.topic(topic.name) / str(number)
            if hard_states.of(group_of(topic, number)) is not None and not _has_segments(path):
                self._lose(f"the log of {topic.name}/{number} is missing")
        return self._sound_logs(topic)

    def _look_at_younger_topics(self, known_tokens: set[str]) -> None:
        """The state may not have heard of a topic yet whose log has messages: damage there is damage, too.

        They are opened again when the control log comes to their creation; by then it is too late for a new life.
        Such a topic may have the name of one that the state still knows and the control log deletes.
        """
        for topic in self._files.described():
            if topic.token not in known_tokens:
                for partition_log in self._sound_logs(topic):
                    partition_log.close()

    def _sound_logs(self, topic: Topic) -> list[PartitionLog]:
        """The logs of a topic; with peers, one that is damaged is set aside and begun anew."""
        logs = self._files.open(topic.name, topic.config.partitions)
        for number, partition_log in enumerate(logs):
            for file, hole in partition_log.holes():
                report_damage(topic.name, number, file, hole)
            if partition_log.holes():
                self._lose(f"{topic.name}/{number} is damaged")
                if self._has_peers:
                    logs[number] = self._set_aside(topic.name, number, partition_log)
        return logs

    def _set_aside(self, name: TopicName, number: int, damaged: PartitionLog) -> PartitionLog:
        damaged.close()
        set_aside = self._directory.damaged / f"{path_part(name)}-{number}-{self._now_ms()}"
        set_aside.parent.mkdir(exist_ok=True)
        damaged.directory.rename(set_aside)
        return self._files.open_one(name, number)


def _has_promised(topic: Topic, hard_states: HardStates) -> bool:
    return any(hard_states.of(group_of(topic, number)) is not None for number in range(topic.config.partitions))


def _has_segments(path: Path) -> bool:
    """Whether a log was ever here: the name of its first file is synced before anything is promised."""
    return path.is_dir() and any(child.suffix in (".log", ".reset") for child in path.iterdir())


def _deletions(control_log: PartitionLog, applied: LogIndex) -> set[str]:
    """Tokens of topics that the control log deletes further on than the state knows. Raises `BuildTooOld`."""
    tokens: set[str] = set()
    highest = levels.BASELINE
    index = max(LogIndex(applied + 1), control_log.first_index)
    while index <= control_log.last_index:
        try:
            entries = control_log.read_entries(index, MIB, control_log.last_index)
        except DamagedEntries as damage:
            index = damage.next_index
            continue
        for entry in entries:
            if entry.kind == KIND_COMMAND:
                try:
                    found = commands.decode(entry.payload[NOTE_HEAD_BYTES:])
                except msgspec.MsgspecError:
                    # Whether a level counts is found when it is applied; what only it allows shows that it does.
                    levels.check_understood(highest)
                    raise
                highest = max([highest, *(command.level for command in found if isinstance(command, RaiseLevel))])
                tokens |= {command.token for command in found if isinstance(command, DeleteTopic)}
        index = LogIndex(index + len(entries))
    return tokens
