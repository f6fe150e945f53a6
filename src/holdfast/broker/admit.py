"""What may enter: checks on messages before any of them is stored, and which partition they go to."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain

from holdfast.model import names
from holdfast.model.errors import BadMessage, PartitionNotFound, TooLarge
from holdfast.model.limits import BATCH_BYTES_MAX, HEADERS_PER_MESSAGE_MAX, MESSAGES_PER_BATCH_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.topics import Topic
from holdfast.wire.equal_lines import EqualLines
from holdfast.wire.push_batch import Pushed
from holdfast.wire.record_batch import ID_HEADER

# A record's fields around key, value and headers, at their longest.
_RECORD_OVERHEAD_BYTES = 40
# A pushed record's fields, and the names of its headers.
_PUSHED_OVERHEAD_BYTES = 120
# The header that carries an id, without the id.
_ID_OVERHEAD_BYTES = len(ID_HEADER) + 10


def check_values(values: Sequence[bytes], message_bytes_max: int) -> None:
    """Refuse what cannot be stored as one batch; costs no Python step per value."""
    count = len(values)
    if count == 1:
        if len(values[0]) > message_bytes_max:
            raise TooLarge(f"a message has {len(values[0])} bytes; at most {message_bytes_max} are allowed")
        return
    if not count:
        raise BadMessage("there is no message to publish; send at least one")
    if count > MESSAGES_PER_BATCH_MAX:
        raise TooLarge(f"{count} messages at once; send at most {MESSAGES_PER_BATCH_MAX} in one request")
    if isinstance(values, EqualLines):
        total = (values.value_bytes + _RECORD_OVERHEAD_BYTES) * count
        _check_sizes(values.value_bytes, total, message_bytes_max)
        return
    lengths = list(map(len, values))
    _check_sizes(max(lengths), sum(lengths) + _RECORD_OVERHEAD_BYTES * len(values), message_bytes_max)


def check_messages(messages: Sequence[NewMessage], message_bytes_max: int) -> None:
    """Refuse a request in which any message cannot be stored."""
    if not messages:
        raise BadMessage("there is no message to publish; send at least one")
    if len(messages) > MESSAGES_PER_BATCH_MAX:
        raise TooLarge(f"{len(messages)} messages at once; send at most {MESSAGES_PER_BATCH_MAX} in one request")
    largest = total = 0
    for message in messages:
        size = len(message.value) + (len(message.key) if message.key is not None else 0)
        if message.headers:
            if len(message.headers) > HEADERS_PER_MESSAGE_MAX:
                raise BadMessage(f"a message has {len(message.headers)} headers; at most {HEADERS_PER_MESSAGE_MAX}")
            if any(name == ID_HEADER for name, _ in message.headers):
                raise BadMessage(f"the header {ID_HEADER} carries the id of a message; give it as the id")
            size += sum(len(name.encode()) + len(value) + 10 for name, value in message.headers)
        largest = max(largest, size)
        if message.id is not None:
            size += len(names.message_id(message.id).encode()) + _ID_OVERHEAD_BYTES
        total += size + _RECORD_OVERHEAD_BYTES
    _check_sizes(largest, total, message_bytes_max)


def check_pushed(pushed: Pushed, message_bytes_max: int) -> None:
    """Refuse a push in which any message cannot be stored. Its names and ids were looked at by who took it in."""
    if len(pushed.names) > MESSAGES_PER_BATCH_MAX:
        raise TooLarge(f"{len(pushed.names)} messages at once; send at most {MESSAGES_PER_BATCH_MAX} in one request")
    values = list(map(len, pushed.values))
    labels = chain.from_iterable(pushed.labels or ())
    texts = (pushed.names, pushed.ids, pushed.transaction_ids, filter(None, pushed.trace_ids), labels)
    around = sum(len("".join(column).encode()) for column in texts)
    total = sum(values) + around + _PUSHED_OVERHEAD_BYTES * len(values)
    _check_sizes(max(values), total, message_bytes_max)


def numbers_of(topic: Topic, names: Iterable[str]) -> dict[str, int]:
    """By name, the partition that it belongs to."""
    partitions = topic.config.partitions
    return {name: zlib.crc32(name.encode()) % partitions for name in set(names)}


def places_of(topic: Topic, names: Sequence[str]) -> dict[int, Sequence[int]]:
    """By partition, the places of the names that belong to it."""
    if topic.config.partitions == 1:
        return {0: range(len(names))}
    numbers = numbers_of(topic, names)
    if len(set(numbers.values())) == 1:
        return {numbers[names[0]]: range(len(names))}
    found: dict[int, Sequence[int]] = {}
    places: dict[int, list[int]] = {number: [] for number in numbers.values()}
    add = {name: places[number].append for name, number in numbers.items()}
    for place, name in enumerate(names):
        add[name](place)
    found.update(places)
    return found


def check_largest(largest: int, message_bytes_max: int) -> None:
    """Refuse a batch, whose size is right, for its largest message."""
    _check_sizes(largest, 0, message_bytes_max)


def partition_of(topic: Topic, message: NewMessage) -> int | None:
    """The partition that a key or an id asks for; `None` if any will do."""
    token = message.key if message.key is not None else message.id.encode() if message.id is not None else None
    return None if token is None else zlib.crc32(token) % topic.config.partitions


def check_partition(topic: Topic, number: int) -> None:
    if not 0 <= number < topic.config.partitions:
        raise PartitionNotFound(
            f"topic {topic.name} has no partition {number}; it has 0 to {topic.config.partitions - 1}"
        )


def _check_sizes(largest: int, total: int, message_bytes_max: int) -> None:
    if largest > message_bytes_max:
        raise TooLarge(f"a message has {largest} bytes; at most {message_bytes_max} are allowed")
    if total > BATCH_BYTES_MAX:
        raise TooLarge(f"the messages have about {total} bytes together; send at most {BATCH_BYTES_MAX} in one request")
