"""Ids that were there are known, and no others."""

from __future__ import annotations

import hashlib
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.delivered_ids import DeliveredIds

ids = st.one_of(
    st.integers(0, 30).map(str),
    st.text("a0129-", max_size=5),
    st.builds("{}-{}".format, st.sampled_from(["p", "q", "p0", ""]), st.integers(0, 30)),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.integers(10**17 - 2, 10**25).map(str),
)


@given(st.lists(ids), st.lists(ids))
def test_it_is_a_set(added: list[str], asked: list[str]) -> None:
    known = DeliveredIds()
    reference: set[str] = set()
    for message_id in added:
        assert (message_id in known) == (message_id in reference)
        known.add(message_id)
        reference.add(message_id)
    assert [each in known for each in asked] == [each in reference for each in asked]
    known.clear()
    assert not any(each in known for each in added)


def test_numbered_ids_take_no_memory_however_many_there_are() -> None:
    known = DeliveredIds(stretches_max=100)
    tracemalloc.start()
    for number in range(20_000):
        known.add(f"here-{number}")
        known.add(f"there-{number ^ 1}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert all(f"{side}-{number}" in known for number in range(20_000) for side in ("here", "there"))
    assert "here-20000" not in known


@given(st.lists(ids, unique=True, min_size=1), st.integers(1, 5), st.integers(1, 20))
def test_ids_of_any_form_are_known_up_to_a_bound(added: list[str], stretches_max: int, digests_max: int) -> None:
    known = DeliveredIds(stretches_max, digests_max)
    for message_id in added:
        known.add(message_id)
        assert message_id in known
    assert all(each in known for each in added[-digests_max:])


def test_random_ids_of_a_long_split_are_known_in_little_memory() -> None:
    known = DeliveredIds(stretches_max=1_000, digests_max=4_000)
    tracemalloc.start()
    for number in range(15_000):
        known.add(random_id(number))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 480_000
    assert all(random_id(number) in known for number in range(11_000, 15_000))
    assert not any(random_id(number) in known for number in (*range(1_000), *range(15_000, 16_000)))


def test_numbered_ids_are_not_forgotten_for_random_ones() -> None:
    known = DeliveredIds(stretches_max=100, digests_max=100)
    for number in range(1_000):
        known.add(f"left-{number}")
    for number in range(10_000):
        known.add(f"{number:x}-random-{number}.")
    assert all(f"left-{number}" in known for number in range(1_000))
    assert "left-1000" not in known and "0-random-0." not in known


def test_stretches_that_were_used_least_recently_are_forgotten_first() -> None:
    known = DeliveredIds(stretches_max=100, digests_max=100)
    for publisher in range(1_000):
        for number in range(100):
            known.add(f"{publisher}-{number}")
        known.add(f"steady-{publisher}")
    assert all(f"steady-{publisher}" in known for publisher in range(1_000))
    assert all(f"999-{number}" in known for number in range(100))
    assert "0-50" not in known


def random_id(number: int) -> str:
    return hashlib.blake2b(number.to_bytes(8), digest_size=16).hexdigest()
