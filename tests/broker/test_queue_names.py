"""A client's id is any text, and comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.queue_names import client_of, cursor_of, draw_of, queue_id_of, topic_of
from holdfast.model import names
from holdfast.model.draws import is_outdated
from holdfast.model.errors import BadValue
from holdfast.model.ids import CursorName
from holdfast.model.limits import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX

texts = st.text(
    st.characters(codec="utf-8", exclude_characters=[*map(chr, range(32)), "\x7f"]),
    min_size=1,
    max_size=CLIENT_ID_BYTES_MAX // 4,
)


@given(texts | st.sampled_from(["b64.", "b64.YQ", "holdfast.done", "a.pop-b", "alice", ".", "a b", "~delivered"]))
def test_client_id_comes_back_and_its_cursor_may_be_called_so(client_id: str) -> None:
    cursor = cursor_of(client_id)
    assert names.cursor_name(cursor) == cursor
    assert client_of(cursor) == client_id


@given(texts, texts)
def test_two_clients_never_share_a_cursor(one: str, other: str) -> None:
    assert (cursor_of(one) == cursor_of(other)) == (one == other)


@pytest.mark.parametrize("name", ["~delivered", "holdfast.done", "b64.!", "b64.YWxpY2U", "group.pop-0011", "x" * 129])
def test_cursors_that_no_client_can_have_are_not_listed(name: str) -> None:
    assert client_of(CursorName(name)) is None


def test_other_front_ends_find_a_client_under_its_own_name() -> None:
    assert cursor_of("worker-1.eu_west") == "worker-1.eu_west"


@pytest.mark.parametrize("text", ["", "x" * (CLIENT_ID_BYTES_MAX + 1), "ü" * CLIENT_ID_BYTES_MAX, "a\0", "a\nb"])
def test_client_id_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="client_id"):
        cursor_of(text)


@pytest.mark.parametrize("text", ["", "x" * (REQUEST_ID_BYTES_MAX + 1), "a\0:1", "a:\x7f"])
def test_request_id_that_no_store_could_keep_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="request_id"):
        draw_of(text)


def test_request_ids_without_a_number_are_readers_of_their_own() -> None:
    assert draw_of("a:b:7").reader == draw_of("a:b:8").reader != draw_of("a:7").reader
    assert draw_of("one").reader != draw_of("two").reader


@pytest.mark.parametrize(
    ("request_", "last", "expected"),
    [("9", "10", True), ("10", "9", False), ("7", "7", False), ("x", "y", False), ("07", "8", False), ("", "1", False)],
)
def test_only_numbers_tell_that_a_request_is_old(request_: str, last: str, expected: bool) -> None:
    assert is_outdated(request_, last) is expected


@pytest.mark.parametrize("topic", ["queue-0", "queue-07", "queue-", "queue-1x", "queues-1", f"queue-{2**53}"])
def test_topics_that_only_look_like_queues_are_none(topic: str) -> None:
    assert queue_id_of(topic) is None
    assert queue_id_of(topic_of(41)) == 41
