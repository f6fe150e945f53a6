"""A node that catches up leaves publishers their machine, and is not starved by them."""

from __future__ import annotations

from holdfast.backends.cluster.pacing import CatchUpPace
from holdfast.model.limits import MIB


def after_ticks(pace: CatchUpPace, ticks: int, live_bytes: int) -> int:
    """What a node far behind is sent in the last of them, when it takes all it can get."""
    sent = 0
    for _ in range(ticks):
        pace.sent_live(live_bytes)
        pace.tick()
        sent = 0
        while pace.has_room and sent < 1000 * MIB:
            pace.sent_from_files(MIB)
            sent += MIB
    return sent


def test_nobody_publishes_so_nothing_is_held_back() -> None:
    assert after_ticks(CatchUpPace(), 3, 0) == 1000 * MIB


def test_a_steady_publisher_is_outpaced_but_not_pushed_aside() -> None:
    sent = after_ticks(CatchUpPace(), 100, 5 * MIB)
    assert 5 * MIB < sent <= 16 * MIB


def test_a_trickle_of_messages_does_not_hold_a_node_back_for_hours() -> None:
    assert after_ticks(CatchUpPace(), 100, 100 * 1024) >= 3 * MIB


def test_when_publishers_pause_the_rest_comes_at_full_speed() -> None:
    pace = CatchUpPace()
    after_ticks(pace, 100, 5 * MIB)
    assert after_ticks(pace, 40, 0) == 1000 * MIB
