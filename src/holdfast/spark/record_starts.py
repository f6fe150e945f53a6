"""Where each record of many batches begins and ends, without a Python step for each record.

A record says how long it is, so record n+1 is found only after record n: a chain, which numpy cannot follow. But many
chains can be followed at the same time, one step of all of them after the other, and a long batch can be cut into many
chains: near any place in it a record's first bytes are recognised by the number they carry (the offset delta), and
following the chain before it proves that the guess was right. A chain that does not arrive where the next one begins is
thrown away and the batch is walked from its first record.

The layout of batches and records stands in `holdfast.wire.record_batch`.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import BadBatch

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

HEADER_BYTES: Final = 61
_LENGTH_PREFIX_BYTES: Final = 12
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
# The fields of a batch's header, all big-endian and without gaps.
HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
# Records of one chain: fewer make more chains to find, more make more steps.
_CHAIN_RECORDS: Final = 128
# What one step of all chains costs, in steps of a plain loop: below that many chains the loop is faster.
_CHAINS_MIN: Final = 96
_VARINT_BITS_MAX: Final = 63
# Batches from here on are looked at for records of equal length; that costs as much as to walk so many.
_EQUAL_RECORDS_MIN: Final = 256
# Numbers below these are written in one, two, … bytes.
_NUMBER_WIDTH_ENDS: Final = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27])
# The widest length that is looked for when a record's beginning is guessed: up to 1 MiB, the largest message.
_LENGTH_WIDTH_MAX: Final = 3


class Records(NamedTuple):
    """One entry for each record: the batch it is in, the place behind its length, and the place where it ends."""

    batch: Places
    body: Places
    end: Places


def batch_places(data: bytes | bytearray | memoryview) -> Places:
    """Where each batch begins; `BadBatch` if the last one is cut off."""
    places = []
    position, size = 0, len(data)
    while position < size:
        if size - position < HEADER_BYTES:
            raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes, here are {size - position}")
        (batch_length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT)
        if batch_length < HEADER_BYTES - _LENGTH_PREFIX_BYTES or position + _LENGTH_PREFIX_BYTES + batch_length > size:
            raise BadBatch(f"batch length {batch_length} does not fit the {size - position} bytes left")
        places.append(position)
        position += _LENGTH_PREFIX_BYTES + batch_length
    return np.array(places, np.int64)


def batch_headers(data: Bytes, places: Places) -> Any:
    """The headers of all batches as one structured array."""
    return data[places[:, None] + np.arange(HEADER_BYTES)].view(HEADER)[:, 0]


def varints(data: Bytes, at: Places) -> tuple[Places, Places]:
    """The zigzag varints at these places, and the places behind them."""
    try:
        first = data[at]
        rest = first.astype(np.uint64)
        behind = at + 1
        more = np.flatnonzero(first >= 0x80)
        shift = 0
        while more.size:
            shift += 7
            if shift > _VARINT_BITS_MAX:
                raise BadBatch("a number in the batch is longer than 64 bits")
            byte = data[behind[more]]
            # The top bit of the byte before is taken out, this byte's bits come in above it.
            rest[more] += ((byte & 0x7F).astype(np.uint64) << np.uint64(shift)) - (np.uint64(1) << np.uint64(shift))
            behind[more] += 1
            more = more[byte >= 0x80]
            if more.size:
                rest[more] += np.uint64(1) << np.uint64(shift + 7)
    except IndexError:
        raise BadBatch("the batch ends in the middle of a record") from None
    return (rest >> np.uint64(1)).astype(np.int64) ^ -(rest & np.uint64(1)).astype(np.int64), behind


def find_records(data: Bytes, starts: Places, ends: Places, counts: Places) -> Records:
    """The records of batches whose records stand from `starts` to `ends`."""
    total = int(counts.sum())
    batch = np.repeat(np.arange(len(counts)), counts)
    records = Records(batch, np.empty(total, np.int64), np.empty(total, np.int64))
    first_record = np.cumsum(counts) - counts
    is_equal = np.zeros(len(counts), bool)
    for number in np.flatnonzero(counts >= _EQUAL_RECORDS_MIN).tolist():
        first, last = int(first_record[number]), int(first_record[number] + counts[number])
        is_equal[number] = find_equal_records(
            data, int(starts[number]), int(ends[number]), records.body[first:last], records.end[first:last]
        )
    others = np.flatnonzero(~is_equal)
    chains = _Chains(data, starts[others], ends[others], counts[others], first_record[others])
    wrong = chains.follow(records) if chains.count >= _CHAINS_MIN else np.arange(len(others))
    for number in others[wrong].tolist():
        _walk(data, int(starts[number]), int(ends[number]), int(counts[number]), int(first_record[number]), records)
    return records


def find_equal_records(data: Bytes, start: int, end: int, body: Places, record_end: Places) -> bool:
    """Fill in the records of a batch whose values are all equally long, as those of most are; or say that they are not.

    Then a record's length follows from its number, which is written in one to four bytes. If every record has the
    length that it should have, each begins where the one before it ends: nothing is guessed.
    """
    count = len(body)
    first_bytes, _ = varints(data, np.array([start]))
    numbers = np.arange(count)
    record_bytes = first_bytes[0] + np.searchsorted(_NUMBER_WIDTH_ENDS, numbers, "right")
    # The length itself is a varint too, of a number that is doubled.
    length_width = 1 + np.searchsorted(_NUMBER_WIDTH_ENDS, record_bytes, "right")
    sizes = record_bytes + length_width
    np.cumsum(sizes, out=record_end)
    record_end += start
    if record_bytes[0] <= 0 or int(record_end[-1]) != end:
        return False
    np.subtract(record_end, record_bytes, out=body)
    begins = body - length_width
    for place in range(int(length_width[-1])):
        is_there = length_width > place
        expected = (2 * record_bytes >> 7 * place) & 0x7F | np.where(length_width > place + 1, 0x80, 0)
        if (data[np.minimum(begins + place, end - 1)] != expected)[is_there].any():
            return False
    return True


class _Chains:
    """All chains of all batches: where each begins, which record that is, and how many records it has."""

    def __init__(self, data: Bytes, starts: Places, ends: Places, counts: Places, first_record: Places) -> None:
        self._data = data
        more_batch, more_at, more_index = _guessed_starts(data, starts, ends, counts)
        self._batch = np.concatenate((np.arange(len(counts)), more_batch))
        self._at = np.concatenate((starts, more_at))
        self._index = np.concatenate((np.zeros(len(counts), np.int64), more_index))
        order = np.lexsort((self._index, self._batch))
        self._batch, self._at, self._index = self._batch[order], self._at[order], self._index[order]
        # A chain goes to the next chain of its batch, or to the batch's end.
        is_last = np.append(self._batch[1:] != self._batch[:-1], True)
        self._stop_at = np.where(is_last, ends[self._batch], np.append(self._at[1:], 0))
        next_index = np.where(is_last, counts[self._batch], np.append(self._index[1:], 0))
        self._length = next_index - self._index
        self._out = first_record[self._batch] + self._index
        steps = int(self._length.max()) if len(self._length) else 0
        # How many chains there are at each step, on average: what makes a step worth its price.
        self.count = len(self._out) if steps == 0 else int(self._length.sum()) // steps

    def follow(self, records: Records) -> Places:
        """Fill in the records; returns the batches in which a chain did not arrive."""
        # The longest first, so that those that have not ended yet are always the first ones.
        order = np.argsort(-self._length, kind="stable")
        at, out, length, limit = self._at[order], self._out[order], self._length[order], self._stop_at[order]
        is_wrong = np.zeros(len(order), bool)
        for step in range(int(length[0])):
            active = int(np.searchsorted(-length, -step))
            record_bytes, body = varints(self._data, at[:active])
            end = body + record_bytes
            astray = (record_bytes <= 0) | (end > limit[:active])
            if astray.any():
                is_wrong[:active] |= astray
                # Such a chain stays where it is: what it writes is written again by the walk.
                end = np.where(astray, at[:active], end)
            records.body[out[:active] + step] = body
            records.end[out[:active] + step] = end
            at[:active] = end
        is_wrong |= at != limit
        return np.unique(self._batch[order][is_wrong])


def _guessed_starts(data: Bytes, starts: Places, ends: Places, counts: Places) -> tuple[Places, Places, Places]:
    """Places where records seem to begin, far apart and in order: their batches, the places, their numbers."""
    cuts = np.maximum(counts // _CHAIN_RECORDS - 1, 0)
    batch = np.repeat(np.arange(len(counts)), cuts)
    mean_bytes = (ends - starts) // np.maximum(counts, 1)
    cut = np.arange(len(batch)) - np.repeat(np.cumsum(cuts) - cuts, cuts) + 1
    around = starts[batch] + cut * _CHAIN_RECORDS * (ends - starts)[batch] // np.maximum(counts, 1)[batch]
    # A window of two mean records holds a beginning, unless just here they are much longer: then the cut is left out.
    window = 2 * mean_bytes[batch] + 2 * _LENGTH_WIDTH_MAX
    near_cut = np.repeat(np.arange(len(batch)), window)
    near = around[near_cut] + np.arange(len(near_cut)) - np.repeat(np.cumsum(window) - window, window)
    near = np.minimum(near, ends[batch][near_cut] - 1)
    # Behind its length, whose last byte has no top bit, a record has its attributes, which are always zero.
    kept = np.flatnonzero((data[near] == 0) & (data[near - 1] < 0x80))
    near, near_cut = near[kept], near_cut[kept]
    found: list[tuple[Places, Places, Places]] = []
    for width in range(1, _LENGTH_WIDTH_MAX + 1):
        at = near - width
        kept = np.flatnonzero(data[at] >= 0x80) if width > 1 else np.arange(len(at))
        at, end, cut = at[kept], ends[batch][near_cut[kept]], near_cut[kept]
        seems, following, index = _seems_a_record(data, at, end)
        kept = np.flatnonzero(seems)
        # One that looks right by chance is hardly followed by another that has the next number.
        again, _, next_index = _seems_a_record(data, following[kept], end[kept])
        kept = kept[again & (next_index == index[kept] + 1)]
        found.append((cut[kept], at[kept], index[kept]))
    cut, at, index = (np.concatenate(parts) for parts in zip(*found, strict=True))
    cut, firsts = np.unique(cut, return_index=True)
    batch, at, index = batch[cut], at[firsts], index[firsts]
    # Numbers and places rise together within a batch; a guess that does not fit is left out.
    fits = (index > 0) & (index < counts[batch])
    fits[1:] &= (batch[1:] != batch[:-1]) | ((np.diff(index) > 0) & (np.diff(at) > 0))
    return batch[fits], at[fits], index[fits]


def _seems_a_record(data: Bytes, at: Places, end: Places) -> tuple[npt.NDArray[np.bool_], Places, Places]:
    """Whether a record may begin there, where it would end, and the number it would have."""
    # What would begin this close to the end is not looked at, so that every number can be read.
    last = end - 4 * _LENGTH_WIDTH_MAX
    seems = at < last
    at = np.minimum(at, last)
    record_bytes, body = _short_varints(data, at)
    seems &= (record_bytes > 0) & (record_bytes <= end - body) & (data[body] == 0)
    _, delta_at = _short_varints(data, body + 1)
    index, _ = _short_varints(data, delta_at)
    return seems & (index > 0), np.where(seems, body + record_bytes, at), index


def _short_varints(data: Bytes, at: Places) -> tuple[Places, Places]:
    """The same as `varints` for places where there may be anything: numbers of up to three bytes, others are wrong."""
    first, second, third = (data[at + place].astype(np.int64) for place in range(_LENGTH_WIDTH_MAX))
    wide, wider = first >= 0x80, (first >= 0x80) & (second >= 0x80)
    rest = (first & 0x7F) + np.where(wide, (second & 0x7F) << 7, 0) + np.where(wider, third << 14, 0)
    return (rest >> 1) ^ -(rest & 1), at + 1 + wide + wider


def _walk(data: Bytes, position: int, end: int, count: int, first: int, records: Records) -> None:
    """The records of one batch, one after the other: for few records, and where chains were led astray."""
    view = data.data
    bodies, ends = [0] * count, [0] * count
    try:
        for index in range(count):
            byte = view[position]
            position += 1
            rest, shift = byte & 0x7F, 7
            while byte >= 0x80:
                byte = view[position]
                position += 1
                rest |= (byte & 0x7F) << shift
                shift += 7
            bodies[index] = position
            position += rest >> 1
            ends[index] = position
            if rest & 1 or position > end:
                raise BadBatch(f"record {index} is longer than its batch")
    except IndexError:
        raise BadBatch("the batch ends in the middle of a record") from None
    if position != end:
        raise BadBatch(f"{end - position} bytes follow the last record")
    records.body[first : first + count] = bodies
    records.end[first : first + count] = ends
