"""A class archive (AppCDS) of what Spark loads at its start: with one a session is there in a third of the time.

`<cache>/spark-<version>-java-<version>-<digest>.jsa`, some 170 MB; the digest is of the jars that Spark has. It is
made once, by a process that starts a session, uses what the connector uses, and ends:
`python -m holdfast.spark.class_archive`. It is written beside its name and renamed, so that what bears the name is
whole. A Java that finds an archive of another Java or of other jars ignores it and starts as slowly as without.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.spark.java import Java, cache_directory, find_java

# `on`: used, and made where it is missing; `use`: used where it is there; `off`: neither.
SWITCH: Final = "HOLDFAST_SPARK_CLASS_ARCHIVE"
# Java tells of every class that it cannot put in, or of an archive that does not fit: neither matters.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_DUMP_S: Final = 120.0


def is_used() -> bool:
    return os.environ.get(SWITCH, "on") != "off"


def is_made() -> bool:
    return os.environ.get(SWITCH, "on") == "on"


def archive_path(java: Java) -> Path:
    """Where the archive for this Spark and this Java is, or will be."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    listed = "\n".join(sorted(f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jars.glob("*.jar")))
    digest = hashlib.sha256(f"{jars}\n{java.home}\n{listed}".encode()).hexdigest()[:12]
    return cache_directory() / f"spark-{pyspark.__version__}-java-{java.version}-{digest}.jsa"


def java_options(java: Java) -> list[str]:
    """What makes Java use the archive, if it is there."""
    archive = archive_path(java)
    return [f"-XX:SharedArchiveFile={archive}", _QUIET] if archive.is_file() else []


def ensure(java: Java | None = None) -> Path:
    """Make the archive unless it is there."""
    archive = archive_path(java or find_java())
    if not archive.is_file():
        subprocess.run(_command(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return archive


def make_in_background(java: Java) -> None:
    """Have it made while the session that had to do without it is used; at the lowest priority."""
    if archive_path(java).is_file():
        return
    subprocess.Popen(
        ["nice", "-n", "19", *_command()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _command() -> Sequence[str]:
    return (sys.executable, "-m", "holdfast.spark.class_archive")


def _make() -> None:
    """Load what a query loads, then have Java write down which classes that was."""
    java = find_java()
    archive = archive_path(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.with_suffix(".lock"), "w") as lock:
        # Who comes second waits, and finds it made.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        os.environ["JAVA_HOME"] = str(java.home)
        made = archive.with_suffix(f".{os.getpid()}")
        try:
            _run_a_session(made)
            if made.is_file():
                made.replace(archive)
        finally:
            made.unlink(missing_ok=True)


def _run_a_session(made: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    session = (
        builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={made} {_QUIET} -XX:TieredStopAtLevel=1")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.dataSource.register(_sample_source())
    rows = session.read.format("sample").load()
    rows.groupBy().count().collect()
    rows.selectExpr("cast(value as string) value").where("value > ''").count()
    query = session.readStream.format("sample").load().writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    # Java ends when nobody talks to it any more, and writes the archive before it does.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_DUMP_S)


def _sample_source() -> Any:
    """A source that needs no broker, and has Spark load the same classes as ours."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    class SampleReader(DataSourceReader, DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"end": 0}

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
            return {"end": 1}

        def partitions(self, *offsets: object) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.RecordBatch.from_arrays([pa.array([b"value"], pa.binary())], names=["value"])

    class SampleSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "sample"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: object) -> DataSourceReader:
            return SampleReader()

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return SampleReader()

    return SampleSource


if __name__ == "__main__":
    _make()
