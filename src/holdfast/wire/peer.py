"""What nodes of a cluster say to each other over TCP, apart from the messages of groups (`peer_raft.py`).

A connection carries frames, numbers are big-endian::

    length   u32   bytes that follow, at most `PEER_FRAME_BYTES_MAX`
    version  u8    of the protocol: the one that both have agreed on
    kind     u8
    body

    1 HELLO    who I am, as JSON (`Hello`); the first frame in both directions
    2 RAFT     any number of messages of groups; none of them: I am alive
    3 REQUEST  id u64 | method u8 | body
    4 REPLY    id u64 | status u8 | body      status 0: done; 1: refused, the body is an error (`peer_errors.py`)
    5 REFUSAL  why I will not talk to you, as UTF-8 text; the last frame
    6 GOODBYE  the last frame of one who has lost the connection in the other direction and connects anew

Frame heads, HELLO and REFUSAL keep their form for ever, whatever their version: a node of another version must be
told why it is not wanted. Fields of a HELLO may be added; those that are not known are passed over.

Nodes of two builds talk while a cluster is upgraded. A HELLO says the newest and the oldest version its node speaks,
and what follows on that connection is in the highest that both speak (`agreed_version`). What a frame of another
version looks like is up to whoever encodes and decodes it: a connection knows its version. A build that changes a
frame raises `PROTOCOL_VERSION`, and goes on speaking the one before at least.

A body that is decoded is never copied: requests and replies are slices of the frame they came in.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Final

import msgspec

from holdfast.consensus.members import ReplicaId
from holdfast.model.errors import BadPeerFrame, TooLarge
from holdfast.model.limits import PEER_FRAME_BYTES_MAX, PEER_HELLO_BYTES_MAX

Buffer = bytes | bytearray | memoryview

# The newest version that this build speaks, and the oldest.
PROTOCOL_VERSION: Final = 1
OLDEST_VERSION: Final = 1

HELLO: Final = 1
RAFT: Final = 2
REQUEST: Final = 3
REPLY: Final = 4
REFUSAL: Final = 5
GOODBYE: Final = 6
# Their form does not depend on the version.
_TIMELESS: Final = (HELLO, REFUSAL)
_KIND_NAMES: Final = ("", "HELLO", "RAFT", "REQUEST", "REPLY", "REFUSAL", "GOODBYE")

OK: Final = 0
REFUSED: Final = 1

_HEAD = struct.Struct(">IBB")
HEAD_BYTES: Final = _HEAD.size
# What `length` counts beside the body.
_COUNTED_BYTES: Final = 2
_ANSWERABLE = struct.Struct(">QB")
# The most a request or a reply may carry.
BODY_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX - _COUNTED_BYTES - _ANSWERABLE.size
_REASON_CHARACTERS_MAX: Final = 1000
# Names of replicas stand between commas in lists of members, and in logs.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
# As it stands in the head of a frame.
_Version = Annotated[int, msgspec.Meta(ge=0, le=255)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who a node is. `cluster` is empty while it belongs to none.

    `version` is the newest it speaks, `oldest` the oldest; one that does not say the latter (0) speaks the former only.
    `life` is new when its disk is, `boot` when its process is. `addresses` are `host:port` by the name of what
    listens there; `facts` is whatever else the nodes of a cluster want to know of each other.
    """

    version: _Version = PROTOCOL_VERSION
    cluster: str
    node: str
    life: str
    boot: str
    addresses: dict[str, str] = {}
    facts: dict[str, str] = {}
    oldest: _Version = 0

    @property
    def oldest_spoken(self) -> int:
        return self.oldest or self.version

    @property
    def replica(self) -> ReplicaId:
        return ReplicaId(f"{self.node}.{self.life}")


_hello_decoder = msgspec.json.Decoder(Hello)


def agreed_version(one: Hello, other: Hello) -> int | None:
    """The highest that both speak; `None` where there is none."""
    highest = min(one.version, other.version)
    return highest if highest >= max(one.oldest_spoken, other.oldest_spoken) else None


def frame_head(kind: int, body_bytes: int, version: int = PROTOCOL_VERSION) -> bytes:
    """What stands in front of a body; raises `TooLarge` where no peer would take the frame."""
    length = body_bytes + _COUNTED_BYTES
    if length > PEER_FRAME_BYTES_MAX:
        raise TooLarge(f"a frame between nodes may have {PEER_FRAME_BYTES_MAX} bytes, this one has {length}")
    return _HEAD.pack(length, version, kind)


def read_head(
    data: memoryview, position: int, bytes_max: int = PEER_FRAME_BYTES_MAX, version: int = PROTOCOL_VERSION
) -> tuple[int, int]:
    """Kind and size of the body behind the frame head at `position`, which must be there whole."""
    length, its_version, kind = _HEAD.unpack_from(data, position)
    if bytes(data[position : position + 4]) == b"HTTP":
        raise BadPeerFrame("this is an HTTP port; give the one for peers")
    if not _COUNTED_BYTES <= length <= bytes_max:
        raise BadPeerFrame(f"a frame has 2 to {bytes_max} bytes, not {length}: is this a node of a cluster?")
    if not 0 < kind < len(_KIND_NAMES):
        raise BadPeerFrame(f"there is no frame of kind {kind}")
    if its_version != version and kind not in _TIMELESS:
        raise BadPeerFrame(f"a {_KIND_NAMES[kind]} of protocol version {its_version} where {version} is spoken")
    return kind, length - _COUNTED_BYTES


def hello_frame(hello: Hello) -> bytes:
    body = msgspec.json.encode(hello)
    if len(body) + _COUNTED_BYTES > PEER_HELLO_BYTES_MAX:
        raise TooLarge(f"what a node says of itself may have {PEER_HELLO_BYTES_MAX} bytes, not {len(body)}")
    return frame_head(HELLO, len(body)) + body


def decode_hello(body: Buffer) -> Hello:
    try:
        hello = _hello_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadPeerFrame(f"not a HELLO: {error}") from error
    if hello.oldest > hello.version:
        raise BadPeerFrame(f"a node speaks versions {hello.oldest} to {hello.version}, which are none")
    for what, name in (("node", hello.node), ("life", hello.life)):
        if not _NAME.match(name):
            raise BadPeerFrame(f"a {what} is named with 1 to 200 letters, digits, '.', '_' and '-', not {name[:60]!a}")
    return hello


def refusal_frame(reason: str) -> bytes:
    body = reason[:_REASON_CHARACTERS_MAX].encode("utf-8", "replace")
    return frame_head(REFUSAL, len(body)) + body


def decode_refusal(body: Buffer) -> str:
    """Meant for a log line: what cannot be printed is escaped, and it is never long."""
    text = bytes(body[: 4 * _REASON_CHARACTERS_MAX]).decode("utf-8", "replace")[:_REASON_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def goodbye_frame(version: int = PROTOCOL_VERSION) -> bytes:
    return frame_head(GOODBYE, 0, version)


def request_frame(number: int, method: int, body: Buffer, version: int = PROTOCOL_VERSION) -> list[Buffer]:
    """The body is not copied: hand the buffers to `writelines`."""
    head = frame_head(REQUEST, _ANSWERABLE.size + len(body), version)
    return [head + _ANSWERABLE.pack(number, method), body]


def decode_request(body: memoryview) -> tuple[int, int, memoryview]:
    """Its id, the method, and what it carries."""
    if len(body) < _ANSWERABLE.size:
        raise BadPeerFrame(f"a REQUEST has at least {_ANSWERABLE.size} bytes, not {len(body)}")
    number, method = _ANSWERABLE.unpack_from(body)
    return number, method, body[_ANSWERABLE.size :]


def reply_frame(number: int, status: int, body: Buffer, version: int = PROTOCOL_VERSION) -> list[Buffer]:
    """The body is not copied: hand the buffers to `writelines`."""
    head = frame_head(REPLY, _ANSWERABLE.size + len(body), version)
    return [head + _ANSWERABLE.pack(number, status), body]


def decode_reply(body: memoryview) -> tuple[int, int, memoryview]:
    """The id of the request, the status, and what it carries."""
    if len(body) < _ANSWERABLE.size:
        raise BadPeerFrame(f"a REPLY has at least {_ANSWERABLE.size} bytes, not {len(body)}")
    number, status = _ANSWERABLE.unpack_from(body)
    if status not in (OK, REFUSED):
        raise BadPeerFrame(f"a REPLY has the status {OK} or {REFUSED}, not {status}")
    return number, status, body[_ANSWERABLE.size :]
