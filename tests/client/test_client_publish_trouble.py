"""What a publisher is told when the broker breaks off, refuses or takes too long."""

from __future__ import annotations

import asyncio
import time
from zlib import crc32

import pytest
from testkit.wait import until

from holdfast.client import (
    ConnectionLost,
    HoldfastError,
    MaybeStored,
    NewMessage,
    OutcomeUnknown,
    PublishManyLost,
    PublishManyRefused,
    RemoteError,
    connect,
)
from holdfast.client.api import Api
from holdfast.client.encoding import IdMaker
from holdfast.client.lane import Lane, Waiting
from holdfast.model.ids import PartitionId, TopicName
from holdfast.wire.record_batch import decode, decode_values
from tests.client.client_servers import (
    Answer,
    Call,
    HangUp,
    Script,
    ScriptedServer,
    batches_of,
    described,
    error,
    is_publish,
    scripted,
)


def answered(code: str, status: int = 503) -> Answer:
    return status, error(code)


HTML = b"<h1>upstream trouble</h1>"
# What the broker does to the first tries, and how often the message is sent. What a broker did not answer, or what
# something between it and the client answered, may be stored.
SENT_AGAIN_WITH_AN_ID: list[tuple[list[Answer | str], int]] = [
    (["hang up", "hang up"], 3),
    ([(500, HTML), (404, HTML)], 3),
    ([answered("leader_changed")], 2),
]
# Nothing was stored, and the broker says so.
SENT_AGAIN_WITHOUT: list[tuple[list[Answer | str], int]] = [
    ([answered("unavailable"), answered("disk_full", 507), answered("shutting_down")], 4),
    ([answered("no_quorum"), answered("not_leader")], 3),
]
SENT_ONCE_WITHOUT: list[tuple[Answer | str, type[HoldfastError], str, str]] = [
    ("hang up", OutcomeUnknown, "outcome_unknown", "not known whether it was stored"),
    (answered("leader_changed"), OutcomeUnknown, "outcome_unknown", "not known whether it was stored"),
    ((500, HTML), OutcomeUnknown, "outcome_unknown", "upstream trouble"),
    ((404, HTML), RemoteError, "http_404", "upstream trouble"),
    (answered("storage_failed"), RemoteError, "storage_failed", "the script says storage_failed"),
    (answered("topic_not_found", 404), RemoteError, "topic_not_found", "the script says topic_not_found"),
]


async def test_message_is_sent_again_until_it_is_stored_where_that_cannot_store_it_twice() -> None:
    for retry_safe, rows in ((True, SENT_AGAIN_WITH_AN_ID), (False, SENT_AGAIN_WITHOUT)):
        for script, tries in rows:
            async with scripted(Script(*script)) as (server, broker):
                assert (await broker.publish("orders", b"once", retry_safe=retry_safe)).offset == 0, script
                sent = [decode(call.body, 0)[0] for call in server.calls if is_publish(call)]
            assert [message.value for message in sent] == [b"once"] * tries, script
            if retry_safe:
                assert len({message.id for message in sent}) == 1, "a resend must be recognisable"


async def test_message_without_an_id_is_sent_once_where_it_may_be_stored_or_is_refused() -> None:
    for answer, kind, code, said in SENT_ONCE_WITHOUT:
        async with scripted(Script(answer)) as (server, broker):
            with pytest.raises(kind, match=said) as raised:
                await broker.publish("orders", b"once", retry_safe=False)
            assert raised.value.code == code
            assert batches_of(server) == [[b"once"]], answer
            assert (await broker.publish("orders", b"next", retry_safe=False)).offset == 0


async def test_refusal_of_a_message_with_an_id_is_not_retried() -> None:
    script = Script(answered("topic_not_found", 404))
    async with scripted(script) as (server, broker):
        with pytest.raises(RemoteError) as caught:
            await broker.publish("orders", b"v")
    assert (caught.value.code, caught.value.http_status) == ("topic_not_found", 404)
    assert batches_of(server) == [[b"v"]]


async def test_message_that_may_be_stored_is_not_called_lost_when_time_is_up() -> None:
    """Whatever the last answer promises: an earlier try was not answered, and may still be stored."""
    never_heard_of = Script((503, error("no_quorum")), "hang up", *[(503, error("no_quorum"))] * 1000)
    async with scripted(never_heard_of, timeout_s=0.4) as (_, broker):
        with pytest.raises(ConnectionLost, match=r"no_quorum: the script.*may be stored or not.*id is mine") as caught:
            await broker.publish("orders", b"v", id="mine")
    refused = Script(*[(503, error("no_quorum"))] * 1000)
    async with scripted(refused, timeout_s=0.4) as (_, broker):
        with pytest.raises(RemoteError) as certain:
            await broker.publish("orders", b"v")
    assert (caught.value.code, certain.value.code) == ("connection_lost", "no_quorum")
    removed = Script("hang up", *[(503, error("node_removed"))] * 1000)
    async with scripted(removed, timeout_s=60) as (_, broker):
        with pytest.raises(ConnectionLost, match="may be stored or not"):
            await broker.publish("orders", b"v", id="mine")


async def test_who_travelled_with_a_message_that_may_be_stored_may_be_stored_too() -> None:
    gate = asyncio.Event()
    script = Script("store", "hang up", *[(503, error("no_quorum"))] * 1000)

    async def slow_first(call: Call) -> Answer:
        if is_publish(call):
            await gate.wait()
        return await script(call)

    async with scripted(slow_first, timeout_s=1.0) as (server, broker):
        first = asyncio.create_task(broker.publish("orders", b"first"))
        while not batches_of(server):
            await asyncio.sleep(0.01)
        sooner = asyncio.create_task(broker.publish("orders", b"sooner", id="sooner"))
        await asyncio.sleep(0.3)
        later = asyncio.create_task(broker.publish("orders", b"later", id="later"))
        await asyncio.sleep(0.1)
        gate.set()
        assert (await first).offset == 0
        for name, publish in (("sooner", sooner), ("later", later)):
            with pytest.raises(MaybeStored, match=rf"may be stored or not.*id is {name}"):
                await publish
    assert batches_of(server)[1] == [b"sooner", b"later"]
    assert batches_of(server)[-1] == [b"later"], "it was tried alone, and refused"


async def test_broker_that_was_taken_out_is_passed_over_silently_and_alone_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    removed = Script(*[(503, error("node_removed"))] * 1000)
    async with ScriptedServer(removed).running() as out, ScriptedServer(Script()).running() as server:
        async with connect(f"{out.address},{server.address}") as broker:
            assert (await broker.publish("orders", b"v")).offset == 0
        assert "node_removed" not in caplog.text
        async with connect(out.address, timeout_s=600) as broker:
            with pytest.raises(RemoteError) as caught:
                await broker.publish("orders", b"v")
    assert caught.value.code == "node_removed"


async def test_a_full_disk_is_reported_as_such_when_time_is_up() -> None:
    script = Script(*[(507, error("disk_full"))] * 1000)
    async with scripted(script, timeout_s=0.4) as (server, broker):
        started = time.monotonic()
        with pytest.raises(RemoteError, match=r"within 0\.4 s") as caught:
            await broker.publish("orders", b"v")
        assert caught.value.code == "disk_full"
        assert time.monotonic() - started > 0.3
        assert 2 < len(batches_of(server)) < 40, "pauses grow"


async def test_nothing_is_sent_again_to_a_partition_that_was_a_guess() -> None:
    """The broker stores by key what it kept while it knew no partitions: sent again, it would stand in two of them."""
    known = Script(partitions=4)

    async def first_unsure(call: Call) -> Answer:
        if is_publish(call) and is_unsure:
            raise HangUp
        if call.target == "/v1/topics/orders" and is_unsure:
            return 200, {**described("orders"), "assumed": True}
        return await known(call)

    async with scripted(first_unsure) as (server, broker):
        is_unsure = True
        with pytest.raises(OutcomeUnknown, match="not known whether it was stored"):
            await broker.publish("orders", b"1", key="key 1", id="once")
        with pytest.raises(OutcomeUnknown):
            await broker.publish_many("orders", [NewMessage(value=b"2", key=b"key 1", id="twice")])
        assert len(batches_of(server)) == 2
        is_unsure = False
        await broker.publish("orders", b"1", key="key 1", id="once")
    assert server.calls[-1].target.endswith(f"/partitions/{crc32(b'key 1') % 4}/batches")


async def test_publishes_made_at_the_same_time_travel_together_and_in_order() -> None:
    gate = asyncio.Event()
    script = Script()

    async def slow_first(call: Call) -> Answer:
        if is_publish(call) and not gate.is_set():
            await gate.wait()
        return await script(call)

    async with scripted(slow_first) as (server, broker):
        first = asyncio.create_task(broker.publish("orders", b"first"))
        while not batches_of(server):
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(broker.publish("orders", b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0.05)
        gate.set()
        offsets = [(await task).offset for task in [first, *rest]]
    assert batches_of(server) == [[b"first"], [b"%d" % number for number in range(100)]]
    assert offsets == list(range(101))


async def test_publishes_keep_their_order_while_the_topic_is_still_being_looked_up() -> None:
    script = Script()

    async def slow_lookup(call: Call) -> Answer:
        if call.target == "/v1/topics/orders":
            await asyncio.sleep(0.1)
        return await script(call)

    async with scripted(slow_lookup) as (server, broker):
        early = [asyncio.create_task(broker.publish("orders", b"%d" % number)) for number in range(3)]
        many = asyncio.create_task(broker.publish_many("orders", [b"3", b"4"]))
        late = [asyncio.create_task(broker.publish("orders", b"5"))]
        await asyncio.gather(*early, many, *late)
    assert [value for batch in batches_of(server) for value in batch] == [b"%d" % number for number in range(6)]


async def test_one_bad_message_does_not_fail_those_that_travel_with_it() -> None:
    script = Script()

    async def refuse_bad(call: Call) -> Answer:
        if is_publish(call) and b"bad" in decode_values(call.body):
            return 413, error("too_large")
        return await script(call)

    async with scripted(refuse_bad) as (_, broker):
        values = [b"0", b"1", b"bad", b"3", b"4"]
        results = await asyncio.gather(*(broker.publish("orders", value) for value in values), return_exceptions=True)
    assert isinstance(results[2], RemoteError)
    assert [getattr(result, "offset", None) for result in results] == [0, 1, None, 2, 3]


async def test_a_cancelled_publish_does_not_hold_up_the_others() -> None:
    async with scripted(Script("never"), timeout_s=2) as (server, broker):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.publish("orders", b"impatient"), 1)
        waiting = asyncio.create_task(broker.publish("orders", b"gone"))
        await asyncio.sleep(0)
        waiting.cancel()
        # The first batch may have arrived, so it is tried until its own deadline; then the lane goes on.
        assert (await broker.publish("orders", b"patient")).offset >= 0
    assert b"gone" not in [value for batch in batches_of(server) for value in batch]


async def test_who_runs_out_of_time_leaves_and_the_others_get_through() -> None:
    script = Script()
    down = True

    async def down_at_first(call: Call) -> Answer:
        if is_publish(call) and down:
            raise HangUp
        return await script(call)

    async with scripted(down_at_first, timeout_s=1.0) as (server, broker):
        await broker.describe("orders")
        early = asyncio.create_task(broker.publish("orders", b"early"))
        await asyncio.sleep(0.6)
        late = asyncio.create_task(broker.publish("orders", b"late"))
        with pytest.raises(ConnectionLost):
            await early
        down = False
        assert (await late).offset == 0
    assert batches_of(server)[-1] == [b"late"]


async def test_who_waited_behind_others_in_vain_is_told_so() -> None:
    async with scripted(Script("never", "never")) as (server, broker):
        lane = Lane(Api(broker._pool, 0.4), IdMaker(), PartitionId(TopicName("orders"), 0))
        now = asyncio.get_running_loop().time()
        first = Waiting(NewMessage(value=b"first", id="1"), now + 0.4, resend=True)
        lane.add(first)
        await until(lambda: len(batches_of(server)) == 1, "the first is under way")
        second = Waiting(NewMessage(value=b"second", id="2"), now + 0.3, resend=True)
        lane.add(second)
        with pytest.raises(ConnectionLost, match="no answer within"):
            await first.future
        with pytest.raises(ConnectionLost, match=r"0\.4 s were over behind other publishes to orders/0.*no answer"):
            await second.future


# What the broker does to the second of several batches, whether the outcome of it is known, and the error.
MANY_LOST: list[tuple[Answer | str, type[HoldfastError], str, bool]] = [
    ("hang up", PublishManyLost, "outcome_unknown", True),
    (answered("leader_changed"), PublishManyLost, "outcome_unknown", True),
    # It stored the first half perhaps; sent again, that half would be there twice.
    (answered("storage_failed"), PublishManyRefused, "storage_failed", True),
    (answered("too_large", 413), PublishManyRefused, "too_large", False),
]


async def test_many_without_ids_say_what_is_stored_and_what_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.bulk.BATCH_MESSAGES_MAX", 2)
    for answer, kind, code, is_unknown in MANY_LOST:
        async with scripted(Script("store", answer)) as (server, broker):
            with pytest.raises(kind) as caught:
                await broker.publish_many("orders", [b"%d" % number for number in range(10)])
        lost = caught.value
        assert isinstance(lost, PublishManyLost | PublishManyRefused)
        assert (lost.code, lost.outcome_unknown) == (code, is_unknown), answer
        assert [result and result.offset for result in lost.results[:4]] == [0, 1, None, None]
        assert "of 10 messages are stored for certain" in lost.message
        assert batches_of(server)[:2] == [[b"0", b"1"], [b"2", b"3"]]
        assert [b"2", b"3"] not in batches_of(server)[2:], "what may have arrived is not sent again"


async def test_many_say_that_a_part_may_be_stored_whichever_of_them_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.client.bulk.BATCH_MESSAGES_MAX", 1)
    script = Script(answered("too_large", 413), answered("leader_changed"))
    async with scripted(script) as (_, broker):
        with pytest.raises(PublishManyLost) as caught:
            await broker.publish_many("orders", [b"0", b"1"])
    assert caught.value.outcome_unknown


async def test_many_with_ids_get_through_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.bulk.BATCH_MESSAGES_MAX", 2)
    async with scripted(Script("store", "hang up")) as (server, broker):
        results = await broker.publish_many("orders", [b"%d" % number for number in range(6)], retry_safe=True)
    assert [result.offset for result in results] == list(range(6))
    assert batches_of(server) == [[b"0", b"1"], [b"2", b"3"], [b"2", b"3"], [b"4", b"5"]]
