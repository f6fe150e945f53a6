"""What clients ask of nodes, and what they are answered."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Ask(Enum):
    PUBLISH = "publish"
    READ = "read"
    # From whatever node it is sent to, which may be behind.
    READ_NEARBY = "read nearby"
    MOVE_CURSOR = "move cursor"
    READ_CURSOR = "read cursor"
    # A node asks for itself up to where a group has decided.
    READ_INDEX = "read index"


# In the place of a client's number.
NODE_ITSELF = -1


class Request(NamedTuple):
    """`name` is the message's or the cursor's; `number` the count of messages or the cursor's position."""

    client: int
    operation: int
    ask: Ask
    group: int
    name: str
    message_id: str = ""
    number: int = 0


class Answer(NamedTuple):
    """If not `is_done`, nothing was promised. `value` is an offset or a position, `name` the newest message read."""

    client: int
    operation: int
    is_done: bool
    value: int = 0
    name: str = ""
