"""However ranges are cut and limited, every message is in one slice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, Not
from testkit.sizes import examples

from holdfast.spark.filters import earliest_ms, is_settled, narrowed
from holdfast.spark.offsets import StreamOffsets, from_json
from holdfast.spark.slices import Ranges, limited, slices

ranges = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (min(pair), max(pair))),
)


@examples(100, 2_000)
@given(ranges, st.none() | st.integers(1, 50))
def test_slices_cover_the_ranges_once(wanted: Ranges, partitions_min: int | None) -> None:
    cut = slices(wanted, {"a": 1, "b": 2}, partitions_min)
    covered = sorted((each.topic, each.partition, n) for each in cut for n in range(each.start, each.end))
    assert covered == sorted((*place, n) for place, (start, end) in wanted.items() for n in range(start, end))
    assert all(each.start < each.end for each in cut)


@examples(100, 2_000)
@given(ranges, st.integers(1, 3000))
def test_limits_are_kept_and_nothing_waits_for_ever(wanted: Ranges, offsets_max: int) -> None:
    chosen = limited(wanted, offsets_max)
    total = sum(end - start for start, end in wanted.values())
    filled = sum(end > start for start, end in wanted.values())
    assert sum(end - start for start, end in chosen.values()) == min(total, max(offsets_max, filled))
    assert all(chosen[place][1] > start for place, (start, end) in wanted.items() if end > start)
    assert all(start == wanted[place][0] and end <= wanted[place][1] for place, (start, end) in chosen.items())


def test_large_partition_is_not_starved_by_small_ones() -> None:
    """The small ones fill up again each time: whoever comes last would never have a share."""
    wanted: Ranges = {("a", number): (0, 1) for number in range(10)} | {("a", 10): (0, 1_000_000)}
    assert limited(wanted, 10)["a", 10] == (0, 1)
    assert limited(wanted, 30)["a", 10] == (0, 20)


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)), st.integers(0, 2**62)))
def test_checkpoints_give_back_what_was_put_in(places: dict[tuple[str, int], int]) -> None:
    offsets = StreamOffsets(places, {"a": 1, "b": 2}, "group", "holdfast://a:1", gone=frozenset("b"))
    assert from_json(offsets.as_json()) == offsets


def test_filters_narrow_exactly_or_leave_it_to_spark() -> None:
    wanted: Ranges = {("a", 0): (0, 10), ("a", 1): (0, 10), ("b", 0): (0, 10)}
    chosen = [EqualTo(("topic",), "a"), GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 5)]
    assert narrowed(wanted, chosen) == {("a", 0): (4, 6), ("a", 1): (4, 6)}
    assert narrowed(wanted, [In(("offset",), (2, 7))]) == dict.fromkeys(wanted, (2, 8))
    assert narrowed(wanted, [EqualTo(("offset",), 99)]) == {}
    assert all(map(is_settled, chosen)) and is_settled(IsNotNull(("offset",)))
    assert not is_settled(In(("offset",), (2, 7)))
    assert not is_settled(Not(EqualTo(("topic",), "a")))
    assert not is_settled(EqualTo(("value", "topic"), "a"))
    assert earliest_ms(chosen) is None
