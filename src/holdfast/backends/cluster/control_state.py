"""What the nodes have agreed on: topics, cursors and nodes, as far as the control log was applied here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog

from holdfast.backends.cluster import levels, member_rows, state
from holdfast.backends.cluster.callback_table import CallbackTable
from holdfast.backends.cluster.commands import (
    COMMANDS_MAX,
    AddCallback,
    ChangeMember,
    Command,
    CreateTopic,
    CreateTopicOfBefore,
    DeleteTopic,
    DrawCursor,
    DropCursor,
    MoveCallback,
    MoveCursor,
    NoteNode,
    PreferLeader,
    RaiseLevel,
    RemoveCallback,
    TakeCursor,
)
from holdfast.backends.cluster.control import Answered
from holdfast.backends.cluster.cursor_table import CursorTable, Propose, ProposeDraw
from holdfast.backends.cluster.draw_table import DrawRow
from holdfast.backends.cluster.levels import ClusterLevel
from holdfast.backends.cluster.state import Loaded, NodeRow, Statement
from holdfast.backends.cluster.topics import Topics
from holdfast.consensus.members import ReplicaId, members_at
from holdfast.consensus.membership import Change, Kind, Membership
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.errors import ClusterLevelTooLow, NotFound, TopicNotFound
from holdfast.model.ids import LogIndex, Offset, PartitionId, TopicName
from holdfast.model.names import callback_at, callback_place, is_internal

log = structlog.get_logger("holdfast.backends.cluster")


class ControlState:
    """In memory for reading; what `apply` returns belongs into the file."""

    def __init__(
        self,
        topics: Topics,
        propose: Propose,
        propose_draw: ProposeDraw,
        loaded: Loaded,
        raft: Raft,
        level: ClusterLevel,
    ) -> None:
        self.topics = topics
        self.level = level
        self._raft = raft
        self.cursors = CursorTable(propose, propose_draw, topics.token_of, loaded.cursors, loaded.draws)
        self.callbacks = CallbackTable(propose, topics.token_of, loaded.callbacks)
        self.nodes = loaded.nodes
        # A node has said something new of itself.
        self.on_noted: Callable[[], None] = lambda: None
        self.membership = Membership(loaded.members)
        # Told when a node came, went, or is reached elsewhere.
        self.on_nodes: Callable[[], None] = lambda: None
        topics.preferred = loaded.preferred

    async def bring_cursors_back(self, end_offset: Callable[[PartitionId], Offset]) -> None:
        """With a weaker sync a power loss may take messages that readers had: they get the ones that follow."""
        for topic, name in self.cursors.keys():  # noqa: SIM118 - a table, not a dict
            if is_internal(topic):
                continue  # they count other things than messages of their partitions
            positions = self.cursors.get((topic, name)) or {}
            ends = {number: end_offset(PartitionId(topic, number)) for number in positions}
            known = topic in self.topics.known
            beyond = {number: end for number, end in ends.items() if known and positions[number] > end}
            if beyond:
                log.warning("cursor_beyond_end", topic=topic, cursor=name, moved_to=beyond)
                with contextlib.suppress(NotFound):  # somebody removes it
                    await self.cursors.set((topic, name), beyond, only_forward=False)

    async def apply(self, command: Command, number: int) -> list[Statement] | Answered:
        """Make a command true here. Raises its outcome where it has none; the same on every node.

        `number` tells a command from all others, and is the same on every node.
        """
        match command:
            case CreateTopic():
                voters = members_at(self._raft.members_history, LogIndex(number // COMMANDS_MAX)).members.voters
                return [state.topic_row(await self.topics.create(command, number, voters))]
            case CreateTopicOfBefore():
                named = map(ReplicaId, command.voters)
                return [state.topic_row(await self.topics.create(command, number, named))]
            case DeleteTopic():
                topic = await self.topics.delete(command)
                self.cursors.forget_topic(topic.name)
                self.callbacks.forget_topic(topic.name)
                # What subscribers got of it may be another topic's, where their places are.
                places = [key for key in self.cursors.keys() if (callback_at(*key) or key)[0] == topic.name]  # noqa: SIM118
                for key in places:
                    self.cursors.apply_drop(key)
                return state.without_topic(topic.name) + [row for key in places for row in state.without_cursor(key)]
            case MoveCursor():
                self._check(command.topic, command.token)
                self.callbacks.check_seek(command.topic, command.name)
                changed = self.cursors.apply(command)
                sought = self.callbacks.sought(command.topic, command.name, number)
                return [*map(state.callback_row, sought), *state.cursor_rows((command.topic, command.name), changed)]
            case TakeCursor():
                self._check(command.topic, command.token)
                return self._moved(command, *self.cursors.apply_take(command))
            case DrawCursor():
                self._check(command.topic, command.token)
                results, changed, rows = self.cursors.apply_draw(command)
                return Answered(self._moved(command, changed, rows), results)
            case DropCursor():
                self._check(command.topic, command.token)
                self.cursors.apply_drop((command.topic, command.name))
                return state.without_cursor((command.topic, command.name))
            case NoteNode():
                return self._note(
                    NodeRow(command.node, command.life, command.addresses, command.version, command.level)
                )
            case ChangeMember():
                return self._change(command, number)
            case PreferLeader():
                self._check(command.topic, command.token)
                self.topics.preferred[PartitionId(command.topic, command.partition)] = command.node
                return [state.preferred_row(command.topic, command.partition, command.node)]
            case RaiseLevel():
                return self._raise_level(command.level, LogIndex(number // COMMANDS_MAX))
            case AddCallback():
                self._check(command.topic, command.token)
                self._check(command.delivered, command.delivered_token)
                callback, is_new = self.callbacks.apply_add(command, number)
                begin = self._move_callback(command, only_forward=False) if is_new else []
                return [state.callback_row(callback), *begin]
            case RemoveCallback():
                if not self.callbacks.apply_remove(command):
                    return []
                place = callback_place(command.topic, command.name, command.delivered)
                self.cursors.apply_drop((command.delivered, place))
                return [
                    state.without_callback((command.topic, command.name)),
                    *state.without_cursor((command.delivered, place)),
                ]
            case MoveCallback():
                self._check(command.delivered, command.delivered_token)
                moved = [state.callback_row(each) for each in self.callbacks.apply_move(command)]
                return moved + self._move_callback(command, only_forward=True)

    def _moved(
        self, command: TakeCursor | DrawCursor, changed: dict[int, Offset], rows: list[DrawRow]
    ) -> list[Statement]:
        key = (command.topic, command.name)
        return [*state.cursor_rows(key, changed), *(state.draw_row(key, command.number, row) for row in rows)]

    def _move_callback(self, command: AddCallback | MoveCallback, *, only_forward: bool) -> list[Statement]:
        place = callback_place(command.topic, command.name, command.delivered)
        move = MoveCursor(command.delivered, command.delivered_token, place, command.positions, only_forward)
        return state.cursor_rows((command.delivered, place), self.cursors.apply(move))

    def _raise_level(self, level: int, index: LogIndex) -> list[Statement]:
        """Only if all members have said that they understand it where this stands; who proposed it saw less."""
        if level <= self.level.number:
            return []
        members = members_at(self._raft.members_history, index).members.everybody
        if behind := levels.behind(level, members, self.nodes):
            raise ClusterLevelTooLow(f"level {level} is not understood by {', '.join(behind)}; upgrade what is older")
        self.level.raise_to(level)
        return state.level_rows(level)

    def _note(self, row: NodeRow) -> list[Statement]:
        self.nodes[row.node] = row
        self.on_noted()
        self.on_nodes()
        return [state.node_row(row)]

    def _change(self, command: ChangeMember, number: int) -> list[Statement]:
        members = members_at(self._raft.members_history, LogIndex(number // COMMANDS_MAX)).members
        lives = {life_of(member) for member in members.everybody if node_of(member) == command.node}
        if (noted := self.nodes.get(command.node)) is not None and noted.life:
            # It said so itself, or asked to join with it: perhaps no group knows of it yet.
            lives.add(noted.life)
        change = Change(command.kind, command.node, command.expects, command.since_ms, command.other)
        changed = self.membership.apply(change, number, members.everybody, lives)
        statements = [member_rows.put(row) for row in changed]
        for row in changed:
            log.info("member_changed", node=row.node, place=row.place, drained=row.is_drained, replaces=row.replaces)
        if changed and command.kind is Kind.JOIN and command.address:
            statements += self._note(NodeRow(command.node, command.life, {"peer": command.address}))
        if changed and command.kind is Kind.GONE:
            self.nodes.pop(command.node, None)
            statements += member_rows.without_node(command.node)
            for partition in [each for each, node in self.topics.preferred.items() if node == command.node]:
                del self.topics.preferred[partition]
        self.on_nodes()
        return statements

    def _check(self, name: TopicName, token: str) -> None:
        """A command that comes late must not change another topic of the same name."""
        if self.topics.token_of(name) != token:
            raise TopicNotFound(f"topic {name} was deleted")

    async def replace(self, loaded: Loaded) -> None:
        """Take over another node's state, which is further than this one's."""
        tokens = {topic.token for topic in loaded.topics.values()}
        for topic in list(self.topics.known.values()):
            if topic.token not in tokens:
                await self.topics.delete(DeleteTopic(topic.name, topic.token))
        for topic in loaded.topics.values():
            if topic.name not in self.topics.known:
                await self.topics.open(topic)
        self.cursors.replace(loaded.cursors, loaded.draws)
        self.callbacks.replace(loaded.callbacks)
        self.nodes = loaded.nodes
        self.level.raise_to(loaded.level)
        self.membership = Membership(loaded.members)
        self.topics.preferred = loaded.preferred
        self.on_nodes()
