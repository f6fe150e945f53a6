"""A Spark session that can read and write Holdfast: `holdfast.spark.session()`, on a laptop and on a cluster.

It finds Java, gives Python workers what they need, starts fast where a class archive is there, sends the connector to
the executors, and tells the brokers how far streaming queries are.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from holdfast.spark import class_archive
from holdfast.spark.interpreter import choose_python
from holdfast.spark.java import find_java, is_collector_chosen, quick_forks
from holdfast.spark.shipping import cluster_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where a checkpoint is on this machine's disk. Without native libraries, which pip does not bring, Hadoop starts a
# process each time it sets the rights of a file or looks whether it is a link: the manager that Spark prefers does so
# about ten times for one file, and this one twice. Both rename a file that is complete.
_LOCAL_SETTINGS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
# Java's second compiler makes code fast and takes long for it. Of what runs in the first seconds little runs often, and
# compiling that took a third of all processor time until the first row: so it begins with what ran ten times as often
# as it usually waits for. What is hot gets there soon all the same.
_LATE_COMPILING: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# PySpark asks it whether there is a numpy once a session is there. It brings pandas, which takes half a second.
_IMPORTED_LATE: Final = "pyspark.testing.utils"
# For the listener to move cursors in brokers that may be slow: no script should hang longer at its end.
_HEAR_MS_MAX: Final = 5_000
# A session that is asked for again has its listener.
_listened_to: WeakSet[SparkSession] = WeakSet()


def session(
    master: str = "local[*]",
    app_name: str = "holdfast",
    *,
    config: Mapping[str, object] | None = None,
    python: str | None = None,
) -> SparkSession:
    """The session of this process: a new one, or the one that is there; the calling thread may write with it.

    `config` are Spark's own settings. `python` is the interpreter of the executors, by a name that means one on this
    machine too: Spark plans with the same. It is this one for `local…`, and `python3` elsewhere.
    """
    try:
        from pyspark.sql import SparkSession

        from holdfast.spark.progress import ProgressListener
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"the Spark connector needs the package {missing.name}, which is not installed: run pip install -e "
            "'.[spark]' in the directory of the sources, with the pip of this environment",
            name=missing.name,
        ) from missing

    given = {name: str(value) for name, value in (config or {}).items()}
    is_local = master.startswith("local")
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    choose_python(python, is_local=is_local)
    # Java that only puts together how to start Java.
    collector = "" if is_collector_chosen() else " -XX:+UseSerialGC"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"-XX:TieredStopAtLevel=1{collector}")
    settings = {
        **(_LOCAL_SETTINGS if is_local else {}),
        # Opt-in for each query by the option pushFilters; without this Spark refuses readers that can do it.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Where a worker dies the error says why. What works with a state goes by this setting only, which a session has
        # from its start.
        "spark.python.worker.faulthandler.enabled": "true",
        **given,
    }
    if not is_local:
        settings = cluster_config(settings)
    archive_options = class_archive.java_options(java) if class_archive.is_used() else []
    given_options = given.get("spark.driver.extraJavaOptions", "")
    options = [*archive_options, *quick_forks(java), *_LATE_COMPILING, given_options]
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    builder: Any = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    # While Java starts this process has nothing else to do.
    Thread(target=import_module, args=(_IMPORTED_LATE,), daemon=True).start()
    started: SparkSession = builder.getOrCreate()
    if class_archive.is_made():
        class_archive.make_in_background(java)
    if started not in _listened_to:
        _listened_to.add(started)
        started.streams.addListener(ProgressListener())
        _hear_of_progress_at_exit()
    _sessions_of(started).setActiveSession(started._jsparkSession)
    return started


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[SparkSession]:
    """Use a session in this thread.

    Spark looks for sources that are written in Python in the calling thread's active session. The thread that made a
    session has it, and another one has none: there `df.write` and `writeStream.start()` do not find `holdfast`.
    """
    from py4j.protocol import Py4JError

    sessions = _sessions_of(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield spark
    finally:
        # Where Java is gone there is nothing to set, and the error on its way says so.
        with contextlib.suppress(Py4JError):
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


@cache
def _hear_of_progress_at_exit() -> None:
    """Spark calls the listener a moment after a query has ended, when a script may be at its end, too."""
    atexit.register(_hear_of_progress)


def _hear_of_progress() -> None:
    """Wait until the listener has heard of all batches. Without it cursors may be behind until the next start."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    # `spark.stop()` has waited for the listener itself.
    if context is None or context._jsc is None:
        return
    with contextlib.suppress(Py4JError, OSError):
        context._jsc.sc().listenerBus().waitUntilEmpty(_HEAR_MS_MAX)


def _sessions_of(spark: SparkSession) -> Any:
    """Java's class of sessions."""
    known: Any = spark
    return known._get_j_spark_session_class(known._jvm)
