"""The parsers that get bytes from outside, each with good examples to start from."""

from __future__ import annotations

import contextlib
import itertools
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from holdfast.consensus.members import Members, MembersAt
from holdfast.consensus.messages import Append, AppendReply, Heartbeat, Install, VoteRequest
from holdfast.model.entries import Entry
from holdfast.model.errors import BadPeerFrame, HoldfastError
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.node import config
from holdfast.storage import frames
from holdfast.storage.index import SparseIndex
from holdfast.wire import batch_builder, callbacks, peer, peer_errors, peer_raft, record_batch, text
from holdfast.wire import text_answers as text_answers_codec


class Target(NamedTuple):
    """`run` must return or raise `HoldfastError`, and keeps its own promises with assertions."""

    run: Callable[[bytes], object]
    examples: list[bytes]


def _answers(item: text.Item) -> int:
    """How many lines it stands for."""
    if isinstance(item, text.Publishes):
        return len(item.order)
    return len(item.lines) if isinstance(item, text.Replication | text.PublishIds) else 1


def text_lines(data: bytes) -> None:
    chunk = data + b"\n"
    items = text.parse(chunk)
    answered = sum(_answers(item) for item in items)
    empty = sum(not line.removesuffix(b"\r") for line in chunk[:-1].split(b"\n"))
    assert answered == chunk.count(b"\n") - empty, "each line that is not empty gets one answer"


def text_answers(data: bytes) -> None:
    """What a client of a pair takes from a broker; a delivery that is understood can be written again."""
    for line in data.split(b"\n"):
        answer = text_answers_codec.parse_answer(line)
        if isinstance(answer, text_answers_codec.Delivered):
            written = text.lines_with_ids(answer.topic.encode(), [(answer.message_id, answer.value)])
            assert text_answers_codec.parse_answer(written[:-1]) == answer


def callback_lines(data: bytes) -> None:
    """What a receiver answers, and what it takes from whoever connects to it."""
    for parse in (lambda lines: callbacks.count_acks(lines, len(lines)), callbacks.parse_messages):
        with contextlib.suppress(HoldfastError):
            found = parse(data + b"\n")
            assert not isinstance(found, int) or found > 0, "whoever answers at all acknowledges something"


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


def peer_frames(data: bytes) -> None:
    """Frames in a row, as they come from a connection; a rest that is no whole frame would wait for more."""
    view = memoryview(data)
    position = 0
    while len(view) - position >= peer.HEAD_BYTES:
        kind, size = peer.read_head(view, position)
        position += peer.HEAD_BYTES
        body = view[position : position + size]
        if len(body) < size:
            return
        position += size
        _peer_body(kind, body)


def _peer_body(kind: int, body: memoryview) -> None:
    if kind == peer.HELLO:
        hello = peer.decode_hello(body)
        assert peer.decode_hello(peer.hello_frame(hello)[peer.HEAD_BYTES :]) == hello
    elif kind == peer.RAFT:
        messages = peer_raft.decode_raft(body)
        again = memoryview(b"".join(peer_raft.raft_frame(messages)))[peer.HEAD_BYTES :]
        assert len(again) == len(body)
        assert peer_raft.decode_raft(again) == messages
    elif kind == peer.REQUEST:
        assert b"".join(peer.request_frame(*peer.decode_request(body)))[peer.HEAD_BYTES :] == body
    elif kind == peer.REPLY:
        number, status, rest = peer.decode_reply(body)
        assert b"".join(peer.reply_frame(number, status, rest))[peer.HEAD_BYTES :] == body
        if status == peer.REFUSED:
            peer_errors.decode_error(rest)
    elif kind == peer.REFUSAL:
        assert peer.decode_refusal(body).isprintable()


def _peer_frames() -> list[bytes]:
    term, index = Term(3), LogIndex(70)
    entries = [Entry(term, 1, _plain_batch()), Entry(term, 2, bytes(12))]
    history = (MembersAt(index, term, Members.of(["n1.a", "n2.b"], ["n3.c"])),)
    raft = peer_raft.raft_frame(
        [
            (1, Append(term, index, term, index, entries)),
            (2, AppendReply(term, LogIndex(-1), True, index, index, term)),
            (2, Heartbeat(term, index, 7, False)),
            (3, Install(term, index, term, history, b"position")),
            (1 << 63, VoteRequest(term, index, term, True, False)),
        ]
    )
    hello = peer.Hello(cluster="c", node="n1", life="a", boot="b", addresses={"text": "h:1"}, facts={"zone": "z"})
    refused = peer_errors.encode_error(BadPeerFrame("no"))
    return [
        b"".join(raft),
        peer.hello_frame(hello) + peer.refusal_frame("not wanted") + peer.goodbye_frame(),
        b"".join(peer.request_frame(1, 2, b"body") + peer.reply_frame(1, peer.OK, b"body")),
        b"".join(peer.reply_frame(2, peer.REFUSED, refused)),
    ]


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
    "callback_lines": Target(
        callback_lines,
        [
            b"ACK\nACK\nACK",
            b"ACK|17\r\nACK",
            b"MESSAGE|orders|a|b\nMESSAGE_BASE64|orders|YQpi",
            b"MESSAGE_AT|7|0|12|a%7Cb|orders|x\nMESSAGE_AT_BASE64|7.3|1|13||orders|YQpi",
        ],
    ),
    "text": Target(
        text_lines, [b"PUBLISH|t|hello\nPUBLISH|t|again", b"SUBSCRIBE|t|name\r\nPING||", b"publish_id|1|t|x\n\nDANCE|"]
    ),
    "answers": Target(
        text_answers,
        [
            b"MESSAGE_ID|a%7Cb|t|x|y",
            b"MESSAGE_ID_BASE64|0-1|t|YQpi\nPONG",
            b"ERROR|disk_full|no room\nACK",
            b"CONNACK|x",
        ],
    ),
    "batches": Target(batches_from_clients, [_batch(), _plain_batch(), _batch() + _plain_batch()]),
    "records": Target(records_from_clients, [_batch(), _plain_batch()]),
    "segments": Target(segment_bytes, [_segment(), _segment()[:-7]]),
    "indexes": Target(index_files, [_index()]),
    "peers": Target(peer_frames, _peer_frames()),
    "settings": Target(
        settings_files, [b'sync = "group"\ntext = "127.0.0.1:1"\n', b"segment_bytes = 4096\nnode = 'x'\n"]
    ),
}
