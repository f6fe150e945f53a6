"""Equal lines become the same batch by the short way as by the long one, or do not take the short way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire import batch_builder, record_batch, text
from holdfast.wire.equal_lines import equal_lines

PREFIX = b"PUBLISH|orders|"


def chunk_of(values: list[bytes]) -> bytes:
    return b"".join(PREFIX + value + b"\n" for value in values)


@pytest.mark.parametrize("count", [32, 63, 64, 65, 128, 2_270, 8_191, 8_192])
def test_equal_lines_become_the_batch_that_single_values_become(count: int) -> None:
    for length in (0, 1, 54, 55, 57, 58, 63, 64, 100, 300):
        check_equal_lines(count, length)


def check_equal_lines(count: int, length: int) -> None:
    values = [(b"%d|" % number * (length + 1))[:length] for number in range(count)]
    lines = equal_lines(chunk_of(values), PREFIX)
    expected = batch_builder.build_values(values, 1_700_000_000_000)
    if lines is not None:
        assert lines.batch(1_700_000_000_000) == expected
        assert list(lines) == values
        assert (len(lines), lines.value_bytes, lines[-1]) == (count, length, values[-1])
    [publishes] = text.parse(chunk_of(values))
    assert isinstance(publishes, text.Publishes)
    assert list(publishes.values_by_topic[b"orders"]) == values
    assert publishes.order == [b"orders"] * count


def test_usual_lengths_take_the_short_way() -> None:
    taken = [equal_lines(chunk_of([b"x" * length] * 100), PREFIX) is not None for length in range(400)]
    assert sum(taken) > 380, "only where a length's varint looks like a line break the long way is needed"


def lines_of_seven(data: bytes) -> list[bytes]:
    data = data.translate(bytes.maketrans(b"\r\n", b"xy"))
    return [data[start : start + 7] for start in range(0, len(data) - 6, 7)]


@given(st.binary(min_size=7 * 32, max_size=7 * 140).map(lines_of_seven), st.data())
def test_any_other_line_among_them_is_not_taken_for_one_of_them(values: list[bytes], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    line_bytes = len(PREFIX) + 8
    other = data.draw(
        st.sampled_from(
            [b"PUBLISH|order2|", b"publish|orders|", b"SUBSCRIBE|orders", b"PING\nPING\nPUBLISH|", b"\n" * 15]
        )
    )
    chunk = bytearray(chunk_of(values))
    chunk[place * line_bytes : place * line_bytes + len(other)] = other
    items = text.parse(bytes(chunk))
    slow: list[bytes] = []
    for item in items:
        if isinstance(item, text.Publishes):
            slow += [value for topic in item.values_by_topic for value in item.values_by_topic[topic]]
    expected = [
        line.split(b"|", 2)[2]
        for line in bytes(chunk)[:-1].split(b"\n")
        if line.upper().startswith(b"PUBLISH|") and line.count(b"|") >= 2
    ]
    assert sorted(slow) == sorted(expected)


def test_carriage_returns_are_dropped_as_on_the_long_way() -> None:
    chunk = chunk_of([b"value\r"] * 50)
    assert equal_lines(chunk, PREFIX) is None
    [publishes] = text.parse(chunk)
    assert isinstance(publishes, text.Publishes)
    assert list(publishes.values_by_topic[b"orders"]) == [b"value"] * 50


def test_batch_of_equal_lines_is_sound_for_others() -> None:
    lines = equal_lines(chunk_of([b"%06d" % number for number in range(3_000)]), PREFIX)
    assert lines is not None
    head, values = record_batch.checked(lines.batch(7))
    assert (head.record_count, values[2_999]) == (3_000, b"002999")
