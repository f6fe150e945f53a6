"""A batch that is damaged or lies is refused with `BadBatch`, and nothing else ever comes out of the decoder."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.batches import messages_batch, resealed, values_batch
from testkit.sizes import examples

from holdfast.model.errors import BadBatch
from holdfast.model.limits import BATCH_BYTES_MAX, MESSAGES_PER_BATCH_MAX
from holdfast.model.messages import NewMessage
from holdfast.wire import record_batch, varint

# What the log writes itself, so that a sender's bytes there do not matter: base offset, leader epoch.
FREE_BYTES = {*range(8), *range(12, 16)}
PLAIN = bytes(values_batch(*[b"value-%03d" % i for i in range(70)]))
RICH = bytes(
    messages_batch(
        NewMessage(value=b"", key=b""),
        NewMessage(value=b"v" * 100, key=b"\xff" * 12, id="id-1", headers=[("h", b"x"), ("empty", b"")]),
        NewMessage(value=b"plain"),
        *[NewMessage(value=b"n%d" % i, id=f"{i}") for i in range(6)],
    )
)


def record(body: bytes) -> bytes:
    return varint.encode(len(body)) + body


def fields(
    *, delta: int = 0, time: int = 0, key: bytes = b"\x01", value: bytes = b"\x02v", headers: bytes = b"\0"
) -> bytes:
    return b"\0" + varint.encode(time) + varint.encode(delta) + key + value + headers


def batch_with(records: bytes, count: int, last_delta: int | None = None) -> bytes:
    """A sealed batch around these record bytes, whatever they are."""
    batch = bytearray(values_batch(b"x")[: record_batch.HEADER_BYTES]) + records
    struct.pack_into(">i", batch, 8, len(batch) - record_batch.LENGTH_PREFIX_BYTES)
    struct.pack_into(">i", batch, 23, count - 1 if last_delta is None else last_delta)
    struct.pack_into(">i", batch, 57, count)
    return resealed(batch)


@pytest.mark.parametrize("batch", [PLAIN, RICH], ids=["plain", "rich"])
def test_no_flipped_byte_of_a_batch_gets_into_the_log(batch: bytes) -> None:
    original = record_batch.checked(batch)[1]
    for position in range(len(batch)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(batch)
            flipped[position] ^= mask
            if position in FREE_BYTES:
                assert record_batch.checked(bytes(flipped))[1] == original
                continue
            with pytest.raises(BadBatch):
                record_batch.checked(bytes(flipped))


@pytest.mark.parametrize("batch", [PLAIN, RICH], ids=["plain", "rich"])
def test_no_cut_batch_gets_into_the_log(batch: bytes) -> None:
    for end in range(len(batch)):
        with pytest.raises(BadBatch):
            record_batch.checked(batch[:end])
    with pytest.raises(BadBatch):
        record_batch.checked(batch + b"\0")


LIES: dict[str, bytes] = {
    "more records than there are": batch_with(record(fields()), 2),
    "fewer records than there are": batch_with(record(fields()) + record(fields(delta=1)), 1),
    "no record": batch_with(b"", 0),
    "a negative count": batch_with(record(fields()), -1),
    "a count beyond the limit": batch_with(record(fields()), MESSAGES_PER_BATCH_MAX + 1),
    "the largest count": batch_with(record(fields()), 2**31 - 1),
    "last offset delta too small": batch_with(record(fields()) + record(fields(delta=1)), 2, last_delta=0),
    "last offset delta too large": batch_with(record(fields()), 1, last_delta=7),
    "bytes behind the last record": batch_with(record(fields()) + b"\0", 1),
    "offset deltas out of order": batch_with(record(fields(delta=1)) + record(fields()), 2),
    "the same offset delta twice": batch_with(record(fields()) + record(fields()), 2),
    "a record longer than its batch": batch_with(varint.encode(100) + fields(), 1),
    "a record shorter than its fields": batch_with(varint.encode(3) + fields(), 1),
    "a record of negative length": batch_with(varint.encode(-5) + fields(), 1),
    "a record of no length": batch_with(varint.encode(0), 1),
    "a key longer than its record": batch_with(record(fields(key=varint.encode(50) + b"k")), 1),
    "a value longer than its record": batch_with(record(fields(value=varint.encode(50) + b"v")), 1),
    "a value up to the end of the record": batch_with(record(fields(value=varint.encode(2) + b"v")), 1),
    "more headers than bytes": batch_with(record(fields(headers=varint.encode(1_000_000))), 1),
    "a negative header count": batch_with(record(fields(headers=varint.encode(-1))), 1),
    "a header longer than its record": batch_with(record(fields(headers=b"\x02" + varint.encode(50) + b"h\x01")), 1),
    "bytes behind the headers": batch_with(record(fields() + b"\0"), 1),
    "a number of more than 64 bits": batch_with(b"\xff" * 11 + b"\x01", 1),
    "a number that does not end": batch_with(b"\x80" * 5, 1),
    "equal records of which the last is too short": batch_with(
        b"".join(record(fields(delta=i)) for i in range(9)) + record(fields(delta=9))[:-1], 10
    ),
    "equal records of which one has the wrong delta": batch_with(
        b"".join(record(fields(delta=3 if i == 7 else i)) for i in range(10)), 10
    ),
    "equal records of which one has attributes and a wrong end": batch_with(
        b"".join(record(fields(delta=i, headers=b"\x02" if i == 5 else b"\0")) for i in range(10)), 10
    ),
    "another format": resealed(PLAIN[:16] + b"\x01" + PLAIN[17:]),
    "compressed": resealed(PLAIN[:21] + b"\0\x01" + PLAIN[23:]),
    "a control batch": resealed(PLAIN[:21] + b"\0\x20" + PLAIN[23:]),
    "a length of zero": PLAIN[:8] + bytes(4) + PLAIN[12:],
    "a negative length": PLAIN[:8] + b"\xff\xff\xff\xff" + PLAIN[12:],
}


def is_refused(batch: bytes) -> bool:
    try:
        record_batch.checked(batch)
    except BadBatch:
        return True
    return False


def test_batch_that_lies_about_itself_is_refused() -> None:
    assert [lie for lie, batch in LIES.items() if not is_refused(batch)] == []


def test_batch_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadBatch, match="at most"):
        record_batch.checked(bytes(values_batch(b"x" * BATCH_BYTES_MAX)))


@st.composite
def mutated_batches(draw: st.DrawFn) -> bytes:
    """A good batch with some bytes changed, removed, added or swapped; mostly with a CRC that fits."""
    batch = bytearray(draw(st.sampled_from([PLAIN, RICH, bytes(values_batch(b"one")), LIES["no record"]])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(batch)))
        what = draw(st.sampled_from(["set", "insert", "remove", "copy"]))
        if what == "set" and at < len(batch):
            batch[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255))
        elif what == "insert":
            batch[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif what == "remove":
            del batch[at : at + draw(st.integers(1, 8))]
        else:
            batch[at:at] = batch[draw(st.integers(0, len(batch))) :][: draw(st.integers(1, 20))]
    if len(batch) >= record_batch.HEADER_BYTES and draw(st.integers(0, 4)):
        struct.pack_into(">i", batch, 8, len(batch) - record_batch.LENGTH_PREFIX_BYTES)
        return resealed(batch)
    return bytes(batch)


@examples(400, 20_000)
@given(mutated_batches())
def test_nonsense_is_refused_with_bad_batch_or_read_the_same_by_every_decoder(batch: bytes) -> None:
    try:
        head, values = record_batch.checked(batch)
    except BadBatch:
        return
    records = record_batch.decode_records(batch)
    assert values == [record.value for record in records] == [m.value for m in record_batch.decode(batch, 0)]
    assert len(values) == head.record_count
    assert head.next_offset - head.base_offset == head.record_count


@pytest.mark.parametrize(
    "decode",
    [record_batch.decode_values, record_batch.decode_records, record_batch.checked, record_batch.split_batches],
)
@examples(150, 10_000)
@given(data=st.binary(max_size=200) | mutated_batches())
def test_decoders_raise_nothing_but_bad_batch(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decoded = decode(data)
    except BadBatch:
        return
    assert decoded is not None


@examples(200, 5_000)
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_number_survives_its_varint(number: int, before: bytes, behind: bytes) -> None:
    encoded = varint.encode(number)
    assert len(encoded) <= 10
    assert varint.decode(before + encoded + behind, len(before)) == (number, len(before) + len(encoded))
