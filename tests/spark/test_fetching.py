"""A task reads its slice through brokers that fail, lie and come late, or says clearly why it cannot."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.model.ids import Offset
from holdfast.spark import broker_calls, fetching
from holdfast.spark.decoding import decode
from holdfast.spark.fetching import Fetched, Slice, Source, fetch
from holdfast.spark.schema import arrow_schema
from holdfast.wire.batch_builder import build_values
from holdfast.wire.record_batch import place
from tests.spark import readers
from tests.spark.scripted import http_server

Answer = tuple[int, bytes, int]
Script = Callable[[str], Answer]
SCHEMA = arrow_schema(readers.schema())
CREATED_MS = 1000
WANTED = Slice("orders", CREATED_MS, 0, 2, 8)


def stored(first: int, count: int) -> bytes:
    batch = build_values([b"%d" % number for number in range(first, first + count)], 5)
    place(batch, Offset(first), 1)
    return bytes(batch)


def refusal(status: int, code: str, **more: object) -> Answer:
    return status, json.dumps({"error": {"code": code, "message": "no", **more}}).encode(), -1


@contextmanager
def brokers(*scripts: Script, topic_created_ms: int = CREATED_MS) -> Iterator[tuple[tuple[str, int], ...]]:
    """One server for each script, which gets the path that is asked for."""

    def answering(script: Script) -> Callable[[str, str], tuple[int, bytes, dict[str, str]]]:
        def answer(_: str, path: str) -> tuple[int, bytes, dict[str, str]]:
            status, body, next_offset = script(path)
            told = {"Holdfast-Next-Offset": str(next_offset), "Holdfast-Topic-Created-Ms": str(topic_created_ms)}
            return status, body, told

        return answer

    with ExitStack() as servers:
        yield tuple(servers.enter_context(http_server(answering(script))) for script in scripts)


def offsets_read(*scripts: Script, fails: bool = True, timeout_s: float = 60.0, wanted: Slice = WANTED) -> list[int]:
    with brokers(*scripts) as servers:
        source = Source(servers, timeout_s, fails)
        found: list[int] = []
        for start, data in fetch(source, wanted):
            found += decode(data, "orders", 0, start, wanted.end, SCHEMA).column("offset").to_pylist()
        return found


def described(start: int, created_ms: int = CREATED_MS) -> Answer:
    """What a broker says of the topic."""
    return 200, json.dumps({"created_ms": created_ms, "partitions": [{"start_offset": start}]}).encode(), -1


def in_turn(*answers: Answer) -> Script:
    left = list(answers)
    return lambda _: left.pop(0)


def test_slice_is_cut_out_of_the_batches_that_hold_it() -> None:
    assert offsets_read(in_turn((200, stored(0, 5), 5), (200, stored(5, 5), 10))) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "bounds",
    [
        [(2, 6), (0, 10)],  # rows from what was asked for on, then the batch that was published
        [(0, 4), (1, 6), (0, 10)],
        [(2, 3), (3, 4), (2, 8)],
    ],
)
def test_message_is_read_once_wherever_batches_begin(bounds: list[tuple[int, int]]) -> None:
    answers = [(200, stored(first, end - first), end) for first, end in bounds]
    assert offsets_read(in_turn(*answers)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "gap",
    [
        (200, stored(4, 6), 10),
        (200, stored(0, 4) + stored(6, 4), 10),
        (200, stored(0, 4) + stored(3, 7), 10),
        (200, stored(0, 4), 10),
        (200, b"", 10),
        (200, stored(0, 2), 2),
    ],
)
def test_answer_that_leaves_messages_out_or_brings_them_twice_is_asked_for_again(gap: Answer) -> None:
    """Nobody would miss them."""
    assert offsets_read(in_turn(gap, (200, stored(0, 10), 10))) == [2, 3, 4, 5, 6, 7]


def test_broker_that_cannot_just_now_is_asked_again_and_the_next_one_too() -> None:
    away = in_turn((200, stored(0, 5), 5), *[refusal(503, "no_quorum")] * 9)
    assert offsets_read(away, lambda _: (200, stored(5, 5), 10)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(429, "too_many_connections"),
        refusal(408, "request_timeout"),
        (200, b"<html>hello</html>", -1),
        *((status, b"<html>not here</html>", -1) for status in (403, 404, 500)),
        refusal(404, "NotFound"),
    ],
)
def test_answer_that_says_nothing_of_the_messages_is_asked_for_again(answer: Answer) -> None:
    assert offsets_read(in_turn(answer, (200, stored(0, 10), 10))) == [2, 3, 4, 5, 6, 7]


def test_bytes_that_were_bent_on_the_way_are_asked_for_again() -> None:
    bent = bytearray(stored(0, 10))
    bent[-3] ^= 1
    assert offsets_read(in_turn((200, bytes(bent), 10), (200, stored(0, 10), 10))) == [2, 3, 4, 5, 6, 7]


def test_broker_that_is_behind_is_given_time() -> None:
    behind = in_turn((200, b"", 2), refusal(416, "offset_out_of_range"), described(0), (200, stored(0, 10), 10))
    assert offsets_read(behind) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("fails", [True, False])
def test_expired_offsets(fails: bool) -> None:
    expired = in_turn(refusal(416, "offset_out_of_range"), described(6), (200, stored(6, 4), 10))
    if fails:
        with pytest.raises(HoldfastError, match=r"\[data_lost\] orders/0: what was at offsets 2 to 5 expired"):
            offsets_read(expired)
    else:
        assert offsets_read(expired, fails=False) == [6, 7]


@pytest.mark.parametrize("fails", [True, False])
def test_damaged_data(fails: bool) -> None:
    damaged = in_turn(refusal(500, "damaged_data", next_offset=5), (200, stored(5, 5), 10))
    if fails:
        with pytest.raises(HoldfastError, match=r"\[data_lost\].*offsets 2 to 4 is damaged"):
            offsets_read(damaged)
    else:
        assert offsets_read(damaged, fails=False) == [5, 6, 7]


@pytest.mark.parametrize("fails", [True, False])
def test_deleted_topic_is_believed_when_every_broker_says_so_again(fails: bool) -> None:
    asked: list[str] = []

    def gone(path: str) -> Answer:
        asked.append(path)
        return refusal(404, "topic_not_found")

    if fails:
        with pytest.raises(HoldfastError, match=r"\[data_lost\].*is gone with its topic"):
            offsets_read(gone, gone)
    else:
        assert offsets_read(gone, gone, fails=False) == []
    assert len(asked) == 6


@pytest.mark.parametrize("fails", [True, False])
def test_topic_is_not_gone_because_one_broker_of_several_has_not_heard_of_it(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are away, and may have it: the task waits for them, and says so in the end."""
    monkeypatch.setattr(broker_calls, "_PAUSE_S_MAX", 0.01)
    with pytest.raises(HoldfastError, match=r"\[connection_lost\].*topic_not_found") as raised:
        offsets_read(
            lambda _: refusal(404, "topic_not_found"),
            lambda _: refusal(503, "no_quorum"),
            fails=fails,
            timeout_s=1.0,
        )
    assert raised.value.code == "connection_lost"


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("is_shorter", [True, False])
def test_messages_of_another_topic_of_that_name_are_not_taken_for_those_planned(fails: bool, is_shorter: bool) -> None:
    """The topic was deleted and made anew between planning and reading."""
    if is_shorter:
        anew = in_turn(*[refusal(416, "offset_out_of_range"), described(0, CREATED_MS + 1)] * 3)
    else:
        anew = in_turn(*[(200, stored(0, 10), 10)] * 3)

    def read() -> list[Fetched]:
        with brokers(anew, topic_created_ms=CREATED_MS + 1) as servers:
            return list(fetch(Source(servers, 60.0, fails), WANTED))

    if fails:
        with pytest.raises(HoldfastError, match=r"\[data_lost\].*offsets 2 to 7 is gone with its topic"):
            read()
    else:
        assert read() == []


def test_broker_that_stays_away_is_told_with_what_was_tried() -> None:
    with pytest.raises(HoldfastError, match=r"\[connection_lost\].*within 1 s \(brokerTimeout\).*says unavailable"):
        offsets_read(lambda _: refusal(503, "unavailable"), timeout_s=1.0)


def test_query_that_stops_reading_leaves_no_thread() -> None:
    def endless(path: str) -> Answer:
        first = int(path.split("offset=")[1].split("&")[0])
        return 200, stored(first, 1), first + 1

    with brokers(endless) as servers:
        reading = fetch(Source(servers, 60.0, True), Slice("orders", CREATED_MS, 0, 0, 1_000_000))
        next(reading)
        reading.close()  # type: ignore[attr-defined]
        assert [each.name for each in threading.enumerate() if each.name.startswith("reading")] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_silent", [True, False])
def test_query_that_stops_reading_does_not_wait_for_a_broker(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that falls silent for longer than the test may take, or that has no leader for as long."""
    monkeypatch.setattr(fetching, "_SOCKET_TIMEOUT_S", 600.0)
    asked_again, released = threading.Event(), threading.Event()

    def first_and_no_more(path: str) -> Answer:
        if "offset=0&" in path:
            return 200, stored(0, 1), 1
        asked_again.set()
        if is_silent:
            released.wait(600)
        return refusal(503, "no_quorum")

    with brokers(first_and_no_more) as servers:
        reading = fetch(Source(servers, 600.0, True), Slice("orders", CREATED_MS, 0, 0, 1_000))
        next(reading)
        assert asked_again.wait(60)
        reading.close()  # type: ignore[attr-defined]
        assert [each.name for each in threading.enumerate() if each.name.startswith("reading")] == []
        released.set()
