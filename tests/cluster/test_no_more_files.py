"""A node cannot open files for a moment, or has no room: nothing that was not written counts, and it goes on later."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster.hard_states import HardStates
from holdfast.backends.cluster.log_shapes import shape_of
from holdfast.backends.cluster.replica import Replica
from holdfast.consensus.members import Members, members_in_log
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.topics import TopicConfig
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal

ORDERS = TopicName("orders")
PARTITION = PartitionId(ORDERS, 0)
SEGMENT_BYTES = 4096

no_files = pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC])


def refuse_new_segments(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    really_open = os.open

    def opened(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".log") and flags & os.O_EXCL:
            raise OSError(reason, os.strerror(reason))
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)


async def full_segments(nodes: Nodes) -> str:
    """The next entry begins another file on every node; who leads."""
    await nodes.backends["n1"].create_topic(ORDERS, TopicConfig())
    leader = await nodes.leader(ORDERS)
    await nodes.brokers[leader].publish_values(ORDERS, [b"x" * 4000]).offset
    return leader


def replica_of(nodes: Nodes, name: str) -> Replica:
    return nodes.backends[name].topics_here.replicas[PARTITION]


def members_after_a_crash(data: Path, replica: Replica) -> Members:
    states = HardStates(*VoteJournal.open(data / "votes.log"))
    states.journal.close()
    log, _ = PartitionLog.open(data / "topics" / ORDERS / "0", segment_bytes=SEGMENT_BYTES)
    state = states.of(replica.group)
    assert state is not None
    return members_in_log(state.members, shape_of(log))[-1].members


@no_files
async def test_configuration_that_was_never_written_does_not_count_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """A node that goes by other members than the rest could help to acknowledge what is lost."""
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await full_segments(nodes)
        replica = replica_of(nodes, leader)
        everybody = replica.raft.members
        one_less = Members(everybody.voters - {min(everybody.voters - {replica.raft.replica})})
        with monkeypatch.context() as patched:
            refuse_new_segments(patched, reason)
            nodes.backends[leader].groups.change_members_now([(replica, one_less)])
        # Something else takes the place of that entry, whoever leads by then.
        await nodes.brokers[leader].publish_values(ORDERS, [b"y"]).offset
        await until(lambda: all(replica_of(nodes, name).end == 2 for name in nodes.backends))
        shutil.copytree(tmp_path / leader, tmp_path / "killed")
        assert members_after_a_crash(tmp_path / "killed", replica) == everybody
        assert not nodes.failed


@no_files
async def test_followers_that_cannot_open_a_file_for_a_moment_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await full_segments(nodes)
        await until(lambda: all(replica_of(nodes, name).end == 1 for name in nodes.backends))
        # The leader has its next file already.
        replica_of(nodes, leader).log._begin_segment()
        with monkeypatch.context() as patched:
            refuse_new_segments(patched, reason)
            appended = nodes.brokers[leader].publish_values(ORDERS, [b"y" * 3000]).offset
            others = [replica_of(nodes, name) for name in nodes.backends if name != leader]
            await until(lambda: all(each.has_backlog for each in others))
        assert await appended == Offset(1)
        assert not nodes.failed
