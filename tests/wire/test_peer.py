"""What one node says is what another hears, and whatever else comes is refused as such."""

from __future__ import annotations

import inspect
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consensus.members import Members, MembersAt, ReplicaId
from holdfast.consensus.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Install,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from holdfast.model import errors, member_errors
from holdfast.model.entries import Entry
from holdfast.model.errors import BadPeerFrame, HoldfastError, RemoteError, TooLarge
from holdfast.model.limits import PEER_FRAME_BYTES_MAX
from holdfast.wire import peer
from holdfast.wire.peer import Hello
from holdfast.wire.peer_errors import decode_error, encode_error
from holdfast.wire.peer_raft import FULL_BYTES, MESSAGE_BYTES_MAX, RaftFrame, decode_raft, raft_frame

numbers = st.integers(-1, (1 << 63) - 1)
payloads = st.one_of(st.binary(max_size=40), st.binary(min_size=600, max_size=1500))
views = payloads.map(lambda payload: memoryview(payload))
entries = st.lists(
    st.builds(
        Entry,
        numbers,
        st.integers(0, 255),
        st.one_of(payloads, payloads.map(bytearray), views),
    )
)
names = st.text("abcn123.-_", min_size=1, max_size=12).map(ReplicaId)
members = st.builds(
    lambda voters, learners: Members(voters, learners - voters),
    st.frozensets(names, min_size=1, max_size=5),
    st.frozensets(names, max_size=3),
)
history = st.lists(st.builds(MembersAt, numbers, numbers, members), max_size=3).map(tuple)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, numbers, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(VoteReply, numbers, st.booleans(), st.booleans()),
    st.builds(Append, numbers, numbers, numbers, numbers, entries),
    st.builds(AppendReply, numbers, numbers, st.booleans(), numbers, numbers, numbers),
    st.builds(Heartbeat, numbers, numbers, numbers, st.booleans()),
    st.builds(HeartbeatReply, numbers, numbers, numbers),
    st.builds(Install, numbers, numbers, numbers, history, st.binary(max_size=50)),
    st.builds(TimeoutNow, numbers),
)
groups = st.integers(0, (1 << 64) - 1)
rows = st.lists(st.tuples(groups, messages), max_size=6)


def body_of(frame: bytes) -> memoryview:
    kind, size = peer.read_head(memoryview(frame), 0)
    assert kind == peer.RAFT
    assert size == len(frame) - peer.HEAD_BYTES
    return memoryview(frame)[peer.HEAD_BYTES :]


@given(rows)
def test_messages_arrive_as_they_were_sent(row: list[tuple[int, Message]]) -> None:
    heard = decode_raft(body_of(b"".join(raft_frame(row))))
    assert heard == row
    assert [type(message) for _, message in heard] == [type(message) for _, message in row]


@given(rows, st.data())
def test_frame_that_is_cut_off_is_refused_or_shorter(row: list[tuple[int, Message]], data: st.DataObject) -> None:
    body = body_of(b"".join(raft_frame(row)))
    cut = data.draw(st.integers(0, len(body)))
    try:
        heard = decode_raft(body[:cut])
    except BadPeerFrame:
        return
    assert heard == row[: len(heard)]


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_one_kind_of_error(garbage: bytes) -> None:
    view = memoryview(garbage)
    for decode in (decode_raft, peer.decode_hello, peer.decode_request, peer.decode_reply, decode_error):
        try:
            decode(view)
        except BadPeerFrame as error:
            assert error.message
    assert peer.decode_refusal(view).isprintable()


def test_payloads_are_not_copied_on_their_way() -> None:
    payload = bytes(1 << 20)
    frame = raft_frame([(1, Append(1, 0, 1, 0, [Entry(1, 1, payload)] * 3))])  # type: ignore[arg-type]
    assert sum(part is payload for part in frame) == 3
    body = body_of(b"".join(frame))
    message = decode_raft(body)[0][1]
    assert isinstance(message, Append)
    for entry in message.entries:
        assert isinstance(entry.payload, memoryview)
        assert entry.payload.obj is body.obj


def test_payload_that_is_a_bytearray_is_left_as_it_is() -> None:
    payload = bytearray(b"x" * 5000)
    frame = RaftFrame()
    frame.add(1, Append(1, 0, 1, 0, [Entry(1, 1, payload)]))  # type: ignore[arg-type]
    frame.add(2, TimeoutNow(5))  # type: ignore[arg-type]
    joined = b"".join(frame.take())
    assert payload == b"x" * 5000
    assert [group for group, _ in decode_raft(body_of(joined))] == [1, 2]
    assert b"".join(frame.take()) == b"".join(RaftFrame().take())


def test_lying_counts_are_refused_before_memory_is_taken() -> None:
    head = struct.pack(">QBqqqqI", 1, 3, 1, 1, 1, 1, 0xFFFFFFFF)
    with pytest.raises(BadPeerFrame, match="4294967295 entries"):
        decode_raft(memoryview(head))
    lengths = struct.pack(">QBqqqqI", 1, 3, 1, 1, 1, 1, 1) + struct.pack(">qIB", 1, 0xFFFFFFFF, 1)
    with pytest.raises(BadPeerFrame, match="payloads"):
        decode_raft(memoryview(lengths))
    install = struct.pack(">QBqqqII", 1, 7, 1, 1, 1, 0xFFFFFFFF, 5)
    with pytest.raises(BadPeerFrame):
        decode_raft(memoryview(install))


@pytest.mark.parametrize("named", [b"", b"|", b"b,a|", b"a,,b|", b"a,a|", b"a|b,", b"\xff|", b"a"])
def test_members_in_another_form_are_refused(named: bytes) -> None:
    body = struct.pack(">QBqqqII", 1, 7, 1, 1, 1, 1, 0) + struct.pack(">qqI", 1, 1, len(named)) + named
    with pytest.raises(BadPeerFrame, match="members"):
        decode_raft(memoryview(body))


def test_message_that_no_frame_can_hold_is_refused_and_the_frame_goes_on() -> None:
    frame = RaftFrame()
    frame.add(1, TimeoutNow(1))  # type: ignore[arg-type]
    half = bytes(MESSAGE_BYTES_MAX // 2)
    with pytest.raises(TooLarge):
        frame.add(1, Append(1, 0, 1, 0, [Entry(1, 1, half)] * 3))  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        frame.add(1, Install(1, 0, 1, (), half * 3))  # type: ignore[arg-type]
    assert decode_raft(body_of(b"".join(frame.take()))) == [(1, TimeoutNow(1))]  # type: ignore[arg-type]


def test_frame_that_is_not_full_has_room_for_any_message() -> None:
    frame = RaftFrame()
    frame.add(1, Append(1, 0, 1, 0, [Entry(1, 1, bytes(FULL_BYTES - 100))]))  # type: ignore[arg-type]
    assert not frame.is_full
    frame.add(1, Append(1, 0, 1, 0, [Entry(1, 1, bytes(MESSAGE_BYTES_MAX - 100))]))  # type: ignore[arg-type]
    assert frame.is_full
    assert sum(map(len, frame.take())) <= PEER_FRAME_BYTES_MAX


def hello(**changes: Any) -> Hello:
    return Hello(**{"cluster": "c1", "node": "n1", "life": "6f2a", "boot": "b1", **changes})


@given(
    st.builds(
        Hello,
        # As many as the one byte of a frame's head can say.
        version=st.integers(0, 255),
        cluster=st.text(st.characters(exclude_categories=["Cs"])),
        node=names,
        life=names,
        boot=st.text(st.characters(exclude_categories=["Cs"])),
        addresses=st.dictionaries(st.just("text"), st.just("h:1")),
        facts=st.dictionaries(st.just("zone"), st.just("a")),
    )
)
def test_node_is_known_by_what_it_said(said: Hello) -> None:
    frame = memoryview(peer.hello_frame(said))
    assert peer.read_head(frame, 0) == (peer.HELLO, len(frame) - peer.HEAD_BYTES)
    heard = peer.decode_hello(frame[peer.HEAD_BYTES :])
    assert heard == said
    assert heard.replica == f"{said.node}.{said.life}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":1}',
        peer.hello_frame(hello(node="a,b"))[6:],
        peer.hello_frame(hello(life=""))[6:],
        peer.hello_frame(hello(oldest=2))[6:],
        peer.hello_frame(hello(oldest=-1))[6:],
    ],
)
def test_what_is_no_hello_is_refused(body: bytes) -> None:
    with pytest.raises(BadPeerFrame):
        peer.decode_hello(body)


def test_hello_of_a_later_version_is_understood() -> None:
    frame = bytearray(peer.hello_frame(hello(version=9)))
    frame[4] = 9
    body = bytes(frame[6:-1]) + b',"new":{"x":[1]}}'
    assert peer.read_head(memoryview(frame), 0)[0] == peer.HELLO
    assert peer.decode_hello(body).version == 9


def test_hello_that_is_too_long_is_refused_where_it_is_made() -> None:
    with pytest.raises(TooLarge):
        peer.hello_frame(hello(facts={"a": "x" * 70_000}))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"GET / ", "is this a node"),
        (struct.pack(">IBB", PEER_FRAME_BYTES_MAX + 1, 1, peer.RAFT), "bytes, not"),
        (struct.pack(">IBB", 1, 1, peer.RAFT), "bytes, not"),
        (struct.pack(">IBB", 2, 1, 7), "no frame of kind 7"),
        (struct.pack(">IBB", 2, 1, 0), "no frame of kind 0"),
        (struct.pack(">IBB", 2, 2, peer.RAFT), "RAFT of protocol version 2"),
    ],
)
def test_head_of_no_frame_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(BadPeerFrame, match=why):
        peer.read_head(memoryview(head), 0)


@given(groups, st.integers(0, 255), st.binary(max_size=50))
def test_requests_and_replies_arrive(number: int, method: int, body: bytes) -> None:
    frame = memoryview(b"".join(peer.request_frame(number, method, body)))
    assert tuple(peer.decode_request(frame[peer.HEAD_BYTES :])) == (number, method, body)
    for status in (peer.OK, peer.REFUSED):
        frame = memoryview(b"".join(peer.reply_frame(number, status, body)))
        assert tuple(peer.decode_reply(frame[peer.HEAD_BYTES :])) == (number, status, body)


def test_reasons_are_short_and_printable() -> None:
    frame = peer.refusal_frame("no\n\x1b[31m" + "ä" * 5000)
    reason = peer.decode_refusal(frame[peer.HEAD_BYTES :])
    assert reason.startswith("no\\n\\x1b[31m")
    assert len(reason) < 1100


ALL_ERRORS = [
    found
    for found in (*vars(errors).values(), *vars(member_errors).values())
    if isinstance(found, type) and issubclass(found, HoldfastError) and not issubclass(found, RemoteError)
]


def test_errors_come_out_as_what_they_were_raised_as() -> None:
    # A mark is for the broker that met the trouble, and not told to others.
    values: dict[str, Any] = {"message": "why", "next_offset": 17, "allowed": "GET", "mark": None}
    for kind in ALL_ERRORS:
        error = kind(**{name: values[name] for name in inspect.signature(kind).parameters})
        heard = decode_error(encode_error(error))
        assert isinstance(heard, kind)
        assert heard.code == error.code
        assert vars(heard) == vars(error)


def test_error_of_a_later_version_keeps_its_code() -> None:
    heard = decode_error(encode_error(RemoteError("from_the_future", "why", 418)))
    assert isinstance(heard, RemoteError)
    assert (heard.code, heard.message, heard.http_status) == ("from_the_future", "why", 418)
