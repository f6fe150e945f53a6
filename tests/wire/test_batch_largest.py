"""Checking without taking values: the same verdict as of the decoder that takes them, on anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.sizes import examples

from holdfast.model.errors import BadBatch
from holdfast.model.messages import NewMessage
from holdfast.wire import record_batch
from holdfast.wire.batch_builder import build_batch

LENGTHS = st.sampled_from([0, 1, 5, 59, 60, 61, 62, 63, 64, 200, 8180, 8185, 8190, 9000])
MESSAGES = st.lists(st.tuples(LENGTHS, st.sampled_from([None, None, None, b"", b"key"])), min_size=1, max_size=300)


@given(messages=MESSAGES, flips=st.lists(st.tuples(st.integers(61, 1 << 20), st.integers(1, 255)), max_size=2))
@examples(150, 5000)
def test_both_checks_agree(messages: list[tuple[int, bytes | None]], flips: list[tuple[int, int]]) -> None:
    batch = build_batch([NewMessage(value=b"v" * length, key=key) for length, key in messages], 1)
    for place, bits in flips:
        batch[61 + place % (len(batch) - 61)] ^= bits
    batch = record_batch.summed(batch)
    try:
        values = record_batch.checked(batch)[1]
    except BadBatch:
        with pytest.raises(BadBatch):
            record_batch.checked_largest(batch)
        return
    assert record_batch.checked_largest(batch)[1] == max(map(len, values))


def test_batch_cut_off_anywhere_is_refused() -> None:
    batch = build_batch([NewMessage(value=b"v" * length) for length in (3, 300, 8, 70)], 1)
    for end in range(61, len(batch)):
        cut = bytearray(batch[:end])
        cut[8:12] = (end - 12).to_bytes(4, "big")
        with pytest.raises(BadBatch):
            record_batch.checked_largest(record_batch.summed(cut))
