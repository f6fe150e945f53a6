"""The fast road through a batch, whole runs of records at once, gives what reading one by one gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.batches import foreign_values, messages_batch, resealed, values_batch
from testkit.sizes import examples

from holdfast.model.errors import BadBatch
from holdfast.model.messages import NewMessage
from holdfast.wire import record_batch
from holdfast.wire.record_runs import DELTA_WIDTH_ENDS, delta_width, run_of_equal_records

# Stretches of equal lengths, which runs are made of, broken by other lengths, keys and headers.
stretches = st.lists(
    st.tuples(
        st.integers(1, 80),
        st.sampled_from([0, 1, 5, 62, 63, 64, 65, 127, 128]),
        st.sampled_from(["plain", "plain", "plain", "key", "headers", "id"]),
    ),
    min_size=1,
    max_size=6,
)


def messages_of(drawn: list[tuple[int, int, str]]) -> list[NewMessage]:
    messages: list[NewMessage] = []
    for count, length, kind in drawn:
        for i in range(count):
            value = (b"%d-" % i * length)[:length]
            messages.append(
                NewMessage(
                    value=value,
                    key=b"\xfe" * 11 if kind == "key" else None,
                    headers=[("n", b"\xff" * 10)] if kind == "headers" else (),
                    id=f"id-{len(messages)}" if kind == "id" else None,
                )
            )
    return messages


@examples(150, 5_000)
@given(stretches)
def test_fast_reader_sees_every_message_a_slow_one_sees(drawn: list[tuple[int, int, str]]) -> None:
    messages = messages_of(drawn)
    batch = bytes(messages_batch(*messages))
    values = [message.value for message in messages]
    assert record_batch.decode_values(batch) == values
    assert [record.value for record in record_batch.decode_records(batch)] == values
    assert foreign_values(batch) == values


@examples(150, 5_000)
@given(stretches, st.integers(0, 10_000), st.integers(1, 255))
def test_fast_reader_trusts_no_byte_a_slow_one_would_refuse(
    drawn: list[tuple[int, int, str]], place: int, mask: int
) -> None:
    batch = bytearray(messages_batch(*messages_of(drawn)))
    at = record_batch.HEADER_BYTES + place % (len(batch) - record_batch.HEADER_BYTES)
    batch[at] ^= mask
    sealed = resealed(batch)
    slow: list[bytes] | None
    try:
        slow = [record.value for record in record_batch.decode_records(sealed)]
    except BadBatch:
        slow = None
    try:
        fast: list[bytes] | None = record_batch.decode_values(sealed)
    except BadBatch:
        fast = None
    if fast is not None:
        assert fast == slow
    elif slow is not None:
        # Only the fast road looks for bytes behind the last record.
        assert sum(map(len, slow)) < len(sealed) - record_batch.HEADER_BYTES
        with pytest.raises(BadBatch, match="follow the last record"):
            record_batch.decode_values(sealed)


@pytest.mark.parametrize("boundary", DELTA_WIDTH_ENDS[:2])
def test_run_ends_where_offset_deltas_get_longer(boundary: int) -> None:
    count = boundary + 10
    batch = bytes(values_batch(*[b"%06d" % i for i in range(count)]))
    first_width = delta_width(boundary - 1)
    assert delta_width(boundary) == first_width + 1
    assert record_batch.decode_values(batch) == [b"%06d" % i for i in range(count)]
    start = 0 if first_width == 1 else DELTA_WIDTH_ENDS[first_width - 2]
    position = record_batch.HEADER_BYTES
    for i in range(start):
        _, position = record_batch._record(batch, position, i)
    run = run_of_equal_records(batch, position, start, count)
    assert run is not None and len(run.value_positions) == boundary - start
    following = run_of_equal_records(batch, run.end, boundary, count)
    assert following is not None and following.end == len(batch)
