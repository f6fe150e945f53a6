"""The rules of the processing stage: what is derived from what, in which order, and when to give up.

A topic `orders` with a processor has up to two topics beside it: `orders.processed` holds what the
processor made of each message and is what subscribers of `orders` read; `orders.dead` holds the messages
it could not handle, each with the reason. Neither ever has a processor of its own.

Nothing here waits, reads a clock or touches a file: the stage in `holdfast.processors` does that.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.model.ids import Offset, TimestampMs, TopicName
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX
from holdfast.model.messages import Header, NewMessage, StoredMessage
from holdfast.model.names import PROCESSOR_CURSOR as PROCESSOR_CURSOR
from holdfast.model.names import topic_name

PROCESSED_SUFFIX: Final = ".processed"
DEAD_SUFFIX: Final = ".dead"

# What may be stored in the output topic and not yet be behind the cursor: all that a crash can repeat.
COMMIT_MESSAGES_MAX: Final = 256
# The reason stands in a header of every dead letter; a function may raise with megabytes of text.
ERROR_TEXT_CHARACTERS_MAX: Final = 1000
# Long enough for a dependency to come back, short enough not to hold up the partition.
RETRY_DELAY_MS_FIRST: Final = 100
RETRY_DELAY_MS_MAX: Final = 5_000

_DEAD_HEADER: Final = "holdfast-dead-"
_DEAD_HEADERS_MAX: Final = 7
_OUTPUT_ID_FIELDS: Final = 3
# On outputs and dead letters: the id that the publisher gave the message.
SOURCE_ID_HEADER: Final = "holdfast-source-id"


class Origin(msgspec.Struct, frozen=True):
    """The log a message comes from. A topic that is deleted and made again is another log."""

    topic: TopicName
    created_ms: TimestampMs
    partition: int


class Transformed(msgspec.Struct, frozen=True):
    """The processor returned a new value."""

    value: bytes


class Dropped(msgspec.Struct, frozen=True):
    """The processor returned nothing: subscribers do not get this message."""


class AlreadyOut(msgspec.Struct, frozen=True):
    """An earlier run stored the output and ended before it moved the cursor."""


class GaveUp(msgspec.Struct, frozen=True):
    """Every attempt failed; `error` is what the last one said."""

    error: str
    attempts: int


Outcome = Transformed | Dropped | AlreadyOut | GaveUp


def processed_topic(name: str) -> TopicName:
    """Where the outputs of a topic go; `BadTopicName` if the topic's own name leaves no room."""
    return topic_name(name + PROCESSED_SUFFIX)


def dead_topic(name: str) -> TopicName:
    """Where messages go that the processor of a topic cannot handle."""
    return topic_name(name + DEAD_SUFFIX)


def is_derived(name: str) -> bool:
    """Whether a topic is an output or a dead letter topic, which is never processed again."""
    return name.endswith((PROCESSED_SUFFIX, DEAD_SUFFIX))


def retry_delay_ms(attempts: int, attempts_max: int) -> int | None:
    """How long to wait after that many failed attempts; `None` when it is time to give up."""
    if attempts >= attempts_max:
        return None
    return backoff_ms(attempts)


def backoff_ms(failures: int) -> int:
    """The wait after that many failures in a row: none after no failure, then doubling up to a bound."""
    if failures < 1:
        return 0
    return min(RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_FIRST << min(failures - 1, 16))


def output_id(origin: Origin, message: StoredMessage) -> str:
    """The same id each time a message is processed, so that the output topic recognises a repetition.

    The message's place, with the birth of its topic: the bare `<partition>-<offset>` would collide with
    outputs of a deleted topic of the same name. The publisher's own id would not do: used again after the
    dedupe window it stands for another message, which must come out as well.
    """
    return f"{origin.partition}-{message.offset}-{origin.created_ms}"


def source_id(message: StoredMessage) -> str | None:
    """The publisher's id of the message of which this one was made, if it was made of one that has an id."""
    for name, value in message.headers:
        if name == SOURCE_ID_HEADER:
            return value.decode("utf-8", "replace")
    return None


def source_offset(message: StoredMessage) -> Offset | None:
    """Where the message stands of which an output was made; `None` if somebody published it there himself."""
    fields = message.id.split("-")
    is_made = source_id(message) is not None and len(fields) == _OUTPUT_ID_FIELDS
    return Offset(int(fields[1])) if is_made and all(field.isdecimal() for field in fields) else None


def output(origin: Origin, message: StoredMessage, value: bytes) -> NewMessage:
    """What goes to the output topic: the new value under the old key and headers, and the publisher's id."""
    source = _source_id(origin, message)
    kept = [header for header in message.headers if header[0] != SOURCE_ID_HEADER]
    headers = [*kept[: HEADERS_PER_MESSAGE_MAX - len(source)], *source]
    return NewMessage(value=value, key=message.key, id=output_id(origin, message), headers=headers)


def _source_id(origin: Origin, message: StoredMessage) -> list[Header]:
    """The id its publisher gave a message, as a header."""
    has_own_id = message.id != f"{origin.partition}-{message.offset}"
    return [(SOURCE_ID_HEADER, message.id.encode())] if has_own_id else []


def dead_letter(origin: Origin, message: StoredMessage, failure: GaveUp, *, with_value: bool = True) -> NewMessage:
    """What goes to the dead letter topic: the message as it was, and in headers why it is there.

    `with_value=False` is for a message that no longer fits the broker's limits: the letter then says
    where in the topic the value stands. An earlier letter's headers make room for the new ones.
    """
    kept = [header for header in message.headers if not header[0].startswith((_DEAD_HEADER, SOURCE_ID_HEADER))]
    reasons: list[Header] = [
        (_DEAD_HEADER + "topic", origin.topic.encode()),
        (_DEAD_HEADER + "partition", b"%d" % origin.partition),
        (_DEAD_HEADER + "offset", b"%d" % message.offset),
        (_DEAD_HEADER + "error", short_error(failure.error).encode()),
        (_DEAD_HEADER + "attempts", b"%d" % failure.attempts),
        *_source_id(origin, message),
    ]
    if not with_value:
        reasons.append((_DEAD_HEADER + "value", b"left out, %d bytes" % len(message.value)))
        kept = []
    return NewMessage(
        value=message.value if with_value else b"",
        key=message.key if with_value else None,
        id=output_id(origin, message),
        headers=[*kept[: HEADERS_PER_MESSAGE_MAX - _DEAD_HEADERS_MAX], *reasons],
    )


def short_error(text: str) -> str:
    """An error on one line, of bounded length, and with half surrogate pairs escaped, so that it can be encoded."""
    line = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= ERROR_TEXT_CHARACTERS_MAX else line[: ERROR_TEXT_CHARACTERS_MAX - 3] + "..."


Result = TypeVar("Result")


class InOrder(Generic[Result]):
    """Results come back in any order and leave in the order in which their messages were admitted.

    At most `limit` messages are inside. Offsets rise, but need not be consecutive: expired and damaged
    stretches of a log are skipped.
    """

    def __init__(self, limit: int) -> None:
        assert limit >= 1
        self._limit = limit
        self._order: deque[StoredMessage] = deque()
        self._results: dict[Offset, Result] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def room(self) -> int:
        """How many more may be admitted."""
        return self._limit - len(self._order)

    def admit(self, message: StoredMessage) -> None:
        """Take a message in; its result is waited for from now on."""
        assert self.room > 0, "admitted more messages than the limit"
        assert not self._order or message.offset > self._order[-1].offset, "offsets must rise"
        self._order.append(message)

    def complete(self, offset: Offset, result: Result) -> bool:
        """Hand in a result; says whether something can be released now."""
        assert offset not in self._results, f"two results for offset {offset}"
        self._results[offset] = result
        return self._order[0].offset in self._results

    def release(self) -> list[tuple[StoredMessage, Result]]:
        """Everything that has a result and nothing unfinished before it, oldest first."""
        ready = []
        while self._order and self._order[0].offset in self._results:
            message = self._order.popleft()
            ready.append((message, self._results.pop(message.offset)))
        return ready
