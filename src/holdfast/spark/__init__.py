"""The Spark connector: `spark.read`, `readStream`, `write` and `writeStream` with `format("holdfast")`, and sessions.

::

    spark = holdfast.spark.session()
    orders = spark.readStream.format("holdfast").options(servers="127.0.0.1:8090", subscribe="orders").load()

The way of a read: `source` → `options` → `source_batch` or `source_stream`, which plan on the driver
(`broker_places`, `offsets`, `slices`) → `reading`, on the executors: `fetching` → `decoding` (`record_starts`).
The way of a write: `source` → `sink_options` → `sink`, on the executors `sink_pieces` (`sink_encoding`) → `sink_calls`.
Both ask brokers through `broker_calls`.
Beside it: `archive_history` reads an archive (`archive_files`, `archive_format`) and the log behind it as one table.
Around it: `spark_session` (`java`, `class_archive`, `shipping`), and `progress`, which tells the brokers how far a
query is.

Executors get this package as a zip. What they run imports Python's own modules, numpy, pyarrow and pyspark, and nothing
else: neither the client nor msgspec.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.archive_history import history
    from holdfast.spark.shipping import cluster_config
    from holdfast.spark.spark_session import active, session

_PLACES = {
    "active": "holdfast.spark.spark_session",
    "cluster_config": "holdfast.spark.shipping",
    "history": "holdfast.spark.archive_history",
    "session": "holdfast.spark.spark_session",
}

__all__ = ["active", "cluster_config", "history", "session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.spark' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
