"""What may be named and how much may be sent, and that nothing of a deleted topic reaches one made after it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testkit.batches import values_of
from testkit.sizes import examples

from holdfast.broker import admit, making_topics
from holdfast.model import names
from holdfast.model.errors import (
    BadCursorName,
    BadMessageId,
    BadTopicName,
    BadValue,
    TooLarge,
    TooManyTopics,
    TopicNotFound,
)
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.limits import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_ID_BYTES_MAX, MESSAGES_PER_BATCH_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.wire import batch_builder, record_batch
from tests.broker.conftest import Desk

ROOM = Path(tempfile.gettempdir()).resolve() / "topics"

pathlike = st.lists(st.sampled_from(["..", ".", "/", "\\", "~", "a", "C:", "\0", "%2e", "\n", "\u2024", "-", " "])).map(
    "".join
)


@given(st.text(max_size=30) | pathlike | st.text("._-aZ9", max_size=210))
@example("..")
@example(".")
@example("a\n")
@examples(500, 20_000)
def test_no_topic_name_that_is_taken_leads_out_of_its_place(text: str) -> None:
    try:
        name = names.topic_name(text)
    except BadTopicName as refused:
        assert refused.message.isprintable(), "what a client sent would tear up a line of ours"
        return
    assert name == text and text.isprintable()
    part = names.path_part(name)
    assert (ROOM / part).resolve().parent == ROOM and (ROOM / part).name == part
    assert len(part) + len(".processed") <= 255
    assert not set(name) & set("|\0\n\r"), "it could not be a field of a line"


@given(st.text(max_size=30) | pathlike | st.text("._-aZ9", max_size=210))
@examples(300, 10_000)
def test_cursor_name_that_is_taken_is_a_field_of_a_line_and_a_part_of_an_address(text: str) -> None:
    try:
        name = names.cursor_name(text)
    except BadCursorName as refused:
        assert refused.message.isprintable()
        return
    assert 1 <= len(name) <= 200 and not set(name) & set("|/\\ \0\n\r?#%")


@given(st.text(max_size=300))
@examples(300, 10_000)
def test_message_id_that_is_taken_comes_back_from_the_log_as_it_was(text: str) -> None:
    try:
        given_id = names.message_id(text)
    except BadMessageId as refused:
        assert refused.message.isprintable()
        return
    assert 1 <= len(given_id.encode()) <= MESSAGE_ID_BYTES_MAX
    batch = batch_builder.build_batch([NewMessage(value=b"x", id=given_id)], 1)
    assert [record_batch.record_id(record) for record in record_batch.decode_records(batch)] == [text]


LONGEST_ID = "i" * (MESSAGE_ID_BYTES_MAX - 10)


def fits(messages: Sequence[NewMessage]) -> bool:
    try:
        admit.check_messages(messages, MESSAGE_BYTES_MAX)
    except TooLarge:
        return False
    return True


@pytest.mark.parametrize("value_bytes", [0, 5_000])
def test_request_that_is_admitted_fits_into_a_batch_with_its_ids(value_bytes: int) -> None:
    messages = [
        NewMessage(value=b"v" * value_bytes, key=b"k", id=f"{LONGEST_ID}{number:010}", headers=[("h", b"v")])
        for number in range(MESSAGES_PER_BATCH_MAX)
    ]
    fewest, most = 0, len(messages)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if fits(messages[:middle]) else (fewest, middle - 1)
    assert 0 < fewest < len(messages), "so many of the longest ids cannot fit"
    batch = batch_builder.build_batch(messages[:fewest], 1)
    assert BATCH_BYTES_MAX * 0.7 < len(batch) <= BATCH_BYTES_MAX


async def test_topics_that_are_made_at_once_do_not_get_past_the_limit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making_topics, "TOPICS_MAX", 4)
    publishing = [desk.broker.publish_values(f"t{i}", [b"x"]).offset for i in range(10)]
    publishing += [desk.broker.publish(f"u{i}", [NewMessage(value=b"x")]) for i in range(10)]  # type: ignore[misc]
    done = await asyncio.gather(*publishing, return_exceptions=True)
    assert sum(isinstance(each, TooManyTopics) for each in done) == 16
    assert len(desk.broker.topics()) == 4
    with pytest.raises(TooManyTopics):
        await desk.broker.create_topic("another", TopicConfig())
    await desk.broker.delete_topic("t0")
    await desk.broker.create_topic("another", TopicConfig())


async def test_follower_of_a_topic_that_was_made_anew_meanwhile_is_told_and_not_given_its_messages(desk: Desk) -> None:
    for position, published in ((0, 5), (3, 5), (5, 5), (5, 9)):
        for i in range(5):
            await desk.broker.publish_values("t", [b"old %d" % i]).offset
        follower = desk.broker.follow("t", {0: Offset(position)})
        await desk.broker.delete_topic("t")
        desk.clock.now += 1
        for i in range(published):
            await desk.broker.publish_values("t", [b"new %d" % i]).offset
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(follower.next(1 << 20), 60)
        if position < published:
            with pytest.raises(TopicNotFound):
                await follower.read(0, 1 << 20)
        follower.close()
        again = desk.broker.follow("t", {0: Offset(0)})
        assert values_of((await again.next(1 << 20)).batches) == [b"new %d" % i for i in range(published)]
        again.close()
        await desk.broker.delete_topic("t")


async def test_publish_with_an_id_is_taken_while_retention_deletes_what_is_being_looked_through(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is read from the log, and the oldest of it may go while that is under way."""
    await desk.broker.create_topic("t", TopicConfig(retention_ms=1_000))
    for i in range(40):
        desk.clock.now += 100
        await desk.send((f"id-{i}", b"%d" % i + bytes(400)))
    desk.use()  # a broker that has not read the ids yet
    backend = desk.cluster_backend
    real = backend.read

    async def read_after_expiry(partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        monkeypatch.setattr(backend, "read", real)
        assert await backend.expire() > 0
        return await real(partition, offset, bytes_max)

    monkeypatch.setattr(backend, "read", read_after_expiry)
    (resent,) = await desk.send(("id-39", b"again"))
    assert (resent.offset, resent.duplicate) == (39, True)
    (fresh,) = await desk.send(("id-40", b"40"))
    assert (fresh.offset, fresh.duplicate) == (40, False)


async def test_seek_to_a_place_that_is_not_there_leaves_the_reader_and_its_connection_alone(desk: Desk) -> None:
    await desk.broker.publish_values("t", [b"%d" % i for i in range(10)]).offset
    await desk.broker.open_cursor("t", "reader", 4)
    evicted: list[str] = []
    topic = names.topic_name("t")
    desk.broker.cursor_claims.claim((topic, names.cursor_name("reader")), lambda: evicted.append("told"))
    for wrong in (11, "latest?", "-5x", -1):
        with pytest.raises(BadValue):
            await desk.broker.seek_cursor("t", "reader", wrong)
    assert evicted == []
    assert desk.broker.describe_cursor("t", "reader").lag == 6
    await desk.broker.seek_cursor("t", "reader", "earliest")
    assert evicted == ["told"]
    assert desk.broker.describe_cursor("t", "reader").lag == 10
