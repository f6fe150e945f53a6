"""What a publisher of a pair decides, with time as a number: nothing is forgotten, nothing waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.failover import PAUSE_S_MAX, RETAINED_S_MAX, Failover


def line(number: int) -> bytes:
    return b"PUBLISH_ID|%d|t|x\n" % number


def accept(failover: Failover, *numbers: int, now: float = 0.0) -> None:
    for number in numbers:
        failover.accept(str(number), line(number), now)


def test_other_broker_gets_what_is_unacknowledged_and_the_last_few_in_order() -> None:
    failover = Failover(2, retain=2)
    assert failover.connected(0.0) == []
    accept(failover, *range(1, 8))
    for _ in range(4):
        failover.acknowledged(0.1)
    assert failover.current == 0
    assert failover.failed() == 0.0
    assert failover.current == 1
    assert failover.connected(0.2) == [line(number) for number in (3, 4, 5, 6, 7)]


def test_nothing_is_kept_of_what_was_acknowledged_with_retain_0() -> None:
    failover = Failover(2, retain=0)
    failover.connected(0.0)
    accept(failover, 1, 2)
    failover.acknowledged(0.0)
    failover.failed()
    assert failover.connected(0.0) == [line(2)]


def test_acknowledged_message_that_is_old_is_not_sent_again() -> None:
    """Its id may be forgotten by then: it would be stored twice."""
    failover = Failover(2)
    failover.connected(0.0)
    accept(failover, 1)
    failover.acknowledged(0.0)
    accept(failover, 2, now=RETAINED_S_MAX + 1)
    failover.acknowledged(RETAINED_S_MAX + 1)
    failover.failed()
    assert failover.connected(RETAINED_S_MAX + 2) == [line(2)]


def test_what_was_accepted_without_a_connection_is_sent_with_the_first_one() -> None:
    failover = Failover(2)
    accept(failover, 1, 2)
    assert not failover.is_connected
    assert failover.connected(1.0) == [line(1), line(2)]
    assert failover.counts.sent == 2 and failover.counts.resent == 0


def test_silence_is_measured_from_the_last_answer() -> None:
    failover = Failover(2, ack_timeout_s=0.5)
    failover.connected(0.0)
    assert failover.wakes_at() is None and not failover.is_overdue(100.0)
    accept(failover, 1, 2, 3, now=10.0)
    assert failover.wakes_at() == 10.5
    assert not failover.is_overdue(10.4)
    failover.acknowledged(10.4)
    assert not failover.is_overdue(10.6), "it is slow, not silent"
    assert failover.is_overdue(10.9)


def test_message_sent_after_a_quiet_time_has_its_full_time() -> None:
    failover = Failover(2, ack_timeout_s=0.5)
    failover.connected(0.0)
    accept(failover, 1)
    failover.acknowledged(0.1)
    accept(failover, 2, now=60.0)
    assert not failover.is_overdue(60.4) and failover.is_overdue(60.5)


def test_message_that_nobody_acknowledges_is_given_up_and_its_late_answer_harms_nobody() -> None:
    failover = Failover(2, ack_timeout_s=100, patience_s=30)
    failover.connected(0.0)
    accept(failover, 1)
    accept(failover, 2, now=20.0)
    assert failover.expired(29.9) == []
    assert [kept.id for kept in failover.expired(30.0)] == ["1"]
    assert failover.acknowledged(31.0) is None, "it was given up"
    second = failover.acknowledged(32.0)
    assert second is not None and second.id == "2"
    assert failover.counts.acknowledged == 1 and failover.unacknowledged == 0


def test_refused_message_is_not_sent_to_the_other_broker() -> None:
    failover = Failover(2)
    failover.connected(0.0)
    accept(failover, 1, 2)
    refused = failover.refused(0.1)
    assert refused is not None and refused.id == "1"
    failover.failed()
    assert failover.connected(0.2) == [line(2)]


def test_pauses_begin_when_both_were_tried_in_vain_and_stay_short() -> None:
    failover = Failover(2)
    accept(failover, 1)
    pauses = [failover.failed() for _ in range(50)]
    assert pauses[0] == 0.0 and pauses[1] > 0 and pauses[1:] == sorted(pauses[1:])
    assert pauses[-1] == PAUSE_S_MAX
    failover.connected(1.0)
    failover.acknowledged(1.0)
    assert failover.failed() == 0.0, "it worked meanwhile"


def test_one_plain_broker_is_never_left_and_gets_pauses_at_once() -> None:
    failover = Failover(1)
    assert failover.failed() > 0 and failover.current == 0 and failover.counts.switches == 0


def test_switches_are_counted_when_the_other_one_answers_not_at_every_try() -> None:
    failover = Failover(2)
    failover.connected(0.0)
    accept(failover, 1)
    failover.acknowledged(0.0)
    for _ in range(7):
        failover.failed()
    accept(failover, 2)
    failover.connected(1.0)
    failover.acknowledged(1.0)
    assert failover.current == 1 and failover.counts.switches == 1


def test_broker_that_only_recognises_what_it_has_is_not_tried_again_without_a_pause() -> None:
    failover = Failover(2)
    failover.connected(0.0)
    accept(failover, 1)
    failover.acknowledged(0.0)
    pauses = []
    for _ in range(12):
        pauses.append(failover.failed())
        failover.connected(1.0)
        failover.acknowledged(1.0)
    assert pauses[-1] == PAUSE_S_MAX


def test_memory_is_bounded_by_number_and_by_bytes() -> None:
    failover = Failover(2, unacknowledged_max=3, unacknowledged_bytes_max=100)
    accept(failover, 1, 2, 3)
    assert not failover.has_room(1)
    with pytest.raises(AssertionError):
        accept(failover, 4)
    failover = Failover(2, unacknowledged_bytes_max=100)
    assert failover.has_room(1_000_000), "one that is too large for the bound still goes, alone"
    failover.accept("1", b"x" * 90, 0.0)
    assert failover.has_room(10) and not failover.has_room(11)


steps = st.lists(st.sampled_from(["publish", "ack", "lose", "connect", "silence", "refuse", "late"]), max_size=200)


@given(steps, st.integers(0, 6))
def test_every_message_is_acknowledged_once_whatever_happens(events: list[str], retain: int) -> None:
    """Against two brokers that share what they store: at the end all is stored once, in the order of the calls.

    As brokers do, they refuse everything behind a line that they refuse, and may store the next lines of a connection
    long after it was left.
    """
    failover = Failover(2, retain=retain, patience_s=1e9)
    stored: dict[bytes, None] = {}
    on_the_wire: list[bytes] = []
    left: list[list[bytes]] = []
    acknowledged: list[str] = []
    published = 0

    def answer() -> None:
        stored.setdefault(on_the_wire.pop(0))
        kept = failover.acknowledged(0.0)
        if kept is not None:
            acknowledged.append(kept.id)

    def leave() -> None:
        left.append(list(on_the_wire))
        on_the_wire.clear()
        failover.failed()

    for event in [*events, "lose", "connect"]:
        if event == "publish":
            kept = failover.accept(str(published), line(published), 0.0)
            published += 1
            if failover.is_connected:
                on_the_wire.append(kept.line)
        elif event == "ack" and on_the_wire:
            answer()
        elif event == "silence" and on_the_wire:
            # Stored, and the answer lost with the connection.
            stored.setdefault(on_the_wire.pop(0))
            leave()
        elif event == "refuse" and failover.is_connected:
            # It may not take what is new, and still acknowledges what it knows.
            while on_the_wire and on_the_wire[0] in stored:
                answer()
            on_the_wire.clear()
            failover.failed()
        elif event == "late" and left:
            lines = left.pop(0)
            if lines:
                stored.setdefault(lines.pop(0))
                left.append(lines)
        elif event == "lose" and failover.is_connected:
            leave()
        elif event == "connect" and not failover.is_connected:
            on_the_wire[:] = failover.connected(0.0)
    while on_the_wire:
        answer()
    assert acknowledged == [str(number) for number in range(published)]
    assert list(stored) == [line(number) for number in range(published)]
    assert failover.unacknowledged == 0 and not failover.is_waiting
