"""A transform of many messages, in a process with a Spark session of its own: by a function, or by a statement."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.load.spark import session
from benchmarks.load.wire import LoadFailed
from benchmarks.process import HOST
from benchmarks.watch import Watch

if TYPE_CHECKING:
    import pyarrow

# One message in so many raises where some are to.
RAISES_EVERY: Final = 100
VALUE_BYTES: Final = 100
_PUBLISH_MESSAGES: Final = 10_000
# A first transform loads classes and starts Python workers.
_WARM_MESSAGES: Final = 1_000
_SQL: Final = "SELECT key, CAST(2 * CAST(CAST(value AS STRING) AS BIGINT) AS STRING) AS value FROM messages"


def _doubled(batch: "pyarrow.RecordBatch") -> "pyarrow.Table":
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
    return pa.table({"key": batch["key"], "value": pc.cast(pc.multiply(numbers, 2), pa.string())})


def _doubled_frame(frame: Any) -> Any:
    return frame[["key"]].assign(value=(frame["value"].astype("int64") * 2).astype(str))


WAYS: Final[dict[str, dict[str, Any]]] = {
    "arrow": {"function": _doubled},
    "pandas": {"function": _doubled_frame, "batches": "pandas"},
    "sql": {"sql": _SQL},
}


@dataclass(frozen=True, slots=True)
class Transformed:
    """`cpu_s` is that of the driver with all that it started, without the broker."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class TransformLoad:
    port: int
    directory: str
    messages: int
    way: str
    some_raise: bool

    @property
    def dead(self) -> int:
        return self.messages // RAISES_EVERY if self.some_raise else 0


def fill(load: TransformLoad) -> None:
    """A topic `few` to warm up with, and `numbers`."""
    import holdfast

    topics = {"few": (_WARM_MESSAGES, False), "numbers": (load.messages, load.some_raise)}
    with holdfast.connect_blocking(f"holdfast://{HOST}:{load.port}", timeout_s=120) as broker:
        for topic, (messages, some_raise) in topics.items():
            broker.create_topic(topic, partitions=2)
            for first in range(0, messages, _PUBLISH_MESSAGES):
                numbers = range(first, min(first + _PUBLISH_MESSAGES, messages))
                values = [b"%0*d" % (VALUE_BYTES, number) for number in numbers]
                if some_raise:
                    raising = values[RAISES_EVERY // 2 :: RAISES_EVERY]
                    values[RAISES_EVERY // 2 :: RAISES_EVERY] = [b"x" * VALUE_BYTES] * len(raising)
                broker.publish_many(topic, values)


def run(load: TransformLoad) -> Transformed:
    """Take every message of `numbers` to another topic."""
    import holdfast.pipelines

    spark = session("2g")
    spark.sparkContext.setLogLevel("OFF")
    with Watch(os.getpid()) as watch:
        for source in ("few", "numbers"):
            began_s, used_s = time.monotonic(), watch.cpu_s
            done = holdfast.pipelines.transform(
                spark,
                source=source,
                target=f"made-of-{source}",
                checkpoint=str(Path(load.directory) / source),
                servers=f"{HOST}:{load.port}",
                **WAYS[load.way],
            )
            transformed = Transformed(time.monotonic() - began_s, watch.cpu_s - used_s)
    spark.stop()
    wanted = {"made": load.messages - load.dead, "dead": load.dead}
    if done.counts != wanted:
        raise LoadFailed(f"the transform counted {done.counts}, not {wanted}")
    return transformed
