"""A topic may be called nearly anything, and no name leads anywhere else on a disk or in a URL."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from holdfast.model import names
from holdfast.model.errors import BadCursorName, BadTopicName
from holdfast.model.ids import CursorName, TopicName
from holdfast.model.limits import TOPIC_NAME_BYTES_MAX

USUAL = "abzAZ019._-"


def allowed(text: str) -> TopicName | None:
    try:
        return names.topic_name(text)
    except BadTopicName:
        return None


@given(st.text(max_size=40), st.text(max_size=40))
@example("a/b", "a%2Fb")
@example("../../etc/passwd", "/")
@example("ü", "u\u0308")
def test_topics_have_directories_of_their_own_below_that_of_all(one: str, other: str) -> None:
    name, second = allowed(one), allowed(other)
    if name is None:
        return
    part = names.path_part(name)
    assert part.isascii() and "/" not in part and part not in {"", ".", ".."}
    assert len(part) <= TOPIC_NAME_BYTES_MAX
    assert names.of_path_part(part) == name
    assert second is None or (names.path_part(second) == part) == (second == name)


@given(st.text(USUAL, min_size=1, max_size=TOPIC_NAME_BYTES_MAX))
def test_directories_of_older_brokers_keep_their_names(name: str) -> None:
    assume(name not in {".", ".."})
    assert names.path_part(name) == name
    assert names.of_path_part(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "sensors/kitchen/temperature",
        "/leading/and/trailing/",
        "two words",
        "grün ☃",
        "a:b",
        "50%",
        "[x]",
        "#",
        "+/a",
        "../up",
        "C:\\dir",
        '"',
        "x" * 200,
    ],
)
def test_what_users_of_other_brokers_call_their_topics_is_allowed(name: str) -> None:
    assert names.topic_name(name) == name


@pytest.mark.parametrize("part", ["a/b", "a%2fb", "a b", "%zz", "ü", "%FF"])
def test_directory_that_no_topic_has_is_not_taken_for_one(part: str) -> None:
    assert names.of_path_part(part) is None


def test_place_of_a_callback_names_its_topic_whatever_that_is_called() -> None:
    topic, name, delivered = TopicName("a/b:c d"), CursorName("billing"), TopicName("a/b:c d.processed")
    for where in (delivered, topic):
        place = names.callback_place(topic, name, where)
        assert names.place_name(place) == place
        assert names.callback_at(where, place) == (topic, name)
    for bad in ("callback:", "callback:a b", "callback:a|b:name", "callback::name", "other:name"):
        with pytest.raises(BadCursorName):
            names.place_name(bad)


def test_names_in_errors_are_shown_as_they_were_typed() -> None:
    with pytest.raises(BadTopicName, match=r"the topic name 'büro/büro/.*\.\.\.' has \d+ characters"):
        names.topic_name("büro/" * 30)
    with pytest.raises(BadTopicName, match=r"the topic name 'ü\\x1b\[1m' is not allowed"):
        names.topic_name("ü\x1b[1m")
