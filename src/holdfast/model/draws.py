"""Draws: readers who share a cursor are given what comes next, each message to one of them.

A draw names who asks and which of its requests this is, so that one that comes twice is told from the next one: the
last draw of each reader is kept as long as the cursor, and asked for again it has the same result. That may be nothing,
where whoever draws wants that remembered too: else a request that was told so, and comes again late, takes a message.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.ids import Offset


class Draw(msgspec.Struct, array_like=True, frozen=True):
    """A reader wants the next `count` messages. Where requests are numbers, they rise."""

    reader: str
    request: str
    count: int = 1


class Drawn(msgspec.Struct, array_like=True, frozen=True):
    """So many messages from `first` on; none where there was nothing to be had. A repeat had drawn them before."""

    first: Offset
    count: int
    is_repeat: bool = False


NOTHING_DRAWN: Final = Drawn(Offset(0), 0)
# The reader has drawn with a higher number since: whoever waits for this answer is not waiting any more.
OUTDATED_DRAW: Final = Drawn(Offset(-1), 0)


def is_outdated(request: str, last: str) -> bool:
    """Whether a request is older than the last one of its reader, as far as numbers can tell."""
    if (len(request), request) >= (len(last), last):
        return False
    return _is_number(request) and _is_number(last)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and (text[0] != "0" or text == "0")
