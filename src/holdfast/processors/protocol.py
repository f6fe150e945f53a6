"""What the broker and a worker process say to each other over the worker's stdin and stdout.

Both ways the stream is frames, one behind the other::

    length   u32, big-endian   bytes behind this field, at most FRAME_BYTES_MAX
    body     MessagePack, an array that begins with the name of its kind where there are several

The worker speaks first: `ready`, or `refused` with a text for the person who configured it. From then on
it gets one message a frame and answers each with one of `value`, `drop` and `failed`, in order.

Either end that sees a frame too long or a body that does not decode takes the other for broken: the
broker kills the worker, the worker ends. A stream that ends in the middle of a frame is a death of the
other side, and nothing of that frame is used. No pickle: what a worker sends can only be these shapes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from holdfast.model.ids import TopicName
from holdfast.model.limits import BATCH_BYTES_MAX, KIB
from holdfast.model.messages import StoredMessage

# A worker that is started after the package was replaced on disk may speak another version.
PROTOCOL_VERSION: Final = 1
# The largest message is one that came alone in the largest batch.
FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + 64 * KIB
VALUE_BYTES_MAX: Final = BATCH_BYTES_MAX

LENGTH: Final = struct.Struct(">I")


class ProcessorMessage(StoredMessage, frozen=True, kw_only=True, array_like=True):
    """What a processor function gets: the stored message and where it stands."""

    topic: TopicName
    partition: int


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    version: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    error: str


class Value(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    value: bytes


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    pass


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    error: str


Greeting = Ready | Refused
Reply = Value | Drop | Failed

_encoder = msgspec.msgpack.Encoder()
_greetings: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_messages = msgspec.msgpack.Decoder(ProcessorMessage)
decode_greeting = _greetings.decode
decode_reply = _replies.decode
decode_message = _messages.decode


def frame(body: ProcessorMessage | Greeting | Reply) -> bytes:
    """A body with its length in front."""
    encoded = _encoder.encode(body)
    assert len(encoded) <= FRAME_BYTES_MAX, "a frame is longer than the other side takes"
    return LENGTH.pack(len(encoded)) + encoded


def body_length(prefix: bytes) -> int:
    """The length a frame announces; `ValueError` if that is more than any frame has."""
    (length,) = LENGTH.unpack(prefix)
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes was announced; at most {FRAME_BYTES_MAX} are allowed")
    return int(length)
