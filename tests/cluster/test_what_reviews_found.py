"""What was wrong once: deletions through another node, late commands, lost directories, full disks, full lanes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from testkit.inprocess import Nodes, OneNode, now_ms, running
from testkit.wait import until

from holdfast.backends.cluster import commands, hard_states
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.hard_states import HardStates
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.messages import Message, VoteReply, VoteRequest
from holdfast.model.errors import HoldfastError, TopicNotFound
from holdfast.model.ids import GroupId, LogIndex, Offset, PartitionId, Term, TopicName
from holdfast.model.limits import PEER_REQUESTS_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.names import path_part
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal

T = PartitionId(TopicName("t"), 0)


async def test_message_to_a_topic_made_anew_is_stored_though_its_id_was_used_in_the_one_before(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        leader = await nodes.leader("t")
        await nodes.brokers[leader].publish("t", [NewMessage(value=b"old", id="a")])
        for broker in nodes.brokers.values():
            await broker.stand_by()
        other = nodes.brokers[nodes.another_than(leader)]
        await other.delete_topic("t")
        await other.create_topic("t", TopicConfig())
        (published,) = await other.publish("t", [NewMessage(value=b"new", id="a")])
        assert (published.offset, published.duplicate) == (0, False)


async def test_late_acknowledgement_does_not_move_the_reader_of_a_topic_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        leader = nodes.backends["n1"].control.replica.leader_node
        assert leader is not None
        slow, quick = nodes.another_than(leader), nodes.brokers[leader]
        await quick.publish_values("t", [b"%d" % number for number in range(50)]).offset
        await nodes.brokers[slow].open_cursor("t", "reader", "earliest")
        proposals = nodes.backends[slow]._proposals
        real, may_go = proposals._decide, asyncio.Event()

        async def late(commands: list[object]) -> object:
            await may_go.wait()
            return await real(commands)  # type: ignore[arg-type]

        monkeypatch.setattr(proposals, "_decide", late)
        acknowledged = asyncio.ensure_future(nodes.brokers[slow].ack_cursor("t", "reader", {0: Offset(50)}))
        await quick.delete_topic("t")
        await quick.create_topic("t", TopicConfig())
        await quick.publish_values("t", [b"new"] * 10).offset
        may_go.set()
        with pytest.raises(TopicNotFound):
            await acknowledged
        read = await quick.read_cursor("t", "reader", messages_max=100, bytes_max=1 << 20)
        assert len(read.messages) == 10


async def test_node_that_lost_a_log_does_not_help_to_forget_what_was_acknowledged(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.brokers["n1"].create_topic("t", TopicConfig())
    await nodes.leader("t")
    await nodes.stop("n3")
    for _ in range(5):
        await nodes.brokers["n1"].publish_values("t", [b"acknowledged"]).offset
    await until(lambda: nodes.backends["n2"].end_offset(T) == 5)
    lives = {name: backend._directory.life for name, backend in nodes.backends.items()}
    await nodes.stop()
    shutil.rmtree(tmp_path / "n2" / "topics" / "t" / "0")
    await nodes.start("n2", "n3")
    assert nodes.backends["n2"]._directory.life != lives["n2"]
    with pytest.raises(HoldfastError):
        await nodes.brokers["n3"].publish_values("t", [b"instead"]).offset
    await nodes.start("n1")
    await until(lambda: all(backend.end_offset(T) == 5 for backend in nodes.backends.values()))
    await nodes.stop()


@pytest.mark.parametrize("topic", ["t", "../a/b"])
async def test_damage_in_a_topic_that_the_state_had_not_heard_of_is_mended_from_the_others(
    tmp_path: Path, topic: str
) -> None:
    """A node that was killed just after a topic was made knows of it from the control log only."""
    partition = PartitionId(TopicName(topic), 0)
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(topic, TopicConfig())
    values = [b"%d" % number * 20 for number in range(200)]
    for value in values:
        await nodes.brokers["n1"].publish_values(topic, [value]).offset
    await until(lambda: nodes.backends["n3"].end_offset(partition) == len(values))
    life = nodes.backends["n3"]._directory.life
    await nodes.stop("n3")
    with contextlib.closing(sqlite3.connect(tmp_path / "n3" / "state.sqlite", isolation_level=None)) as state:
        state.executescript("DELETE FROM topics; DELETE FROM nodes; UPDATE applied SET log_index = 0, term = 0;")
    (segment,) = (tmp_path / "n3" / "topics" / path_part(topic) / "0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 3] ^= 0xFF
    segment.write_bytes(content)
    await nodes.start("n3")
    assert nodes.backends["n3"]._directory.life != life
    (kept,) = (tmp_path / "n3" / "damaged").iterdir()
    assert list(kept.glob("*.log")), "what was damaged is kept"
    await until(lambda: nodes.backends["n3"].end_offset(partition) == len(values))
    messages, _ = await nodes.brokers["n3"].read(topic, 0, Offset(0), len(values), 1 << 20)
    assert [message.value for message in messages] == values
    await nodes.stop()


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.ENOMEM])
async def test_newer_vote_is_not_overwritten_by_one_that_waited_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """Else a node that has voted in a term could vote once more after a crash."""
    states = HardStates(*VoteJournal.open(tmp_path / "votes.log"))
    sent: list[tuple[str, Message]] = []

    class Transport:
        is_outvoted = False

        def send(self, node: str, group: int, message: Message) -> None:
            sent.append((node, message))

        def is_up(self, node: str) -> bool:
            return True

        def drop_link(self, node: str, reason: str) -> None:
            raise AssertionError(reason)

    def fail(error: HoldfastError) -> None:
        raise AssertionError(error.message)

    me = ReplicaId("n1.a")
    groups = Groups(me, transport=Transport(), hard_states=states, sync=parse_sync_policy("group"), on_failure=fail)
    log, _ = PartitionLog.open(tmp_path / "log")
    replica = groups.add(GroupId(1), "p", log, Members.of([me, "n2.b", "n3.c"]))

    def full(*record: object) -> int:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "pwrite", full)
    groups.on_messages(ReplicaId("n2.b"), [(1, VoteRequest(Term(5), LogIndex(0), Term(0), False, False))])
    await asyncio.sleep(0)
    assert groups._unsaved
    monkeypatch.undo()
    groups.on_messages(ReplicaId("n3.c"), [(1, VoteRequest(Term(6), LogIndex(0), Term(0), False, False))])
    await until(lambda: ("n3", VoteReply(Term(6), True, False)) in sent)
    groups._tick()
    await groups.stop()
    replica.log.close()
    groups.close()
    _, found = VoteJournal.open(tmp_path / "votes.log")
    assert hard_states.decode(found[1])[:2] == (6, "n3.c")


async def test_more_than_a_thousand_publishes_at_once_get_through_a_node_that_does_not_lead(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        follower = nodes.brokers[nodes.another_than(await nodes.leader("t"))]
        count = PEER_REQUESTS_MAX + 300  # more than one node asks of another at once
        sent = [follower.publish_values("t", [b"%d" % number]).offset for number in range(count)]
        outcomes = Counter(type(each).__name__ for each in await asyncio.gather(*sent, return_exceptions=True))
        assert outcomes == {"int": count}
        assert [future.result() for future in sent] == sorted(future.result() for future in sent), "order is lost"


async def test_broker_that_stood_alone_is_not_made_one_of_three(tmp_path: Path) -> None:
    """Its peers would have nothing of what it has, and nobody would notice."""
    store = OneNode(tmp_path / "n1")
    await store.open()
    await store.create("t")
    await store.stop()
    nodes = Nodes(tmp_path)
    with pytest.raises(HoldfastError, match="stands alone"):
        await nodes.start("n1")


async def test_topic_begins_with_the_members_of_the_moment_not_with_those_its_proposer_knew(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as nodes:
        leader = nodes.backends["n1"].control.replica.leader_node
        assert leader is not None
        lost = nodes.another_than(leader)
        await nodes.stop(lost)
        shutil.rmtree(tmp_path / lost)
        await nodes.start(lost)
        control = nodes.backends[leader].control.replica.raft
        now = nodes.backends[lost].groups.me
        await until(lambda: now in control.members.voters)
        # What is proposed names no voters: who proposes it may be behind, and take a lost disk for one of them.
        proposer = nodes.backends[nodes.another_than(leader, lost)]
        proposed = proposer._changes.creation(Topic(name=TopicName("t"), config=TopicConfig(), created_ms=now_ms()))
        assert not any(now in str(part) or "voters" in str(part) for part in msgspec.structs.astuple(proposed))
        await proposer.create_topic(TopicName("t"), TopicConfig())
        assert set(nodes.backends[leader].topics_here.known[TopicName("t")].voters) == control.members.voters
        assert now in control.members.voters


async def test_creation_in_an_older_log_is_understood(tmp_path: Path) -> None:
    """It named its first replicas itself."""
    async with running(tmp_path) as nodes:
        backend = nodes.backends["n1"]
        voters = tuple(sorted(backend.control.replica.raft.members.voters))
        older = (1, "old", {"partitions": 2}, 7, voters, "token")
        (command,) = commands.decode(msgspec.msgpack.encode([older]))
        assert isinstance(command, commands.CreateTopicOfBefore)
        await backend._proposals.propose(command)
        topic = backend.topics_here.known[TopicName("old")]
        assert (topic.voters, topic.token, topic.config.partitions) == (voters, "token", 2)


async def test_groups_that_lost_no_message_sleep_on_when_a_link_was_full(tmp_path: Path) -> None:
    """There may be thousands, and each that is awake sends heartbeats over a link that is full as it is."""
    async with running(tmp_path) as nodes:
        backend = nodes.backends["n1"]
        for name in ("lost", "kept"):
            await nodes.brokers["n1"].create_topic(name, TopicConfig())
            await backend.transfer(PartitionId(TopicName(name), 0), "n1")
        lost, kept = (backend.topics_here.replicas[PartitionId(TopicName(name), 0)] for name in ("lost", "kept"))
        await until(lambda: lost.leads and kept.leads and lost.raft.is_asleep and kept.raft.is_asleep, "both sleep")
        backend.groups.on_dropped("n2", {lost.group})
        assert not lost.raft.is_asleep and kept.raft.is_asleep
        await until(lambda: lost.raft.is_asleep, "its leader knows again what the others have")
        assert lost.raft.leading is not None
        assert {each.match for each in lost.raft.leading.progress.values()} == {lost.raft.shape.last_index}
