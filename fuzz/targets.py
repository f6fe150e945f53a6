"""The parsers that get bytes from outside, each with good examples to start from."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.node import config
from holdfast.storage import frames
from holdfast.storage.index import SparseIndex
from holdfast.wire import batch_builder, record_batch, text


class Target(NamedTuple):
    """`run` must return or raise `HoldfastError`, and keeps its own promises with assertions."""

    run: Callable[[bytes], object]
    examples: list[bytes]


def text_lines(data: bytes) -> None:
    chunk = data + b"\n"
    items = text.parse(chunk)
    answered = sum(len(item.order) if isinstance(item, text.Publishes) else 1 for item in items)
    empty = sum(not line.removesuffix(b"\r") for line in chunk[:-1].split(b"\n"))
    assert answered == chunk.count(b"\n") - empty, "each line that is not empty gets one answer"


def batches_from_clients(data: bytes) -> None:
    for batch in record_batch.split_batches(data):
        head, values = record_batch.checked(batch)
        assert len(values) == head.record_count
        assert [message.value for message in record_batch.decode(batch, 0)] == values


def records_from_clients(data: bytes) -> None:
    """A batch whose sender sealed it properly, whatever is in it: the checksum does not help here."""
    batch = bytearray(data.ljust(record_batch.HEADER_BYTES, b"\0"))
    struct.pack_into(">i", batch, 8, len(batch) - record_batch.LENGTH_PREFIX_BYTES)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[record_batch.CRC_FROM :]))
    head, values = record_batch.checked(batch)
    assert [message.value for message in record_batch.decode(batch, 0)] == values
    assert len(values) == head.record_count


def segment_bytes(data: bytes) -> None:
    for sealed in (False, True):
        seen: list[frames.Frame] = []
        scan = frames.scan(memoryview(data), Offset(0), LogIndex(0), seen.append, sealed=sealed)
        assert scan.end == len(data) if sealed else scan.end <= len(data)
        assert all(earlier.end <= later.position for earlier, later in itertools.pairwise(seen))
        # Offsets without a gap: what is not in a frame is in a hole.
        steps = sorted(
            [(f.base_offset, f.next_offset) for f in seen] + [(h[2], h[3]) for h in scan.holes if h[2] < h[3]]
        )
        assert all(earlier[1] == later[0] for earlier, later in itertools.pairwise(steps))


def index_files(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.index"
        path.write_bytes(data)
        SparseIndex.load(path, 4096)


def settings_files(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "holdfast.toml"
        path.write_bytes(data)
        config.load(path, {}, {})


def _batch() -> bytes:
    messages = [NewMessage(value=b"\xff\x00 value", key=b"k", id=f"id-{n}", headers=[("h", b"v")]) for n in range(5)]
    return bytes(batch_builder.build_batch(messages, 1_700_000_000_000))


def _plain_batch() -> bytes:
    return bytes(batch_builder.build_values([b"value %d" % n for n in range(70)], 1_700_000_000_000))


def _segment() -> bytes:
    segment = b""
    offset = 0
    for index in range(4):
        batch = bytearray(_plain_batch())
        record_batch.place(batch, Offset(offset), 1)
        segment += frames.frame_header(batch, len(segment), LogIndex(index), Term(1), len(segment)) + batch
        offset += 70
    return segment


def _index() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        index = SparseIndex()
        index.add(Offset(0), 0, TimestampMs(1))
        index.save(Path(directory) / "x.index", 4096, Offset(70), LogIndex(1), sealed=True)
        return (Path(directory) / "x.index").read_bytes()


TARGETS = {
    "text": Target(
        text_lines, [b"PUBLISH|t|hello\nPUBLISH|t|again", b"SUBSCRIBE|t|name\r\nPING||", b"publish_id|1|t|x\n\nDANCE|"]
    ),
    "batches": Target(batches_from_clients, [_batch(), _plain_batch(), _batch() + _plain_batch()]),
    "records": Target(records_from_clients, [_batch(), _plain_batch()]),
    "segments": Target(segment_bytes, [_segment(), _segment()[:-7]]),
    "indexes": Target(index_files, [_index()]),
    "settings": Target(
        settings_files, [b'sync = "group"\ntext = "127.0.0.1:1"\n', b"segment_bytes = 4096\nnode = 'x'\n"]
    ),
}
