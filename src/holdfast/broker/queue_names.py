"""Queues are topics with numbers, and their clients are cursors: how the names of one become those of the other.

Queue 7 is the topic `queue-7`. A client's id may be any text. One that could be a cursor's name is that cursor, so that
other front ends find it under the same name; any other one is `b64.` and its base64, which is turned back for listings.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from holdfast.model.draws import Draw
from holdfast.model.errors import BadValue
from holdfast.model.ids import CursorName, TopicName
from holdfast.model.limits import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX

# Readers of JSON keep whole numbers up to here.
QUEUE_ID_MAX: Final = 2**53 - 1

_QUEUE: Final = re.compile(r"queue-([1-9][0-9]{0,15})\Z")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+\Z")
_CODED: Final = "b64."
# Cursors that the broker makes have these in their names.
_RESERVED: Final = (_CODED, "holdfast.")
_OF_POPS: Final = ".pop-"
# Not every store can keep them, and nobody sees them in a listing.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def topic_of(queue_id: int) -> TopicName:
    return TopicName(f"queue-{queue_id}")


def queue_id_of(topic: str) -> int | None:
    """The number of the queue that a topic is; `None` if it is no queue."""
    found = _QUEUE.match(topic)
    number = int(found[1]) if found else 0
    return number if 0 < number <= QUEUE_ID_MAX else None


def cursor_of(client_id: str) -> CursorName:
    """The cursor of a client. Raises `BadValue`."""
    size = len(client_id.encode())
    if not 0 < size <= CLIENT_ID_BYTES_MAX:
        raise BadValue(f"client_id: it has {size} bytes; 1 to {CLIENT_ID_BYTES_MAX} are allowed")
    if _CONTROL.search(client_id):
        raise BadValue("client_id: control characters are not allowed")
    if _PLAIN.match(client_id) and not client_id.startswith(_RESERVED) and _OF_POPS not in client_id:
        return CursorName(client_id)
    return CursorName(_CODED + base64.urlsafe_b64encode(client_id.encode()).decode().rstrip("="))


def client_of(cursor: CursorName) -> str | None:
    """The client whose cursor this is; `None` for one that no client can have."""
    if not cursor.startswith(_CODED):
        client_id: str = cursor
    else:
        text = cursor.removeprefix(_CODED)
        try:
            client_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
    try:
        return client_id if cursor_of(client_id) == cursor else None
    except BadValue:
        return None


def draw_of(request_id: str) -> Draw:
    """A request with an id: what stands before its last `:` is who asks, and what stands behind it which request."""
    size = len(request_id.encode())
    if not 0 < size <= REQUEST_ID_BYTES_MAX:
        raise BadValue(f"request_id: it has {size} bytes; 1 to {REQUEST_ID_BYTES_MAX} are allowed")
    if _CONTROL.search(request_id):
        raise BadValue("request_id: control characters are not allowed")
    reader, separator, request = request_id.rpartition(":")
    # Nobody but a client's reader begins like this.
    return Draw(f"c.{reader}", request) if separator else Draw(f"c.{request_id}", "")
