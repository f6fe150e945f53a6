"""Lines that have begun and not ended yet, and one bound over all of them.

A line may be as long as the largest message, and there may be thousands of connections. The beginning of each line is
free, so nobody who sends short lines is ever refused. What is longer counts against the bound, and a line that would
exceed it is refused.
"""

from __future__ import annotations

from holdfast.model.errors import Overloaded
from holdfast.model.limits import KIB, TEXT_HALF_LINE_BYTES_FREE


class HalfLines:
    """What all connections hold together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0

    def change(self, count: int) -> None:
        """Count so many more bytes, or fewer. Raises `Overloaded`."""
        if count > 0 and self._bytes + count > self._bytes_max:
            raise Overloaded(
                f"lines of more than {TEXT_HALF_LINE_BYTES_FREE // KIB} KiB take all the memory they may, "
                f"{self._bytes_max} bytes; the connection is closed, try again in a moment"
            )
        self._bytes += count


class HalfLine:
    """The line of one connection."""

    def __init__(self, all_lines: HalfLines) -> None:
        self._all_lines = all_lines
        self._counted = 0
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        """Raises `Overloaded`, and holds no more than before then."""
        counted = max(0, len(self._data) + len(data) - TEXT_HALF_LINE_BYTES_FREE)
        self._all_lines.change(counted - self._counted)
        self._counted = counted
        self._data += data

    def take(self) -> bytes:
        """All of it; it begins anew."""
        taken = bytes(self._data)
        self.clear()
        return taken

    def clear(self) -> None:
        self._data.clear()
        self._all_lines.change(-self._counted)
        self._counted = 0
