"""A failover that is timed from the wrong moment, or a publisher that catches up in secret, flatters the cluster."""

import time
from array import array

import pytest
from benchmarks.load import batches
from benchmarks.load.background import Told, background
from benchmarks.load.failover import Publishes
from benchmarks.load.steady import Answers
from benchmarks.load.wire import LoadFailed
from benchmarks.works import ALL, named

from holdfast.wire.record_batch import split_batches


def _publishes(*times_s: tuple[float, float]) -> Publishes:
    publishes = Publishes()
    for began_s, acknowledged_s in times_s:
        publishes.add(began_s, acknowledged_s)
    return publishes


def test_an_answer_that_was_under_way_at_the_kill_does_not_end_the_failover() -> None:
    publishes = _publishes((1.0, 1.1), (1.1, 1.21), (1.21, 1.9), (1.9, 2.0))
    assert publishes.next_after(1.2) == pytest.approx(0.7)


def test_a_publish_that_waited_for_the_new_leader_counts_by_the_next_one() -> None:
    publishes = _publishes((1.0, 1.1), (1.1, 1.9), (1.9, 2.0))
    assert publishes.next_after(1.2) == pytest.approx(0.8)


def test_a_cluster_that_never_answers_again_has_no_failover_time() -> None:
    with pytest.raises(LoadFailed):
        _publishes((1.0, 1.1)).next_after(1.2)


def test_a_silence_counts_from_the_signal_and_only_around_it() -> None:
    publishes = _publishes((0.0, 1.0), (1.0, 2.0), (2.0, 2.1), (2.1, 2.5), (2.5, 9.0))
    assert publishes.longest_silence(1.8, 2.4) == pytest.approx(0.4)
    assert publishes.longest_silence(1.2, 2.4) == pytest.approx(0.8)


def test_a_silence_that_never_ends_is_as_long_as_somebody_looked() -> None:
    assert _publishes((0.0, 1.0)).longest_silence(2.0, 5.0) == pytest.approx(3.0)


def test_only_answers_of_the_time_in_question_make_the_rate() -> None:
    answers = Answers(array("d", [0.5, 1.0, 1.5, 2.0, 2.5]))
    assert answers.per_s(1.0, 2.0) == 2.0


def test_each_message_of_an_entry_load_is_a_batch_of_its_own() -> None:
    body = batches.request("t", 5, 1, 1024).partition(b"\r\n\r\n")[2]
    assert len(split_batches(bytearray(body))) == 5
    assert len(batches.batch(64, 1024)) == pytest.approx(65_536, rel=0.03)


def test_a_family_of_works_is_chosen_by_its_name() -> None:
    assert {work.name for work in named("cluster")} == {w.name for w in ALL if w.name.startswith("cluster-")}
    assert [work.name for work in named("read")] == ["read"]
    assert named("nothing") == []


def _count_until_told(step: int, told: Told) -> int:
    told.say_ready()
    count = 0
    while not told.to_stop:
        count += step
        time.sleep(0.001)
    return count


def _fail(problem: str, told: Told) -> int:
    told.say_ready()
    raise LoadFailed(problem)


def test_a_background_load_runs_until_it_is_stopped() -> None:
    with background(_count_until_told, 2) as load:
        load.check()
        count = load.stop()
    assert count % 2 == 0


def test_a_background_load_that_fails_is_noticed() -> None:
    with background(_fail, "refused") as load, pytest.raises(LoadFailed, match="refused"):
        load.stop()
