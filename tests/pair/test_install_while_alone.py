"""One of a pair that was alone keeps what it has when its partner leads in a later term, until it has given that."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.inprocess import Nodes
from testkit.wait import until

from holdfast.backends.cluster.control import CONTROL
from holdfast.consensus.messages import Install
from holdfast.model.ids import LogIndex, Term, TopicName
from holdfast.model.topics import TopicConfig


@pytest.mark.parametrize("is_control", [True, False], ids=["state", "partition"])
async def test_nothing_is_taken_from_the_partner_before_own_messages_are_given(
    tmp_path: Path, *, is_control: bool
) -> None:
    nodes = Nodes(tmp_path, 2, is_pair=True)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TopicName("orders"), TopicConfig())
    await until(
        lambda: all(len(each.raft.members.voters) == 2 for each in nodes.backends["n1"].groups.replicas.values())
    )
    partner = nodes.backends["n2"].neighbours.own_hello()
    await nodes.stop("n2")
    n1 = nodes.backends["n1"]
    await until(lambda: all(each.votes_alone for each in n1.groups.replicas.values()))
    (group,) = [each for each in n1.groups.replicas if (each == CONTROL) is is_control]
    raft = n1.groups.replicas[group].raft
    told: list[int] = []
    n1.groups.on_replaced = lambda replica: told.append(replica.group)
    last = LogIndex(raft.shape.last_index + 100)
    install = Install(Term(raft.term + 10), last, Term(raft.term + 10), raft.members_history, b"")
    n1.serving.on_messages(partner, [(group, install)])
    assert told == [group]
    assert n1.serving._installing is None and not n1.serving._fetching_ids
    await nodes.stop()
