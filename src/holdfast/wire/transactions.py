"""What stands in the internal topics behind transactions, and in the receipts that clients hold.

A message of `.holdfast.staged` is one piece of staged data. Its value::

    u32   length of the description
          description: `Piece` as msgpack
          record batches, one behind the other, all for one partition

A message of `.holdfast.transactions` decides something: its value is a `Commit`, `Abort` or `Forget`, as msgpack. A
commit names pieces by their offsets; all pieces of a writer stand in the partition of the same number as its decisions.

Each piece has a nonce, made by dice, which its receipt and the commit repeat. An offset alone does not tell which piece
is meant: in a log that lost its end, or that two halves of a pair wrote on, another piece may stand there.

A receipt is a `Receipt` as msgpack with a keyed checksum (BLAKE2b, 16 bytes) behind it, as URL-safe base64. The key is
the token of the staged topic, which no client is told: nobody can make a receipt for what it did not stage.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.model.errors import BadReceipt
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName, WriterName
from holdfast.model.limits import TRANSACTION_PARTITIONS
from holdfast.model.names import INTERNAL_PREFIX
from holdfast.model.transactions import Contents
from holdfast.wire import batch_builder, record_batch

STAGED: Final = TopicName(INTERNAL_PREFIX + "staged")
DECISIONS: Final = TopicName(INTERNAL_PREFIX + "transactions")
# Of the staged topic: how many bytes of each partition are committed and cannot be deleted yet.
DEAD_CURSOR: Final = CursorName("holdfast.dead")

_LENGTH: Final = struct.Struct(">I")
_SUM_BYTES: Final = 16
# Longer than any receipt that was ever given: nobody decodes megabytes to find them wrong.
_RECEIPT_CHARACTERS_MAX: Final = 2048


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Who staged what, for which number, and where it is to go."""

    writer: WriterName
    number: int
    attempt: str
    topic: TopicName
    token: str
    partition: int
    batches: int
    nonce: bytes


class Receipt(msgspec.Struct, array_like=True, frozen=True):
    """A piece of staged data as its writer names it in a commit."""

    writer: WriterName
    number: int
    offset: Offset
    staged_ms: TimestampMs
    topic: TopicName
    token: str
    partition: int
    batches: int
    nonce: bytes


class Part(msgspec.Struct, array_like=True, frozen=True):
    """One piece in a commit: its offset and nonce, and its target as a place in the commit's list of them."""

    offset: Offset
    target: int
    batches: int
    nonce: bytes


class Target(msgspec.Struct, array_like=True, frozen=True):
    """A partition of a topic; nothing of the commit stands in it below `floor`."""

    topic: TopicName
    token: str
    partition: int
    floor: Offset


class Commit(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """These pieces, in this order, are the writer's transaction of that number, unless it has one."""

    writer: WriterName
    number: int
    decided_ms: TimestampMs
    targets: list[Target]
    parts: list[Part]
    # Builds without it ignore it here and leave it out: then nothing is noted of what the transaction holds.
    contents: Contents | None = None


class Abort(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """What the writer staged below this offset, and did not commit, is dropped; `reason` is for the log."""

    writer: WriterName
    decided_ms: TimestampMs
    below: Offset
    reason: str = ""


class Forget(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The writer's number is forgotten; what is decided behind this begins anew, without what was staged below."""

    writer: WriterName
    decided_ms: TimestampMs
    below: Offset


Decision = Commit | Abort | Forget

_encode = msgspec.msgpack.Encoder().encode
_decode_decision: Callable[[bytes], Decision] = msgspec.msgpack.Decoder(Decision).decode
_decode_piece = msgspec.msgpack.Decoder(Piece).decode
_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


def partition_of(writer: WriterName) -> int:
    """The partition of both internal topics that a writer uses, for ever."""
    return zlib.crc32(writer.encode()) % TRANSACTION_PARTITIONS


def staged_batch(piece: Piece, batches: Sequence[record_batch.Buffer], now_ms: TimestampMs) -> bytearray:
    """The message of a piece, as a batch of its own."""
    description = _encode(piece)
    value = b"".join((_LENGTH.pack(len(description)), description, *batches))
    return batch_builder.build_values([value], now_ms)


def read_staged(batch: record_batch.Buffer, index: int = 0) -> tuple[Piece, memoryview]:
    """The piece in a message that was stored, and its record batches."""
    value = memoryview(record_batch.decode_values(batch)[index])
    (length,) = _LENGTH.unpack_from(value)
    return _decode_piece(value[_LENGTH.size : _LENGTH.size + length]), value[_LENGTH.size + length :]


def encode_decision(decision: Decision) -> bytes:
    return _encode(decision)


def decode_decision(value: bytes) -> Decision:
    return _decode_decision(value)


def encode_receipt(receipt: Receipt, key: str) -> str:
    body = _encode(receipt)
    return base64.urlsafe_b64encode(body + _sum(body, key)).decode().rstrip("=")


def decode_receipt(text: str, key: str) -> Receipt:
    """Raises `BadReceipt` for what was not made with this key."""
    if len(text) > _RECEIPT_CHARACTERS_MAX or not text.isascii():
        raise BadReceipt("a receipt is the text that a stage answered with")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise BadReceipt(f"{text[:40]!a} is no receipt: give the text that a stage answered with") from None
    body, given = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if not hmac.compare_digest(given, _sum(body, key)):
        raise BadReceipt(f"the receipt {text[:40]!a} was not given by this broker")
    return _decode_receipt(body)


def _sum(body: bytes, key: str) -> bytes:
    return hashlib.blake2b(body, digest_size=_SUM_BYTES, key=key.encode()).digest()
