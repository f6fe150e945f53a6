"""The rules of the processing stage, without a process or a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.processing import (
    ERROR_TEXT_CHARACTERS_MAX,
    RETRY_DELAY_MS_MAX,
    GaveUp,
    InOrder,
    Origin,
    backoff_ms,
    dead_letter,
    dead_topic,
    is_derived,
    output,
    output_id,
    processed_topic,
    retry_delay_ms,
)
from holdfast.model.errors import BadTopicName
from holdfast.model.ids import Offset, TimestampMs, TopicName
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX
from holdfast.model.messages import StoredMessage

ORIGIN = Origin(TopicName("orders"), TimestampMs(1_789_000_000_000), 3)


def stored(offset: int = 7, **fields: object) -> StoredMessage:
    return StoredMessage(
        **{  # type: ignore[arg-type]
            "offset": Offset(offset),
            "timestamp_ms": TimestampMs(1),
            "id": f"3-{offset}",
            "key": b"k",
            "value": b"v",
            "headers": [("trace", b"t")],
            **fields,
        }
    )


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True), st.randoms(use_true_random=False))
def test_results_leave_in_the_order_of_the_log_whatever_order_they_come_in(offsets: list[int], dice: object) -> None:
    window: InOrder[str] = InOrder(len(offsets))
    in_order = sorted(offsets)
    for offset in in_order:
        window.admit(stored(offset))
    shuffled = list(in_order)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    released: list[int] = []
    for offset in shuffled:
        can_release = window.complete(Offset(offset), f"r{offset}")
        ready = window.release()
        assert bool(ready) == can_release
        assert all(result == f"r{message.offset}" for message, result in ready)
        released += [message.offset for message, _ in ready]
        assert released == in_order[: len(released)]
    assert released == in_order
    assert len(window) == 0


def test_no_more_messages_are_inside_than_allowed() -> None:
    window: InOrder[int] = InOrder(2)
    window.admit(stored(1))
    window.admit(stored(5))
    assert window.room == 0
    with pytest.raises(AssertionError, match="limit"):
        window.admit(stored(6))
    window.complete(Offset(5), 0)
    assert window.release() == []
    assert window.room == 0
    window.complete(Offset(1), 0)
    assert [message.offset for message, _ in window.release()] == [1, 5]
    assert window.room == 2


def test_names_of_derived_topics() -> None:
    assert processed_topic("orders") == "orders.processed"
    assert dead_topic("orders") == "orders.dead"
    assert is_derived("orders.processed")
    assert is_derived("orders.dead")
    assert not is_derived("orders")
    with pytest.raises(BadTopicName):
        processed_topic("x" * 195)


def test_a_processor_is_tried_again_a_bounded_number_of_times() -> None:
    assert [retry_delay_ms(attempts, 3) for attempts in (1, 2, 3, 4)] == [100, 200, None, None]
    assert backoff_ms(0) == 0
    assert max(backoff_ms(failures) for failures in range(1000)) == RETRY_DELAY_MS_MAX


def test_output_keeps_what_the_publisher_gave() -> None:
    made = output(ORIGIN, stored(id="order-17"), b"new")
    assert (made.value, made.key, made.id) == (b"new", b"k", f"3-7-{ORIGIN.created_ms}")
    assert list(made.headers) == [("trace", b"t"), ("holdfast-source-id", b"order-17")]


def test_output_id_without_a_publishers_id_is_the_place_in_this_very_topic() -> None:
    made_again = Origin(ORIGIN.topic, TimestampMs(ORIGIN.created_ms + 1), 3)
    ids = {
        output_id(ORIGIN, stored(7)),
        output_id(ORIGIN, stored(8)),
        output_id(made_again, stored(7)),
        # A publisher that uses another message's place as an id of its own takes nothing away from it.
        output_id(ORIGIN, stored(9, id="3-7")),
    }
    assert len(ids) == 4
    assert output_id(ORIGIN, stored(7)) == output_id(ORIGIN, stored(7, value=b"other"))


def test_an_id_the_broker_would_refuse_does_not_block_the_partition() -> None:
    assert output_id(ORIGIN, stored(7, id="x" * 5000)) == output_id(ORIGIN, stored(7))


def test_dead_letter_says_where_it_comes_from_and_why() -> None:
    letter = dead_letter(ORIGIN, stored(7, id="order-17"), GaveUp("ValueError: no\nprice", 3))
    assert (letter.value, letter.key, letter.id) == (b"v", b"k", f"3-7-{ORIGIN.created_ms}")
    assert dict(letter.headers)["holdfast-source-id"] == b"order-17"
    assert list(letter.headers) == [
        ("trace", b"t"),
        ("holdfast-dead-topic", b"orders"),
        ("holdfast-dead-partition", b"3"),
        ("holdfast-dead-offset", b"7"),
        ("holdfast-dead-error", b"ValueError: no price"),
        ("holdfast-dead-attempts", b"3"),
        ("holdfast-source-id", b"order-17"),
    ]


def test_dead_letter_fits_the_limits_whatever_the_message_looked_like() -> None:
    crowded = stored(headers=[(f"h{n}", b"") for n in range(HEADERS_PER_MESSAGE_MAX)])
    letter = dead_letter(ORIGIN, crowded, GaveUp("x" * 100_000, 1))
    assert len(letter.headers) <= HEADERS_PER_MESSAGE_MAX
    assert len(dict(letter.headers)["holdfast-dead-error"]) == ERROR_TEXT_CHARACTERS_MAX

    twice = dead_letter(ORIGIN, stored(headers=letter.headers), GaveUp("again", 2))
    assert [value for name, value in twice.headers if name == "holdfast-dead-error"] == [b"again"]

    without = dict(dead_letter(ORIGIN, stored(value=b"x" * 99), GaveUp("no", 1), with_value=False).headers)
    assert without["holdfast-dead-value"] == b"left out, 99 bytes"
