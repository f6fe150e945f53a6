"""A steady rate: which messages are due now, given when the first one was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

# Against the last digit of a product of fractions: 0.3 × 10 is three messages, not four.
_TINY: Final = 1e-9


def paced(
    source: Iterator[list[bytes]],
    rate: float,
    for_s: float | None,
    together_max: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[bytes]]:
    """The messages of `source` in lists of what is due: one at a time, or several after a broker was away.

    Time that was spent waiting for the source is not made up for. With `for_s`, messages that would be
    due later are left out, so that 40 s at 10 a second are 400 messages, however long they took.
    """
    first_due = clock()
    ends = math.inf if for_s is None else first_due + for_s
    handed_out = 0
    while True:
        asked = clock()
        values = next(source, None)
        if values is None:
            return
        now = clock()
        first_due += max(0.0, min(now - asked, now - (first_due + handed_out / rate)))
        while values:
            late = clock() - (first_due + handed_out / rate)
            if (ends - first_due) * rate - _TINY <= handed_out:
                return
            if late < 0:
                sleep(-late)
                continue
            left = math.ceil(min((ends - first_due) * rate - _TINY, 1e18)) - handed_out
            count = min(1 + int(late * rate), left, together_max)
            yield values[:count]
            handed_out += len(values[:count])
            values = values[count:]
