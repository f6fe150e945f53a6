"""Which names are allowed.

A topic's name is nearly any text. Where it becomes part of a path, on a disk or in a URL, it is percent-encoded
(`path_part`), so nothing in it can name another path.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from holdfast.model.errors import BadCursorName, BadMessageId, BadTopicName, BadWriter
from holdfast.model.ids import CursorName, MessageId, TopicName, WriterName
from holdfast.model.limits import (
    CURSOR_NAME_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    TOPIC_NAME_BYTES_MAX,
    WRITER_NAME_BYTES_MAX,
)

# Topics of the broker's own begin with it: no user creates, publishes to, reads or sees them.
INTERNAL_PREFIX: Final = ".holdfast."
# Of an internal topic: what stands below this cursor is done with, and is deleted.
DONE_CURSOR: Final = CursorName("holdfast.done")
# How far a topic's processor is. It stands in the topic itself, and not in what readers of that topic get.
PROCESSOR_CURSOR: Final = CursorName("holdfast.processor")
# No reader has one of these names: its cursor would hide the broker's own.
_OWN_CURSORS: Final = frozenset((DONE_CURSOR, PROCESSOR_CURSOR))
# What begins with it is where a callback stands: everybody may look at it and move it, nobody else reads through it.
CALLBACK_PREFIX: Final = "callback:"

_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")
_ALLOWED = "letters, digits, '.', '_' and '-'"
# Between the fields of the text protocol, and between the topics of a list; what stands for bytes that are no text.
_NOT_IN_TOPICS: Final = re.compile("[|,\ufffd]")
# Of a node. It stands in file names, in replica names and in URLs.
NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def topic_name(text: str) -> TopicName:
    """Return `text` as a topic name or raise `BadTopicName` that says what would be right."""
    if not text:
        raise BadTopicName("the topic name is empty; name one")
    if not _NAME.match(text) or text in {".", ".."}:
        _check_unusual(text)
    elif len(text) > TOPIC_NAME_BYTES_MAX:
        raise BadTopicName(f"the topic name has {len(text)} characters; at most {TOPIC_NAME_BYTES_MAX} are allowed")
    if is_internal(text):
        raise BadTopicName(f"the topic name {_shown(text)} is not allowed; {INTERNAL_PREFIX} begins the broker's own")
    return TopicName(text)


def _check_unusual(text: str) -> None:
    if text in {".", ".."} or not text.isprintable() or _NOT_IN_TOPICS.search(text) or text != text.strip():
        raise BadTopicName(
            f"the topic name {_shown(text)} is not allowed; use printable characters other than '|' and ',', and no "
            "blank at its beginning or end"
        )
    if len(path_part(text)) > TOPIC_NAME_BYTES_MAX:
        raise BadTopicName(
            f"the topic name {_shown(text)} has {len(path_part(text))} characters where it is percent-encoded, as in a "
            f"URL; at most {TOPIC_NAME_BYTES_MAX} are allowed"
        )


def path_part(name: str) -> str:
    """A topic's name as one part of a path. One of letters, digits, '.', '_' and '-' stands for itself."""
    return quote(name, safe="")


def of_path_part(part: str) -> TopicName | None:
    """The topic whose directory has this name; none if it can be that of no topic."""
    name = unquote(part)
    return TopicName(name) if path_part(name) == part else None


def is_internal(text: str) -> bool:
    """Whether a topic is the broker's own."""
    return text.startswith(INTERNAL_PREFIX)


def writer_name(text: str) -> WriterName:
    """Return `text` as the name of somebody who writes transactions or raise `BadWriter`."""
    if not text or len(text) > WRITER_NAME_BYTES_MAX or not _NAME.match(text) or text in {".", ".."}:
        raise BadWriter(f"the writer {_shown(text)} is not allowed; use 1 to {WRITER_NAME_BYTES_MAX} of {_ALLOWED}")
    return WriterName(text)


def cursor_name(text: str) -> CursorName:
    """Return `text` as the name of a cursor (a durable subscription) or raise `BadCursorName`."""
    if text.startswith(CALLBACK_PREFIX):
        raise BadCursorName(
            f"{_shown(text)} is where a callback stands, and only its receiver reads through it; seek moves it, and "
            "`holdfast subscriptions remove` removes it with its subscription"
        )
    if text in _OWN_CURSORS:
        raise BadCursorName(f"the broker keeps the name {_shown(text)} for itself; choose another name")
    if not text or len(text) > CURSOR_NAME_BYTES_MAX or not _NAME.match(text):
        raise BadCursorName(f"the name {_shown(text)} is not allowed; use 1 to {CURSOR_NAME_BYTES_MAX} of {_ALLOWED}")
    return CursorName(text)


def moved_name(text: str) -> CursorName:
    """The same, or where a callback stands: for those who move a place."""
    return place_name(text) if text.startswith(CALLBACK_PREFIX) else cursor_name(text)


def place_name(text: str) -> CursorName:
    """The name of any cursor to look at, also of the broker's own, or where a callback stands."""
    if text in _OWN_CURSORS:
        return CursorName(text)
    if not text.startswith(CALLBACK_PREFIX):
        return cursor_name(text)
    topic, colon, name = text.removeprefix(CALLBACK_PREFIX).rpartition(":")
    cursor_name(name)
    if colon:
        try:
            topic_name(topic)
        except BadTopicName as error:
            raise BadCursorName(f"{_shown(text)} names no subscription: {error.message}") from error
    return CursorName(text)


def callback_place(topic: TopicName, name: CursorName, delivered: TopicName) -> CursorName:
    """Where a subscription to a topic stands in the one whose messages it gets."""
    return CursorName(CALLBACK_PREFIX + (name if topic == delivered else f"{topic}:{name}"))


def callback_at(delivered: TopicName, place: CursorName) -> tuple[TopicName, CursorName] | None:
    """The topic and the name of the subscription that stands there, if the place is that of one."""
    if not place.startswith(CALLBACK_PREFIX):
        return None
    topic, _, name = place.removeprefix(CALLBACK_PREFIX).rpartition(":")
    return TopicName(topic) if topic else delivered, CursorName(name)


def message_id(text: str) -> MessageId:
    """Return `text` as a message id or raise `BadMessageId`: any text without control characters."""
    if not text or len(text.encode("utf-8", "surrogatepass")) > MESSAGE_ID_BYTES_MAX or not text.isprintable():
        raise BadMessageId(f"a message id has 1 to {MESSAGE_ID_BYTES_MAX} printable bytes, not {_shown(text)}")
    return MessageId(text)


def _shown(text: str) -> str:
    """As a person knows it; only what cannot be printed is escaped."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
