"""Ways to say where to start reading: `earliest`, `latest`, an offset, or how long ago (`-10m`)."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import BadValue

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,9})(ms|s|m|h|d)\Z")
_OFFSET_DIGITS_MAX = 18


class Place(NamedTuple):
    """Exactly one of these is set, or neither for `earliest` and `latest`."""

    word: str = ""
    offset: int | None = None
    ago_ms: int | None = None


def parse_place(where: str | int) -> Place:
    """Understand what a user wrote, or raise `BadValue` that says what can be written."""
    if isinstance(where, int) and not isinstance(where, bool) and where >= 0:
        return Place(offset=where)
    if isinstance(where, str):
        if where in ("earliest", "latest"):
            return Place(word=where)
        if where.isascii() and where.isdigit() and len(where) <= _OFFSET_DIGITS_MAX:
            return Place(offset=int(where))
        match = _AGO.match(where)
        if match:
            return Place(ago_ms=int(match[1]) * _UNIT_MS[match[2]])
    raise BadValue(
        f"{ascii(where)[:60]} is no place to start; write earliest, latest, an offset, or how long ago as -10m"
    )
