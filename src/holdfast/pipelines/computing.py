"""Functions to try `holdfast pipeline transform` with: work of 50 to 150 ms a message, and counts by key.

`compute` stands for what an edge broker computes for each message before it forwards it: a processor core is busy for a
uniformly distributed time, and the message stays as it is. One core does about ten messages a second, so that the rate
says how many cores of how many executors take part::

    holdfast pipeline transform --source orders --target orders.computed \
        --function holdfast.pipelines.computing:compute --checkpoint computed
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

MS_MIN: Final = 50
MS_MAX: Final = 150
# Steps between two looks at the clock: some microseconds.
_STEPS: Final = 200


def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Be busy for 50 to 150 ms a message; the messages go on as they are."""
    for _ in range(batch.num_rows):
        busy(random.uniform(MS_MIN, MS_MAX) / 1000)
    return batch


def busy(duration_s: float) -> None:
    """Compute, not sleep, until so much time has passed."""
    end = time.perf_counter() + duration_s
    state = 1
    while time.perf_counter() < end:
        for _ in range(_STEPS):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF


def count(state: Any, batch: pa.RecordBatch | None) -> tuple[Any, pa.RecordBatch | None]:
    """How many messages a key has had: a message with the number for each batch, or for each window at its end."""
    import pyarrow as pa

    if batch is not None:
        state = {
            "key": (batch["key"][0].as_py() or b"").decode("utf-8", "replace"),
            "count": (state or {}).get("count", 0),
        }
        state["count"] += batch.num_rows
        if "window_end" in batch.schema.names:
            return state, None
    return state, pa.record_batch({"key": [state["key"]], "value": [str(state["count"])]})
