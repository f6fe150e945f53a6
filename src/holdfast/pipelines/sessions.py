"""The session that a pipeline was given, ready for the thread that runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from holdfast.pipelines.errors import BadPipelineSetting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT: Final = "pyspark.sql.connect"


@contextlib.contextmanager
def in_this_thread(spark: SparkSession) -> Iterator[None]:
    """Before a pipeline asks for or changes anything. Raises `BadPipelineSetting` where it cannot use the session."""
    from holdfast.spark.spark_session import active

    if type(spark).__module__.startswith(_CONNECT):
        raise BadPipelineSetting(
            "pipelines need a session whose driver is this process, as holdfast.spark.session() and spark-submit make "
            "it, and this one is a client of Spark Connect: run the pipeline where the Connect server is, or give "
            "holdfast.spark.session() the master of the cluster"
        )
    with active(spark):
        yield
