"""Which offsets a batch has, when brokers are behind, topics come and go, and messages expire."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.broker.places import parse_place
from holdfast.client import RemoteError, connect_blocking
from holdfast.model.errors import HoldfastError
from holdfast.spark.broker_places import BrokerPlaces, PartitionPlace, broker_places
from holdfast.spark.offsets import StreamOffsets, from_json
from holdfast.spark.options import Places, parse_options
from holdfast.spark.source_batch import checked_range
from holdfast.spark.source_stream import StreamReader
from tests.spark.readers import planned, stream_reader, streaming
from tests.spark.scripted import FakeNode

CREATED_MS = 1000
NOTHING = StreamOffsets({}, {})


@pytest.fixture
def short_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def partition(
    number: int, start: int, end: int, *, topic: str = "orders", created_ms: int = CREATED_MS
) -> PartitionPlace:
    return PartitionPlace(topic, number, created_ms, start, end, size_bytes=100 * (end - start))


class FakePlaces(BrokerPlaces):
    """What a broker would say of its partitions."""

    def __init__(self, *there: PartitionPlace) -> None:
        super().__init__(parse_options({"servers": "nowhere", "subscribe": "orders"}))
        self.there = list(there)
        self.ends: dict[tuple[str, int], int] = {}

    def partitions(self, *, is_missing_fine: bool = False, known: StreamOffsets = NOTHING) -> list[PartitionPlace]:
        return self.there

    def certain_ends(self, partitions: list[PartitionPlace]) -> dict[tuple[str, int], int]:
        return self.ends

    def certain_ends_anywhere(self, partitions: list[PartitionPlace]) -> dict[tuple[str, int], int]:
        return {(each.topic, each.number): self.ends[each.topic, each.number] for each in partitions}


def reader_of(places: FakePlaces, **options: str) -> StreamReader:
    chosen = {} if "subscribePattern" in options else {"subscribe": "orders"}
    return stream_reader("nowhere", places, **chosen, **options)


def reader(*there: PartitionPlace, **options: str) -> StreamReader:
    return reader_of(FakePlaces(*there), **options)


def at(offsets: dict[str, int], created_ms: int = CREATED_MS) -> dict[str, Any]:
    return {"offsets": {"orders": offsets}, "created_ms": {"orders": created_ms}}


def latest(made: StreamReader, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, int]:
    found: dict[str, int] = made.latestOffset(start, limit or ReadAllAvailable())["offsets"].get("orders", {})
    return found


def test_end_never_moves_back_when_a_node_that_is_behind_answers() -> None:
    assert latest(reader(partition(0, 0, 50)), at({"0": 70})) == {"0": 70}


def test_query_over_all_that_is_there_reaches_it_through_a_node_that_is_behind() -> None:
    places = FakePlaces(partition(0, 0, 50))
    made = reader_of(places)
    places.ends = {("orders", 0): 80}
    made.prepareForTriggerAvailableNow()
    assert latest(made, at({"0": 10})) == {"0": 80}
    places.there = [partition(0, 0, 500)]
    assert latest(made, at({"0": 80})) == {"0": 80}, "what comes later is not for this query"


@pytest.mark.parametrize(
    ("limit", "total"), [(ReadAllAvailable(), 300), (ReadMaxRows(30), 30), (ReadMaxBytes(5_000), 50)]
)
def test_limits_are_shared_out_by_what_partitions_have(limit: ReadLimit, total: int) -> None:
    found = latest(reader(partition(0, 0, 100), partition(1, 0, 200)), at({"0": 0, "1": 0}), limit)
    assert sum(found.values()) == total and abs(found["1"] - 2 * found["0"]) <= 2


def test_both_limits_hold() -> None:
    made = reader(partition(0, 0, 1000), maxOffsetsPerTrigger="80", maxBytesPerTrigger="2000")
    assert latest(made, at({"0": 0}), made.getDefaultReadLimit()) == {"0": 20}


def test_new_partition_begins_at_the_same_place_when_its_batch_is_run_again() -> None:
    """What expired meanwhile is then missed by whoever reads it, and told of."""
    places = FakePlaces(partition(0, 0, 10), partition(1, 5, 9))
    made = reader_of(places)
    start = at({"0": 10})
    end = made.latestOffset(start, ReadAllAvailable())
    places.there = [partition(0, 0, 10), partition(1, 8, 9)]
    found = planned(made, start, end)
    assert [(each.partition, each.start, each.end) for each in found] == [(1, 5, 9)]
    assert made.latestOffset(end, ReadAllAvailable()) == end, "no news is no batch"

    places = FakePlaces(*(partition(number, 2, 7, created_ms=2000) for number in (0, 1)))
    made = reader_of(places, failOnDataLoss="false")
    anew = made.latestOffset(end, ReadAllAvailable())
    places.there = []
    found = planned(made, end, anew)
    assert [(each.partition, each.start, each.end) for each in found] == [(0, 2, 7), (1, 2, 7)]


@pytest.mark.parametrize("then", [[], [partition(0, 0, 3, created_ms=2000)], [partition(0, 40, 90)]])
def test_first_batch_that_is_run_again_begins_where_it_was_planned(then: list[PartitionPlace]) -> None:
    """Spark has noted where it ends, and asks the source again where it begins: everything may be different now."""
    made = reader(partition(0, 20, 50))
    end = made.latestOffset(at({"0": 30}), ReadAllAvailable())
    again = reader(*then)
    ends = {("orders", each.number): each.end for each in then}
    first = StreamOffsets(ends, {each.topic: each.created_ms for each in then}).as_json()
    found = planned(again, first, end)
    assert [(each.start, each.end, each.created_ms) for each in found] == [(30, 50, CREATED_MS)]
    assert list(again.partitions(end, end)) == [], "behind it nothing is read again"


def test_checkpoint_that_does_not_say_where_its_first_batch_began_is_read_from_the_start() -> None:
    found = planned(reader(), at({}, created_ms=2000), at({"0": 50}))
    assert [(each.start, each.end, each.created_ms) for each in found] == [(0, 50, CREATED_MS)]


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ([partition(0, 30, 90)], "offsets 10 to 29 expired before they were read"),
        ([partition(0, 0, 90, created_ms=2000)], "was deleted and made anew"),
        ([], "the topic orders is gone"),
    ],
)
def test_lost_messages_fail_the_query_or_are_left_out(there: list[PartitionPlace], told: str) -> None:
    with pytest.raises(HoldfastError, match=told) as raised:
        latest(reader(*there), at({"0": 10}))
    assert raised.value.code == "data_lost"
    made = reader(*there, failOnDataLoss="false")
    assert latest(made, at({"0": 10})) == ({"0": 90} if there else {"0": 10})
    end = made.latestOffset(at({"0": 10}), ReadAllAvailable())
    found = planned(made, at({"0": 10}), end)
    if there and there[0].created_ms != CREATED_MS:
        assert [(each.start, each.end) for each in found] == [(0, 90)], "the new topic, from its start"


def test_topic_that_is_not_seen_for_a_while_is_read_on_and_not_again(caplog: pytest.LogCaptureFixture) -> None:
    places = FakePlaces()
    made = reader_of(places, failOnDataLoss="false")
    unseen = made.latestOffset(at({"0": 990}), ReadAllAvailable())
    assert unseen == {**at({"0": 990}), "began": {"orders": {"0": 990}}, "gone": ["orders"]}
    assert list(made.partitions(at({"0": 990}), unseen)) == []
    assert made.latestOffset(unseen, ReadAllAvailable()) == unseen, "there is nothing to do"
    assert caplog.text.count("the topic orders is gone") == 1
    places.there = [partition(0, 0, 1000)]
    end = made.latestOffset(unseen, ReadAllAvailable())
    found = planned(made, unseen, end)
    assert [(each.start, each.end) for each in found] == [(990, 1000)] and "gone" not in end


def test_topic_that_is_gone_and_made_anew_later_is_read_from_its_start_and_told_of_once() -> None:
    made = reader(partition(0, 0, 4, created_ms=2000))  # and failOnDataLoss, since somebody has looked at it
    gone = {**at({"0": 990}), "gone": ["orders"]}
    end = made.latestOffset(gone, ReadAllAvailable())
    found = planned(made, gone, end)
    assert [(each.start, each.end, each.created_ms) for each in found] == [(0, 4, 2000)] and "gone" not in end


def test_topics_that_come_and_go_do_not_fill_the_checkpoint() -> None:
    places = FakePlaces()
    made = reader_of(places, subscribePattern="day-.*", failOnDataLoss="false")
    reached: dict[str, Any] = {"offsets": {}, "created_ms": {}}
    for day in range(100):
        places.there = [partition(0, 0, 5, topic=f"day-{day}", created_ms=day)]
        reached = made.latestOffset(reached, ReadAllAvailable())
    assert sorted(reached["created_ms"].values()) == list(range(49, 100)), "those that went last are kept"
    assert reached["offsets"].keys() == reached["created_ms"].keys() == {"day-99", *reached["gone"]}


def test_query_over_all_that_is_there_does_not_plan_behind_the_end_of_a_topic_made_anew() -> None:
    places = FakePlaces(partition(0, 0, 5))
    made = reader_of(places, failOnDataLoss="false")
    places.ends = {("orders", 0): 5}
    made.prepareForTriggerAvailableNow()
    places.there = [partition(0, 0, 2, created_ms=2000)]
    end = made.latestOffset(at({"0": 1}), ReadAllAvailable())
    assert end["offsets"] == {"orders": {"0": 0}}, "what the new one has is for the next query"
    later = reader(partition(0, 0, 2, created_ms=2000))
    assert latest(later, end) == {"0": 2}


def test_query_over_all_that_is_there_reads_a_topic_that_the_first_node_has_not_heard_of() -> None:
    places = FakePlaces()
    made = reader_of(places, failOnDataLoss="false")
    made.prepareForTriggerAvailableNow()
    places.there = [partition(0, 0, 60)]  # found when every node is asked
    places.ends = {("orders", 0): 80}
    assert latest(made, at({"0": 10})) == {"0": 80}
    places.ends = {("orders", 0): 500}
    assert latest(made, at({"0": 80})) == {"0": 80}, "what comes later is not for this query"


def places_of(clients: dict[str, Any], **options: str) -> BrokerPlaces:
    """Places over these clients, by the addresses that they are asked for."""
    return BrokerPlaces(parse_options(options), lambda url, timeout_s: clients[url])


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([FakeNode(None), FakeNode(None)], None),
        ([FakeNode(None), FakeNode(CREATED_MS)], CREATED_MS),
        ([FakeNode(CREATED_MS - 1), FakeNode(CREATED_MS)], CREATED_MS),
        ([FakeNode(CREATED_MS + 1), FakeNode(None, is_away=True)], CREATED_MS + 1),
        ([FakeNode(None), FakeNode(None, is_away=True)], "connection_lost"),
        ([FakeNode(None), FakeNode(CREATED_MS, is_away=True)], "connection_lost"),
        ([FakeNode(CREATED_MS - 1), FakeNode(None, is_away=True)], "connection_lost"),
    ],
)
def test_topic_is_gone_when_every_node_says_so(nodes: list[FakeNode], expected: int | str | None) -> None:
    by_url = {"holdfast://a:1,b:2": FakeNode(None), "holdfast://a:1": nodes[0], "holdfast://b:2": nodes[1]}
    places = places_of(by_url, servers="a:1,b:2", subscribe="orders", brokerTimeout="0ms")
    known = from_json(at({"0": 5}))
    if isinstance(expected, str):
        with pytest.raises(HoldfastError, match=r"b:2.* did not answer within 0 s") as raised:
            places.partitions(is_missing_fine=True, known=known)
        assert raised.value.code == expected
    else:
        found = [each.created_ms for each in places.partitions(is_missing_fine=True, known=known)]
        assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        ([FakeNode(None), FakeNode(CREATED_MS)], [70, 71]),
        ([FakeNode(CREATED_MS - 1), FakeNode(CREATED_MS)], [70, 71]),
        ([FakeNode(None), FakeNode(None, is_away=True)], [50, 50]),
        ([FakeNode(CREATED_MS - 1), FakeNode(CREATED_MS + 1)], [50, 50]),
    ],
)
def test_end_of_a_topic_is_asked_of_a_node_that_knows_it(nodes: list[FakeNode], ends: list[int]) -> None:
    places = places_of({"holdfast://a:1": nodes[0], "holdfast://b:2": nodes[1]}, servers="a:1,b:2", subscribe="orders")
    found = places.certain_ends_anywhere([partition(number, 0, 50) for number in (0, 1)])
    assert found == {("orders", number): end for number, end in enumerate(ends)}


def test_topic_that_every_node_said_is_gone_is_not_asked_for_again() -> None:
    """Else one broker that is away would end the query, for a topic that was deleted long ago."""
    nodes = {"holdfast://a:1,b:2": FakeNode(None), "holdfast://a:1": FakeNode(None)}
    places = places_of(nodes, servers="a:1,b:2", subscribe="orders", brokerTimeout="0ms")
    nodes["holdfast://b:2"] = FakeNode(None, is_away=True)
    with pytest.raises(HoldfastError, match=r"b:2.* did not answer"):
        places.partitions(is_missing_fine=True, known=from_json(at({"0": 5})))
    gone = from_json({**at({"0": 5}), "gone": ["orders"]})
    assert places.partitions(is_missing_fine=True, known=gone) == []


def test_topic_that_is_not_chosen_any_more_is_not_missed() -> None:
    start = {"offsets": {"orders": {"0": 1}, "old": {"0": 5}}, "created_ms": {"orders": CREATED_MS, "old": 1}}
    assert latest(reader(partition(0, 0, 3)), start) == {"0": 3}


def test_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(HoldfastError, match="not of this source"):
        latest(reader(partition(0, 0, 3)), {"orders": {"0": 5}})


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_stream_with_an_end_is_refused(option: str) -> None:
    with pytest.raises(HoldfastError, match=r"\[bad_option\] a stream has no end"):
        reader(partition(0, 0, 3), **{option: "latest" if option == "endingOffsets" else "1789000000000"})


def test_offsets_behind_the_end_are_refused_unless_only_a_node_is_behind() -> None:
    certain_end = 70
    client = SimpleNamespace(offset_at=lambda topic, place, number: certain_end)
    places = places_of({"holdfast://nowhere:8090": client}, servers="nowhere", subscribe="orders")

    def resolved(offset: int) -> dict[tuple[str, int], int]:
        return places.resolve(Places(by_partition={"orders": {0: offset}}), [partition(0, 0, 50)], "latest")

    assert resolved(50) == {("orders", 0): 50}
    assert resolved(certain_end) == {("orders", 0): certain_end}
    with pytest.raises(HoldfastError, match=r"\[bad_option\] offset 71 is given for orders/0, which ends at 70"):
        resolved(certain_end + 1)


class FakeClient:
    """A node at which one topic goes between two questions, or that says something else to the second one."""

    def __init__(self, code: str = "topic_not_found") -> None:
        self._error = RemoteError(code, "said so", 404)

    def topics(self) -> list[Any]:
        raise self._error

    def offset_at(self, topic: str, place: object, number: int) -> int:
        if topic == "gone":
            raise self._error
        return 70


@pytest.mark.parametrize(
    ("code", "told"), [("storage_failed", "storage_failed"), ("http_404", "connection_lost"), ("internal", "internal")]
)
def test_whatever_brokers_refuse_is_told_with_its_code(code: str, told: str) -> None:
    places = places_of({"holdfast://nowhere:8090": FakeClient(code)}, servers="nowhere", subscribePattern=".*")
    gone = [partition(0, 0, 5, topic="gone")]
    asked = (
        places.partitions,
        lambda: places.certain_ends(gone),
        lambda: places.resolve(Places(everywhere="latest"), gone, "latest"),
        lambda: places.resolve(Places(timestamp_ms=5), gone, "latest"),
    )
    for ask in asked:
        with pytest.raises(HoldfastError) as raised:
            ask()
        assert raised.value.code == told and str(raised.value).startswith(f"[{told}] said so")


@pytest.mark.parametrize("code", ["topic_not_found", "partition_not_found"])
def test_topic_that_goes_between_two_questions_is_told_of_as_any_that_went(code: str) -> None:
    """By the planning of the next batch, which asks failOnDataLoss."""
    places = places_of({"holdfast://nowhere:8090": FakeClient(code)}, servers="nowhere", subscribePattern=".*")
    there = [partition(0, 0, 5, topic="gone"), partition(0, 0, 50)]
    assert places.certain_ends(there) == {("orders", 0): 70}

    asked = FakePlaces(*there)
    asked.ends = {("orders", 0): 70}
    made = reader_of(asked, subscribePattern=".*")
    made.prepareForTriggerAvailableNow()
    reached = made.latestOffset(at({}), ReadAllAvailable())["offsets"]
    assert reached == {"gone": {"0": 0}, "orders": {"0": 70}}, "what went is not for this query"


def checked(start: int, end: int, **options: str) -> tuple[int, int]:
    given = parse_options({"servers": "nowhere", "subscribe": "orders", **options})
    return checked_range(given, partition(0, 30, 90), start, end)


def test_batch_that_begins_before_what_is_left() -> None:
    with pytest.raises(HoldfastError, match="offsets 10 to 29 have expired"):
        checked(10, 50)
    assert checked(10, 50, failOnDataLoss="false") == (30, 50)


def test_batch_that_ends_before_it_begins_is_refused_unless_it_begins_with_what_is_left() -> None:
    for starting in ("latest", '{"orders": {"0": 60}}'):
        with pytest.raises(HoldfastError, match=r"\[bad_option\] orders/0 .* startingOffsets is behind endingOffsets"):
            checked(60, 50, startingOffsets=starting)
    assert checked(60, 50, startingOffsets="earliest") == checked(60, 50, startingTimestamp="5") == (60, 50)


def test_error_of_a_read_says_its_code_and_what_to_do(short_broker: BrokerProcess) -> None:
    host, port = short_broker.text_address
    given = parse_options({"servers": f"{host}:{port}", "subscribe": "orders", "brokerTimeout": "100ms"})

    def refused() -> HoldfastError:
        with broker_places(given) as places, pytest.raises(HoldfastError) as raised:
            places.partitions()
        return raised.value

    at_text_port = refused()
    assert at_text_port.code == "wrong_port" and str(at_text_port).startswith(
        f"[wrong_port] {host}:{port} is the broker's"
    )
    short_broker.kill()
    away = refused()
    assert away.code == "connection_lost" and str(away).startswith("[connection_lost] ")
    assert "brokerTimeout says how long" in str(away)


def test_group_never_takes_places_in_what_a_processor_makes_for_those_of_the_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerProcess(tmp_path / "data", "--compute-ms", "1") as running, contextlib.ExitStack() as readers:
        servers = f"127.0.0.1:{running.http_address[1]}"

        def reader(**options: str) -> StreamReader:
            return readers.enter_context(streaming(servers, **options))

        def first_place(topic: str, **more: str) -> object:
            return reader(subscribe=topic, **more).initialOffset()["offsets"]

        with connect_blocking(f"holdfast://{servers}") as client:
            finding_it_later = reader(subscribePattern="ord.*s", groupId="g")
            nothing = finding_it_later.initialOffset()
            client.create_topic("orders")
            client.publish_many("orders", [b"x"] * 5)
            wait_until(lambda: client.offset_at("orders.processed", "latest") == 5, "they are processed")
            reached = finding_it_later.latestOffset(nothing, ReadAllAvailable())
            for _ in range(2):
                client.publish("orders", b"x")
                wait_until(lambda: client.offset_at("orders.processed", "latest") > 5, "it is processed")
                reached = finding_it_later.latestOffset(reached, ReadAllAvailable())
            assert not [cursor for cursor in client.cursors() if cursor.name == "g"]
            assert caplog.text.count("orders has a processor") == 1
            with pytest.raises(HoldfastError, match="leave groupId away") as refused:
                first_place("orders", groupId="g")
            assert "orders.processed" in str(refused.value)
            wait_until(lambda: client.offset_at("orders.processed", "latest") == 7, "they are processed")
            assert first_place("orders") == {"orders": {"0": 7}}
            assert first_place("orders.processed", groupId="g") == {"orders.processed": {"0": 7}}
            assert [(cursor.topic, cursor.name) for cursor in client.cursors() if cursor.name == "g"] == [
                ("orders.processed", "g")
            ]


def test_cursor_left_behind_by_a_driver_that_ended_is_moved_when_the_query_starts_again(
    short_broker: BrokerProcess,
) -> None:
    """A new checkpoint with the same group would read again what the old one has written."""
    servers = f"127.0.0.1:{short_broker.http_address[1]}"
    options = {"subscribe": "behind", "groupId": "g", "failOnDataLoss": "false", "startingOffsets": "earliest"}
    with connect_blocking(f"holdfast://{servers}") as client, contextlib.ExitStack() as readers:

        def started() -> StreamReader:
            return readers.enter_context(streaming(servers, **options))

        def stands_at() -> int:
            return client.cursor("behind", "g").partitions[0].offset

        client.create_topic("behind")
        client.publish_many("behind", [b"x"] * 5)
        first = started()
        reached = first.latestOffset(first.initialOffset(), ReadAllAvailable())
        assert stands_at() == 0, "the batch is planned and not done"
        again = started()
        assert again.latestOffset(reached, ReadAllAvailable())["offsets"] == {"behind": {"0": 5}}
        assert stands_at() == 5

        client.delete_topic("behind")
        client.create_topic("behind")
        client.publish_many("behind", [b"x"] * 9)
        client.seek("behind", "g", 1, 0)
        last = started()
        last.latestOffset(reached, ReadAllAvailable())
        assert stands_at() == 1, "the query's offsets mean nothing in a topic that was made anew"


@pytest.mark.parametrize("ago", ["-10s", "-90m", "-99999d", "-999999999s"])
def test_time_ago_is_told_to_a_broker_in_words_that_it_takes(ago: str) -> None:
    starting = parse_options({"servers": "nowhere", "subscribe": "orders", "startingTimestamp": ago}).starting
    assert parse_place(starting.moving_word).ago_ms == parse_place(ago).ago_ms == starting.ago_ms
