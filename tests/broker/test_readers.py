"""Named readers keep their place, nobody reads past damage without being told, and nobody misses what comes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.batches import values_of
from testkit.logs import flip, frame_positions
from testkit.sizes import examples

from holdfast.broker.follower import Follower
from holdfast.broker.places import Place, parse_place
from holdfast.model.errors import BadValue, CursorNotFound, HoldfastError, PartitionNotFound, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import TopicConfig
from tests.broker.conftest import Desk


async def publish(desk: Desk, count: int, topic: str = "t", start: int = 0) -> None:
    for i in range(start, start + count):
        await desk.broker.publish_values(topic, [b"%d" % i]).offset


def position(desk: Desk, name: str = "c", topic: str = "t") -> int:
    return desk.broker.describe_cursor(topic, name).partitions[0].offset


# --- cursors ------------------------------------------------------------------------------------------


async def test_acknowledging_never_moves_a_reader_back(desk: Desk) -> None:
    await publish(desk, 10)
    await desk.broker.open_cursor("t", "c", "earliest")
    for offset, expected in ((3, 3), (7, 7), (5, 7), (0, 7), (10, 10), (9, 10)):
        await desk.broker.ack_cursor("t", "c", {0: Offset(offset)})
        assert position(desk) == expected
    await desk.restart()
    assert position(desk) == 10


async def test_partition_behind_and_partition_ahead_are_acknowledged_apart(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=2))
    for _ in range(10):
        await desk.broker.publish_values("t", [b"x"]).offset
    await desk.broker.open_cursor("t", "c", "earliest")
    await desk.broker.ack_cursor("t", "c", {0: Offset(3), 1: Offset(4)})
    await desk.broker.ack_cursor("t", "c", {0: Offset(2), 1: Offset(5)})
    described = desk.broker.describe_cursor("t", "c")
    assert [each.offset for each in described.partitions] == [3, 5]
    assert described.lag == 2 + 0


@pytest.mark.parametrize("offset", [-1, 11, 10**15])
async def test_place_that_is_not_in_the_log_cannot_be_acknowledged(desk: Desk, offset: int) -> None:
    """A reader beyond the end would miss everything that comes until there."""
    await publish(desk, 10)
    await desk.broker.open_cursor("t", "c", "earliest")
    with pytest.raises(BadValue):
        await desk.broker.ack_cursor("t", "c", {0: Offset(offset)})
    with pytest.raises(PartitionNotFound):
        await desk.broker.ack_cursor("t", "c", {1: Offset(1)})
    assert position(desk) == 0


async def test_reading_without_acknowledging_gives_the_same_again(desk: Desk) -> None:
    await publish(desk, 10)
    for _ in range(2):
        read = await desk.broker.read_cursor("t", "c", messages_max=4, bytes_max=10_000)
        assert [message.value for _, message in read.messages] == [b"0", b"1", b"2", b"3"]
        assert read.ack == {0: 4}
        await desk.restart()
    await desk.broker.ack_cursor("t", "c", {0: Offset(2)})
    read = await desk.broker.read_cursor("t", "c", messages_max=100, bytes_max=10_000)
    if read.ack:
        await desk.broker.ack_cursor("t", "c", read.ack)
    assert [message.value for _, message in read.messages] == [b"%d" % i for i in range(2, 10)]
    await desk.restart()
    read = await desk.broker.read_cursor("t", "c", messages_max=100, bytes_max=10_000)
    assert read.messages == [] and position(desk) == 10


async def test_reader_inside_a_batch_gets_no_message_twice(desk: Desk) -> None:
    await desk.broker.publish_values("t", [b"%d" % i for i in range(10)]).offset
    await desk.broker.open_cursor("t", "c", 4)
    seen: list[bytes] = []
    for _ in range(3):
        read = await desk.broker.read_cursor("t", "c", messages_max=2, bytes_max=10_000)
        if read.ack:
            await desk.broker.ack_cursor("t", "c", read.ack)
        seen += [message.value for _, message in read.messages]
    assert seen == [b"%d" % i for i in range(4, 10)]


async def test_seek_moves_anywhere_and_missing_cursors_are_told(desk: Desk) -> None:
    await publish(desk, 10)
    with pytest.raises(CursorNotFound):
        desk.broker.describe_cursor("t", "c")
    with pytest.raises(CursorNotFound):
        await desk.broker.ack_cursor("t", "c", {0: Offset(1)})
    for to, expected in (("latest", 10), ("earliest", 0), (4, 4), ("-1h", 0)):
        assert (await desk.broker.seek_cursor("t", "c", to)).partitions[0].offset == expected
    with pytest.raises(HoldfastError):
        await desk.broker.seek_cursor("t", "c", 11)
    await desk.broker.delete_cursor("t", "c")
    with pytest.raises(CursorNotFound):
        desk.broker.describe_cursor("t", "c")
    with pytest.raises(CursorNotFound):
        await desk.broker.delete_cursor("t", "c")


async def test_newest_connection_has_the_reader_and_the_one_before_is_told_once(desk: Desk) -> None:
    claims = desk.broker.cursor_claims
    claim = (TopicName("t"), CursorName("c"))
    lost: list[str] = []
    on_lost = {name: (lambda name=name: lost.append(name)) for name in ("first", "second", "third")}
    claims.claim(claim, on_lost["first"])
    claims.claim((TopicName("t"), CursorName("other")), on_lost["third"])
    claims.claim(claim, on_lost["second"])
    assert lost == ["first"]
    claims.release(claim, on_lost["first"])  # too late to take anything away
    claims.evict(claim)
    assert lost == ["first", "second"]
    claims.evict(claim)
    claims.release(claim, on_lost["second"])
    assert lost == ["first", "second"]


# --- places -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(word="earliest")),
        ("latest", Place(word="latest")),
        (0, Place(offset=0)),
        ("17", Place(offset=17)),
        ("-5ms", Place(ago_ms=5)),
        ("-10s", Place(ago_ms=10_000)),
        ("-10m", Place(ago_ms=600_000)),
        ("-2h", Place(ago_ms=7_200_000)),
        ("-3d", Place(ago_ms=259_200_000)),
    ],
)
def test_place_is_understood(text: str | int, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Earliest",
        "-",
        "-5",
        "5s",
        "-5w",
        "- 5s",
        "+5",
        "-1",
        "1.5",
        -1,
        True,
        "٣",
        "²",
        "9" * 19,
        "-5m\n",
        "-9999999999s",
    ],
)
def test_place_that_makes_no_sense_is_refused_in_words(text: str | int) -> None:
    with pytest.raises(BadValue, match="earliest"):
        parse_place(text)


@examples(200, 5_000)
@given(st.text(max_size=12) | st.from_regex(r"-?[0-9]{0,20}[a-z]{0,2}", fullmatch=True) | st.integers())
def test_any_text_is_a_place_or_refused(text: str | int) -> None:
    try:
        place = parse_place(text)
    except BadValue:
        return
    assert (place.offset is not None) + (place.ago_ms is not None) + bool(place.word) == 1
    assert (place.offset or 0) >= 0 and (place.ago_ms or 0) >= 0


async def test_time_ago_leads_to_the_messages_since_then(desk: Desk) -> None:
    for i in range(10):
        await publish(desk, 1, start=i)
        desk.clock.now += 1_000
    assert await desk.broker.resolve_offset("t", 0, "-3s") == 7
    assert await desk.broker.resolve_offset("t", 0, "-1d") == 0
    assert await desk.broker.resolve_offset("t", 0, "-1ms") == 10
    assert await desk.broker.positions("t", "latest") == {0: 10}


# --- followers ----------------------------------------------------------------------------------------


async def take(follower: Follower, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(60):
        while len(values) < count:
            delivery = await follower.next(1 << 16)
            got = values_of(delivery.batches)
            values += got[delivery.skip :]
    return values


async def test_follower_misses_nothing_that_is_published_while_it_reads(desk: Desk) -> None:
    await publish(desk, 5)
    follower = desk.broker.follow("t", {0: Offset(2)})

    async def publish_slowly() -> None:
        for i in range(5, 60):
            await publish(desk, 1, start=i)
            if i % 7 == 0:
                await asyncio.sleep(0.001)

    publishing = asyncio.ensure_future(publish_slowly())
    assert await take(follower, 58) == [b"%d" % i for i in range(2, 60)]
    await publishing
    assert await follower.poll(100) is None
    follower.close()


async def test_busy_partition_does_not_starve_the_others(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=3))
    for _ in range(30):
        await desk.broker.publish_values("t", [b"x" * 100]).offset
    follower = desk.broker.follow("t", {n: Offset(0) for n in range(3)})
    first = [(await follower.next(1)).partition for _ in range(6)]
    assert sorted(first) == [0, 0, 1, 1, 2, 2]
    follower.close()


async def kill_and_damage(desk: Desk, place: int, spot: int = 0) -> None:
    """Stop, turn over a bit of one batch, and start again."""
    await desk.stop()
    (file,) = sorted((desk.path / "topics" / "t" / "0").glob("*.log"))
    flip(file, frame_positions(file)[place][0] + spot)
    await desk.open()


@pytest.mark.parametrize("spot", [0, 100], ids=["frame", "payload"])
async def test_follower_skips_damage_says_so_and_gets_everything_else(desk: Desk, spot: int) -> None:
    await publish(desk, 20)
    await kill_and_damage(desk, 7, spot)
    follower = desk.broker.follow("t", {0: Offset(0)})
    assert await take(follower, 19) == [b"%d" % i for i in range(20) if i != 7]
    assert desk.broker.stats.skipped_damaged == 1
    assert len(desk.skips) == 1 and "damaged" in desk.skips[0]
    follower.close()


@pytest.mark.parametrize("start", range(6, 10))
async def test_follower_that_starts_around_damage_is_not_sent_in_circles(desk: Desk, start: int) -> None:
    await publish(desk, 12)
    await kill_and_damage(desk, 7)
    follower = desk.broker.follow("t", {0: Offset(start)})
    expected = [b"%d" % i for i in range(start, 12) if i != 7]
    assert await take(follower, len(expected)) == expected
    follower.close()


async def test_named_reader_gets_past_damage(desk: Desk) -> None:
    await publish(desk, 10)
    await desk.broker.open_cursor("t", "c", "earliest")
    await kill_and_damage(desk, 4)
    seen: list[bytes] = []
    for _ in range(10):
        read = await desk.broker.read_cursor("t", "c", messages_max=3, bytes_max=10_000)
        if read.ack:
            await desk.broker.ack_cursor("t", "c", read.ack)
        seen += [message.value for _, message in read.messages]
    assert seen == [b"%d" % i for i in range(10) if i != 4]


async def test_ids_are_recognised_in_a_damaged_log(desk: Desk) -> None:
    for i in range(10):
        await desk.send((f"id-{i}", b"%d" % i))
    await kill_and_damage(desk, 4)
    results = [(await desk.send((f"id-{i}", b"%d" % i)))[0] for i in range(10)]
    assert [result.duplicate for result in results] == [i != 4 for i in range(10)]


async def test_follower_skips_what_expired_and_says_so(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(retention_ms=1_000))
    for i in range(30):
        await desk.broker.publish_values("t", [b"%d" % i + bytes(500)]).offset
    follower = desk.broker.follow("t", {0: Offset(0)})
    desk.clock.now += 10_000
    for i in range(30, 33):
        await desk.broker.publish_values("t", [b"%d" % i]).offset
    assert await desk.cluster_backend.expire() > 0
    start, _ = desk.broker.partition_range("t", 0)
    values = await take(follower, 33 - start)
    assert [int(value.rstrip(b"\0")) for value in values] == list(range(start, 33))
    assert desk.broker.stats.skipped_expired == start > 0
    follower.close()


async def test_follower_of_a_deleted_topic_is_told(desk: Desk) -> None:
    await publish(desk, 1)
    follower = desk.broker.follow("t", {0: Offset(1)})
    waiting = asyncio.ensure_future(follower.next(100))
    await asyncio.sleep(0)
    await desk.broker.delete_topic("t")
    with pytest.raises(TopicNotFound):
        await asyncio.wait_for(waiting, 60)
    follower.close()


async def test_waiting_for_a_message_ends_with_it_or_with_the_time(desk: Desk) -> None:
    await publish(desk, 1)
    assert await desk.broker.wait_for("t", {0: Offset(0)}, 5) is True
    assert await desk.broker.wait_for("t", {0: Offset(1)}, 0.01) is False
    waiting = asyncio.ensure_future(desk.broker.wait_for("t", {0: Offset(1)}, 10))
    await asyncio.sleep(0)
    await publish(desk, 1, start=1)
    assert await waiting is True


async def test_closed_followers_leave_nothing_behind(desk: Desk) -> None:
    await publish(desk, 1)
    (partition,) = desk.cluster_backend.topics_here.replicas.values()
    for _ in range(50):
        desk.broker.follow("t", {0: Offset(0)}).close()
        await desk.broker.wait_for("t", {0: Offset(1)}, 0)
    assert len(partition.audience._watchers) == 0
