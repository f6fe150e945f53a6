"""What people hand over, and how lists are cut into batches."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import bulk
from holdfast.client.addresses import Address, parse_url
from holdfast.client.encoding import IdMaker, new_message, value_bytes
from holdfast.client.results import PublishResults
from holdfast.client.store import build, places
from holdfast.model.errors import BadMessage, BadMessageId, ConfigError, RemoteError, TooLarge
from holdfast.model.ids import Offset
from holdfast.model.messages import BatchPublished, NewMessage, Published
from holdfast.wire.record_batch import decode_values


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("holdfast://127.0.0.1:8090", [Address("127.0.0.1", 8090)]),
        ("holdfast://a:1,b:2/", [Address("a", 1), Address("b", 2)]),
        ("HTTP://broker", [Address("broker", 8090)]),
        ("broker:9", [Address("broker", 9)]),
        ("holdfast://[::1]:7,[::1]:7", [Address("::1", 7)]),
        ("[::1]", [Address("::1", 8090)]),
    ],
)
def test_addresses_are_understood(url: str, expected: list[Address]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "holdfast://", "kafka://a:1", "a:b", "a:70000", "a:1,,b:2", "[::1", "u@h:1", "a:0", "a..b:1", "a b"]
)
def test_a_mistyped_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": 3}, "the key must be text or bytes, not int"),
        ({"headers": {"n": 1}}, "the header 'n' must be text or bytes, not int"),
    ],
)
def test_key_or_header_of_another_type_is_refused_in_words(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        new_message("x", **arguments)


def test_id_that_is_no_text_is_refused_in_words() -> None:
    with pytest.raises(BadMessageId, match="must be text, not int"):
        new_message("x", id=cast("str", 3))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ("é", "é".encode()),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([1.5], b"[1.5]"),
        (None, b"null"),
        (7, b"7"),
    ],
)
def test_values_become_bytes(value: object, stored: bytes) -> None:
    assert value_bytes(value) == stored


@pytest.mark.parametrize("value", [object(), "\ud800", {"a": object()}])
def test_a_value_that_cannot_be_stored_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(BadMessage):
        value_bytes(value)


def test_a_bad_id_or_too_many_headers_are_refused_before_they_are_sent() -> None:
    with pytest.raises(BadMessageId):
        new_message("v", id="two\nlines")
    with pytest.raises(TooLarge):
        new_message("v", headers={str(n): "" for n in range(100)})
    with pytest.raises(BadMessage):
        new_message("v", headers={"\ud800": "x"})
    with pytest.raises(BadMessage, match="id="):
        new_message("v", headers={"holdfast-id": "x"})


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_no_message_is_lost_or_doubled_when_a_list_is_cut(sizes: list[int]) -> None:
    values = [bytes([index]) * size for index, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "BATCH_BYTES_MAX", 150)
        patch.setattr(bulk, "BATCH_MESSAGES_MAX", 7)
        pieces = list(bulk.plain_pieces(values, lambda: 0))
    assert [value for piece in pieces for value in piece.messages] == values
    assert [place for piece in pieces for place in piece.places] == list(range(len(values)))
    for piece in pieces:
        assert len(piece.messages) <= 7
        assert len(piece.messages) == 1 or sum(map(len, piece.messages)) <= 150  # type: ignore[arg-type]


def test_plain_values_stay_plain_and_get_ids_only_when_asked() -> None:
    ids = IdMaker()
    assert bulk.encoded([b"a", "b", {"c": 1}], ids, retry_safe=False) == [b"a", b"b", b'{"c":1}']
    keyed = NewMessage(value=b"v", key=b"k")
    assert bulk.encoded([keyed], ids, retry_safe=False) == [keyed]
    assert ids.made(bulk.encoded([b"v"], ids, retry_safe=True)[0].id)  # type: ignore[union-attr]


def test_one_id_in_a_list_gives_all_of_them_ids() -> None:
    ids = IdMaker()
    with_ids = bulk.encoded([b"a", NewMessage(value=b"b", id="mine")], ids, retry_safe=False)
    assert isinstance(with_ids[0], NewMessage)
    assert isinstance(with_ids[1], NewMessage)
    assert ids.made(with_ids[0].id)
    assert with_ids[1].id == "mine"
    with pytest.raises(BadMessage):
        bulk.encoded("five!", ids, retry_safe=False)
    with pytest.raises(BadMessage):
        bulk.encoded([NewMessage(value="text")], ids, retry_safe=False)  # type: ignore[arg-type]


def test_batches_are_built_from_values_and_from_messages() -> None:
    assert decode_values(build([b"a", b"bb"])) == [b"a", b"bb"]
    assert decode_values(build([NewMessage(value=b"a", key=b"k"), NewMessage(value=b"bb")])) == [b"a", b"bb"]


def test_offsets_of_a_batch_with_duplicates_are_told_apart() -> None:
    ids = IdMaker()
    own = NewMessage(value=b"own", id=ids.next())
    messages = [NewMessage(value=b"old", id="old"), NewMessage(value=b"new", id="new"), own]
    messages += [NewMessage(value=b"other", id="other"), NewMessage(value=b"twice", id="new")]
    offsets = [Offset(offset) for offset in (3, 10, 4, 11, 10)]
    answer = BatchPublished(partition=0, base_offset=Offset(3), count=5, duplicates=3, offsets=offsets)
    stored = places(messages, answer, ids)
    assert stored.offsets == offsets
    assert stored.duplicates == [0, 4], "its own resend is not a duplicate for the caller"


def test_an_answer_that_does_not_fit_the_batch_is_not_believed() -> None:
    for answer in (
        BatchPublished(partition=0, base_offset=Offset(0), count=1, duplicates=0),
        BatchPublished(partition=0, base_offset=Offset(0), count=2, duplicates=1),
        BatchPublished(partition=0, base_offset=Offset(0), count=2, duplicates=1, offsets=[Offset(0)]),
    ):
        with pytest.raises(RemoteError):
            places([b"a", b"b"], answer, IdMaker())


def test_results_of_many_are_a_sequence_in_the_order_given() -> None:
    results = PublishResults(4)
    results.set(range(2), 1, range(10, 12), ())
    results.set([3], 0, [5], [0])
    assert results.known() == [
        Published(partition=1, offset=Offset(10)),
        Published(partition=1, offset=Offset(11)),
        None,
        Published(partition=0, offset=Offset(5), duplicate=True),
    ]
    results.set([2], 0, [6], ())
    assert len(results) == 4
    assert results[-1].duplicate
    assert results.duplicates == 1
    assert [each.offset for each in results] == [10, 11, 6, 5]
    assert [each.offset for each in results[1:3]] == [11, 6]
    with pytest.raises(IndexError):
        results[4]
