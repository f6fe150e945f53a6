"""Lines of equal length that publish to one topic, turned into records by one `replace`.

Sensors, counters and benchmarks send floods of lines that differ in nothing but the bytes of their payloads.
Then what stands between two payloads is the same everywhere, in the lines as in the records they become, but
for the records' numbers in the batch; and those stand at a fixed stride. So one `replace` turns all lines into
records, and one strided assignment for each byte of the numbers fills those in: no object is made per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from holdfast.wire import batch_builder, record_batch
from holdfast.wire.record_runs import DELTA_WIDTH_ENDS, delta_columns

# Below this many lines there is nothing to gain.
_LINES_MIN = 32


class EqualLines(Sequence[bytes]):
    """The payloads of equal lines, as records already. Only who asks for single ones pays for them."""

    def __init__(self, parts: list[bytes | bytearray], count: int, value_bytes: int) -> None:
        self._parts = parts
        self._count = count
        self._values: list[bytes] | None = None
        self.value_bytes = value_bytes

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if self._values is None:
            self._values = record_batch.decode_values(self.batch(0))
        return self._values[place]

    def batch(self, timestamp_ms: int) -> bytearray:
        """The record batch of all payloads."""
        return batch_builder.sealed(self._parts, self._count, timestamp_ms)


def equal_lines(chunk: bytes, prefix: bytes) -> EqualLines | None:
    """The lines of a chunk that begins with `prefix`, if all begin with it and are equally long."""
    line_bytes = chunk.find(b"\n") + 1
    count, rest = divmod(len(chunk), line_bytes)
    if rest or not _LINES_MIN <= count <= DELTA_WIDTH_ENDS[1] or chunk[line_bytes - 1 :: line_bytes] != b"\n" * count:
        return None
    if b"\r" in chunk:  # it may have to be dropped at the end of a line
        return None
    value_bytes = line_bytes - len(prefix) - 1
    parts: list[bytes | bytearray] = []
    start = 0
    for width, width_end in ((1, DELTA_WIDTH_ENDS[0]), (2, DELTA_WIDTH_ENDS[1])):
        end = min(count, width_end)
        lines = chunk[start * line_bytes : end * line_bytes]
        records = _records(lines, prefix, value_bytes, width, end - start)
        if records is None:
            return None
        parts.append(records)
        start = end
        if end == count:
            break
    return EqualLines(parts, count, value_bytes)


def _records(lines: bytes, prefix: bytes, value_bytes: int, width: int, count: int) -> bytearray | None:
    """The records of lines whose numbers have varints of one width; `None` if one line is another kind of line.

    Line breaks show that: each stood in front of a prefix and is gone with it, or is still there. The first
    of these lines has none in front of it here, and is looked at.
    """
    if not lines.startswith(prefix):
        return None
    head, tail = batch_builder.plain_frame(value_bytes, width)
    lead = head + bytes(width) + tail
    between = batch_builder.RECORD_END + lead
    if b"\n" in between:
        return None
    body = lines[len(prefix) : -1].replace(b"\n" + prefix, between)
    if b"\n" in body:
        return None
    records = bytearray().join((lead, body, batch_builder.RECORD_END))
    stride = len(lead) + value_bytes + 1
    for place, column in enumerate(delta_columns(width)):
        records[len(head) + place :: stride] = column[:count]
    return records
