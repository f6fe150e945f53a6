"""What stores do for transactions: let go of what is done with, share the work, and carry on in twos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from testkit.inprocess import Nodes
from testkit.postgres import database_for
from testkit.reading import values_in
from testkit.wait import until

from holdfast.model.errors import HoldfastError, NotReplicable, WriterNotFound
from holdfast.model.ids import PartitionId
from holdfast.model.topics import TopicConfig
from holdfast.wire.transactions import DECISIONS, STAGED
from tests.postgres.stores import stored
from tests.transactions.desk import Desk, W, desk_over, stage_values, transacting


async def expire(backend: Any) -> None:
    backend = getattr(backend, "inner", backend)
    if hasattr(backend, "retention"):
        await backend.retention.expire()
    else:
        await backend.expire()


async def test_what_is_done_with_is_deleted_and_what_may_be_committed_stays(desk: Desk) -> None:
    await desk.create()
    staged, decided = PartitionId(STAGED, W), PartitionId(DECISIONS, W)
    backend = desk.broker.backend
    for number in range(60):
        await desk.commit(number, await desk.stage(number, b"x" * 500))
    kept = await desk.stage(60, b"kept")
    for number in range(3):
        await desk.stage(61 + number, b"y" * 500)

    async def is_freed() -> bool:
        await expire(backend)
        return backend.start_offset(staged) > 30 and backend.start_offset(decided) > 30

    await until(is_freed)
    assert backend.start_offset(staged) <= 60
    await desk.restart()
    assert (await desk.commit(30)).duplicate
    await desk.commit(60, kept)
    assert await desk.values() == [b"x" * 500] * 60 + [b"kept"]


async def test_brokers_over_one_database_share_the_work_and_take_it_over(tmp_path: Path) -> None:
    url = database_for(tmp_path)
    async with (
        stored(url, "n1") as one,
        stored(url, "n2") as two,
        transacting({"n1": one.broker, "n2": two.broker}) as made,
    ):
        await one.broker.create_topic("t", TopicConfig())
        for number in range(6):
            through, other = made[f"n{1 + number % 2}"], made[f"n{2 - number % 2}"]
            await through.commit("w", number, [await stage_values(other, number, b"%d" % number)])
            assert (await other.commit("w", number, [])).duplicate
        partitions = [PartitionId(DECISIONS, number) for number in range(8)]

        def held(by: Any) -> int:
            return sum(by.backend.reign(each) is not None for each in partitions)

        await until(lambda: held(one) > 0 < held(two) and held(one) + held(two) == 8)
        await made.pop("n1").stop()
        await one.backend.stop()
        await made["n2"].commit("w", 6, [await stage_values(made["n2"], 6, b"6")])
        assert await values_in(two.broker, "t") == [b"%d" % number for number in range(7)]


async def test_either_of_a_pair_goes_on_with_the_writers_numbers(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, is_pair=True)
    await nodes.start()
    try:
        async with transacting(nodes.brokers) as made:

            def are_together() -> bool:
                groups = nodes.backends["n2"].groups.replicas.values()
                return all(len(each.raft.members.voters) == 2 and each.raft.hears_leader for each in groups)

            await until(are_together)
            await nodes.brokers["n1"].create_topic("t", TopicConfig())
            await made["n2"].commit("w", 0, [await stage_values(made["n1"], 0, b"0")])
            receipt = await stage_values(made["n1"], 1, b"1")
            await until(are_together)
            await made.pop("n1").stop()
            await nodes.stop("n1")

            async def is_committed() -> bool:
                try:
                    return not (await made["n2"].commit("w", 1, [receipt])).duplicate
                except HoldfastError:
                    return False

            await until(is_committed)
            assert (await made["n2"].commit("w", 0, [])).duplicate
            assert await values_in(nodes.brokers["n2"], "t") == [b"0", b"1"]
    finally:
        await nodes.stop()


async def test_plain_pair_refuses_transactions_and_says_why(tmp_path: Path) -> None:
    async with desk_over("plain", tmp_path) as desk:
        await desk.create()
        with pytest.raises(NotReplicable, match="no transactions"):
            await desk.stage(0, b"a")
        with pytest.raises(NotReplicable, match="no transactions"):
            await desk.commit(0)
        await desk.transactions.abort("w")
        with pytest.raises(WriterNotFound):
            await desk.transactions.writer("w")
        assert desk.transactions.waiting() == 0
        assert [topic.topic for topic in desk.broker.topics()] == ["t"]
