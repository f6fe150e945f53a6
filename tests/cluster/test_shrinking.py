"""A cluster that is set to shrink goes on while its nodes die one by one, and grows again when they are back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from testkit.inprocess import Nodes
from testkit.wait import until

from holdfast.backends.cluster import formation
from holdfast.cli.check import shrinking_in_words
from holdfast.consensus import letting_in
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.messages import Append, Message
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig

ORDERS = TopicName("orders")


def shrinking(root: Path) -> Nodes:
    return Nodes(root, shrink_after_ms=1_000)


async def publish(nodes: Nodes, name: str, text: str, topic: TopicName = ORDERS) -> None:
    """Sent again until it is acknowledged: which is what is tested."""

    async def is_stored() -> bool:
        try:
            await nodes.brokers[name].publish(topic, [NewMessage(value=text.encode(), id=text)])
        except HoldfastError:
            return False
        return True

    await until(is_stored)


async def texts(nodes: Nodes, name: str, topic: TopicName = ORDERS) -> list[str]:
    """All of them: a read that finds nothing more has made sure that there is nothing more."""
    found: list[str] = []
    offset, is_over = Offset(0), False
    while not is_over:
        messages, offset = await nodes.brokers[name].read(topic, 0, offset, 1000, 1 << 20)
        found += [bytes(message.value).decode() for message in messages]
        is_over = not messages
    return found


def voters(nodes: Nodes, name: str) -> list[set[str]]:
    """Of every group, as this node knows it, the control group among them."""
    groups = nodes.backends[name].groups.replicas.values()
    return [set(map(node_of, replica.raft.members.voters)) for replica in groups]


async def vote(nodes: Nodes, *names: str) -> None:
    await vote_of(nodes, *nodes.backends, names=names)


async def two_are_left(nodes: Nodes, *names: str) -> None:
    """Each of them knows that the other one has the same configuration: either may go on without the other."""
    await vote(nodes, *names)
    await until(lambda: all(each.upkeep.shrinking.is_agreed for each in nodes.backends.values()))


async def vote_of(nodes: Nodes, *on: str, names: Sequence[str] = ()) -> None:
    """The same, as some of the nodes know it; they are the voters themselves unless others are named."""
    await until(lambda: all(each == set(names or on) for name in on for each in voters(nodes, name)))


async def test_three_nodes_that_die_one_by_one_are_served_by_the_last_and_grow_again(tmp_path: Path) -> None:
    async with shrinking(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic(ORDERS, TopicConfig())
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        await publish(nodes, "n2", "with two")
        await nodes.stop("n1")
        await vote(nodes, "n2")
        await publish(nodes, "n2", "alone")
        await publish(nodes, "n2", "a topic made alone", TopicName("later"))
        # What one node acknowledged alone outlives its restart.
        await nodes.stop("n2")
        await nodes.start("n2")
        await publish(nodes, "n2", "alone again")
        await nodes.start("n1", "n3")
        await vote(nodes, "n1", "n2", "n3")
        await publish(nodes, "n3", "with three again")
        wanted = ["with three", "with two", "alone", "alone again", "with three again"]
        for name in nodes.backends:
            assert await texts(nodes, name) == wanted
            assert await texts(nodes, name, TopicName("later")) == ["a topic made alone"]
        assert nodes.failed == []


async def test_node_that_was_away_waits_for_the_one_that_went_on_alone(tmp_path: Path) -> None:
    async with shrinking(tmp_path) as nodes:
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        await nodes.stop("n2")
        await vote(nodes, "n1")
        await publish(nodes, "n1", "alone")
        await nodes.stop("n1")
        # What n1 acknowledged, neither of these has.
        await nodes.start("n2", "n3")
        shrinking_of_n2 = nodes.backends["n2"].upkeep.shrinking
        await until(lambda: shrinking_of_n2.is_gone("n1"))
        with pytest.raises(HoldfastError):
            await nodes.brokers["n2"].publish(ORDERS, [NewMessage(value=b"too early")])
        await nodes.start("n1")
        await vote(nodes, "n1", "n2", "n3")
        await publish(nodes, "n2", "with three again")
        for name in nodes.backends:
            assert await texts(nodes, name) == ["with three", "alone", "with three again"]


async def test_two_that_lost_sight_of_each_other_refuse_each_other_until_one_of_them_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shrinking(tmp_path) as nodes:
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        with monkeypatch.context() as cut:
            for name, other in (("n1", "n2"), ("n2", "n1")):
                neighbours = nodes.backends[name].neighbours
                cut.setattr(neighbours, "refusal", lambda hello: "the network is cut")
                neighbours.drop_link(other, "the network is cut")
            await until(lambda: [voters(nodes, name) for name in ("n1", "n2")] == [[{"n1"}] * 2, [{"n2"}] * 2])
            await publish(nodes, "n1", "only n1 has this")
            await publish(nodes, "n2", "only n2 has this")
        n1, n2 = nodes.backends["n1"].neighbours, nodes.backends["n2"].neighbours
        for here, there in ((n1, n2), (n2, n1)):
            assert "went on alone" in (here.refusal(there.own_hello()) or "")
        # A third one that comes back follows the first one it meets, and nothing is mixed.
        await nodes.start("n3")
        await until(lambda: sum(nodes.backends["n3"].neighbours.is_up(name) for name in ("n1", "n2")) == 1)
        kept, lost = ("n1", "n2") if nodes.backends["n3"].neighbours.is_up("n1") else ("n2", "n1")
        await vote_of(nodes, kept, "n3")
        await nodes.stop(lost)
        shutil.rmtree(tmp_path / lost)
        await nodes.start(lost)
        await vote(nodes, "n1", "n2", "n3")
        await publish(nodes, lost, "together again")
        for name in nodes.backends:
            assert await texts(nodes, name) == ["with three", f"only {kept} has this", "together again"]
        assert nodes.failed == []


async def test_the_last_node_waits_with_partitions_in_which_two_others_may_have_acknowledged_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shrinking(tmp_path) as nodes:
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        await nodes.stop("n2")
        await vote(nodes, "n1")
        # The others are back and vote in the partition, but in the control group not yet: other partitions are large.
        monkeypatch.setattr(letting_in, "_votes_for_good", lambda learner, groups: not groups)
        await nodes.start("n2", "n3")
        orders = nodes.backends["n1"].topics_here.replicas[PartitionId(ORDERS, 0)]
        await until(lambda: set(map(node_of, orders.raft.members.voters)) == {"n1", "n2", "n3"})
        groups = nodes.backends["n1"].groups
        hears, is_slow = groups.on_messages, False

        def hears_later(sender: ReplicaId, messages: list[tuple[int, Message]]) -> None:
            hears(sender, [each for each in messages if not (is_slow and isinstance(each[1], Append))])

        monkeypatch.setattr(groups, "on_messages", hears_later)
        await nodes.backends["n1"].serving.transfer_anywhere(orders, "n2")
        is_slow = True
        await publish(nodes, "n2", "n1 does not have this")
        await nodes.stop("n2", "n3")
        is_slow = False
        shrinks = nodes.backends["n1"].upkeep.shrinking
        await until(lambda: shrinks.is_gone("n2") and shrinks.is_gone("n3"))
        with pytest.raises(HoldfastError):
            await nodes.brokers["n1"].publish(ORDERS, [NewMessage(value=b"too early")])
        await nodes.start("n2", "n3")
        await publish(nodes, "n1", "with three again")
        for name in nodes.backends:
            assert await texts(nodes, name) == ["with three", "n1 does not have this", "with three again"]


async def test_partition_whose_disk_is_full_does_not_make_a_mark_each_second_that_others_are_told_apart_by(
    tmp_path: Path,
) -> None:
    async with shrinking(tmp_path) as nodes:
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        here = nodes.backends["n1"]
        orders = here.topics_here.replicas[PartitionId(ORDERS, 0)]
        await here.serving.transfer_anywhere(orders, "n2")
        orders.raft.may_campaign = False
        await nodes.stop("n2")
        shrinks = here.upkeep.shrinking
        await until(lambda: here.control.replica.votes_alone)
        looked: list[None] = []
        look = shrinks.look
        shrinks.look = lambda: looked.append(look())  # type: ignore[method-assign]
        await until(lambda: len(looked) == 3)
        assert not orders.votes_alone
        saved = formation.load(tmp_path / "n1")
        assert saved is not None and len(saved.went_alone) == 1
        orders.raft.may_campaign = True
        await until(lambda: orders.votes_alone)


async def test_node_that_hears_that_the_other_one_goes_on_alone_does_not_do_so_on_what_was_said_before(
    tmp_path: Path,
) -> None:
    async with shrinking(tmp_path) as nodes:
        await publish(nodes, "n1", "with three")
        await nodes.stop("n3")
        await two_are_left(nodes, "n1", "n2")
        n2 = nodes.backends["n2"]
        hello = nodes.backends["n1"].neighbours.own_hello()
        went_alone = formation.decode(hello.facts["formation"].encode()).after_going_alone("n1.mark")
        # All that arrives of a new connection, before the network is cut again.
        told = msgspec.structs.replace(hello, facts=hello.facts | {"formation": went_alone.encode().decode()})
        assert n2.neighbours.refusal(told) is None
        assert not n2.upkeep.shrinking.is_agreed


@pytest.mark.parametrize(
    ("voters", "wanted"),
    [
        (["n1", "n2", "n3"], "a node that is silent for 10s loses its vote. Two that only lose contact both go on"),
        (["n1", "n2"], "no vote: n3"),
        (["n2"], "n2 goes on alone: what it acknowledges is nowhere else"),
    ],
)
def test_check_says_what_the_setting_gives_up_and_who_has_no_vote(voters: list[str], wanted: str) -> None:
    facts = {"nodes": ["n1", "n2", "n3"], "voters": voters, "shrink_after_ms": 10_000}
    assert wanted in shrinking_in_words(facts)
